"""From a loss to new weights: clipping, gradients that the step made itself, and their measure."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from builder_support import (
    SIZES,
    adam,
    assert_other_weights,
    assert_same_bits,
    batches,
    by_hand,
    classifier,
    net,
    quiet,
    sgd,
)
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from notebook_learner import ClassificationOutput, StepError, TrainOutput
from notebook_learner.metric import GradNorm, LearningRate, Loss

NORM, VALUE = 0.05, 0.01  # below what these gradients have, so that every step is clipped


def output_of(model, batch):
    x, y = batch
    scores = model(x)
    return ClassificationOutput(F.cross_entropy(scores, y), scores, y)


# Clipping --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"norm": NORM}, {"value": VALUE}, {"norm": NORM, "value": VALUE}])
def test_clipping_is_torchs_to_the_bit(limits, tmp_path):
    def clip():
        if "norm" in limits:
            clip_grad_norm_(expected.parameters(), limits["norm"])
        if "value" in limits:
            clip_grad_value_(expected.parameters(), limits["value"])

    model, expected, unclipped = net(), net(), net()
    classifier(tmp_path).clip_gradients(**limits).num_epochs(2).build(model, adam(model)).fit(batches())
    by_hand(expected, adam(expected), batches(), epochs=2, before_step=clip)
    by_hand(unclipped, adam(unclipped), batches(), epochs=2)
    assert_same_bits(model, expected)
    assert_other_weights(model, unclipped)


def test_the_gradient_norm_is_measured_before_it_is_clipped(tmp_path):
    def clip():
        norms.append(clip_grad_norm_(expected.parameters(), NORM).item())

    norms = []
    model, expected = net(), net()
    builder = classifier(tmp_path).clip_gradients(norm=NORM).metric_train_numeric(GradNorm())
    learner = builder.build(model, sgd(model))
    learner.fit(batches())
    by_hand(expected, sgd(expected), batches(), before_step=clip)
    assert learner.history["train", "Gradient Norm"].tolist() == norms
    assert min(norms) > NORM
    assert_same_bits(model, expected)


def test_gradients_of_parameters_that_nobody_trains_do_not_count(tmp_path):
    """They are never cleared, so with each step the norm would be clipped harder."""

    def head(model):
        return torch.optim.SGD(model[3].parameters(), lr=0.1)

    model, expected = net(), net()
    builder = classifier(tmp_path).clip_gradients(norm=NORM).num_epochs(2)
    builder.build(model, head(model)).fit(batches())
    expected[0].requires_grad_(False)
    clip = lambda: clip_grad_norm_(expected[3].parameters(), NORM)  # noqa: E731
    by_hand(expected, head(expected), batches(), epochs=2, before_step=clip)
    assert_same_bits(model, expected)


def test_a_parameter_group_added_in_a_pause_is_clipped_too(tmp_path):
    """Layers that thaw in the middle of a training."""

    def head(model):
        return torch.optim.SGD(model[3].parameters(), lr=0.1)

    model, expected = net(), net()
    mine, theirs = head(model), head(expected)
    learner = classifier(tmp_path).clip_gradients(norm=NORM).build(model, mine, None, batches())
    learner.step(2)
    mine.add_param_group({"params": model[0].parameters()})
    learner.fit()

    clip = lambda: clip_grad_norm_([p for p in expected.parameters() if p.requires_grad], NORM)  # noqa: E731
    expected[0].requires_grad_(False)
    by_hand(expected, theirs, batches()[:2], before_step=clip)
    expected[0].requires_grad_(True)
    theirs.add_param_group({"params": expected[0].parameters()})
    by_hand(expected, theirs, batches()[2:], before_step=clip)
    assert_same_bits(model, expected)


# Gradients that the step made ------------------------------------------------------------------------


def left_in_grad(model, item):
    return item.loss.backward()


def by_name(model, item):
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(item.loss, parameters), strict=True))


def by_parameter(model, item):
    parameters = list(model.parameters())
    return dict(zip(parameters, torch.autograd.grad(item.loss, parameters), strict=True))


def in_order(model, item):
    return torch.autograd.grad(item.loss, list(model.parameters()))


@pytest.mark.parametrize("made", [left_in_grad, by_name, by_parameter, in_order])
def test_a_step_may_make_its_gradients_itself(made, tmp_path):
    def step(model, batch):
        item = output_of(model, batch)
        return TrainOutput(model, made(model, item), item)

    model, expected = net(), net()
    learner = quiet(tmp_path).train_step(step).num_epochs(2).build(model, adam(model))
    learner.fit(batches())
    assert_same_bits(model, by_hand(expected, adam(expected), batches(), epochs=2))
    assert isinstance(learner.output, ClassificationOutput), "metrics and people see the item"
    assert len(learner.history["train", "Loss"]) == 2 * len(SIZES)


def test_gradients_that_a_step_made_are_clipped_as_any(tmp_path):
    def step(model, batch):
        item = output_of(model, batch)
        return TrainOutput(model, by_name(model, item), item)

    model, expected = net(), net()
    quiet(tmp_path).train_step(step).clip_gradients(norm=NORM).build(model, sgd(model)).fit(batches())
    clip = lambda: clip_grad_norm_(expected.parameters(), NORM)  # noqa: E731
    assert_same_bits(model, by_hand(expected, sgd(expected), batches(), before_step=clip))


def test_a_mapping_may_leave_parameters_out_and_these_stay(tmp_path):
    def step(model, batch):
        item = output_of(model, batch)
        grads = by_name(model, item)
        return TrainOutput(model, {"3.bias": grads["3.bias"], "0.weight": None}, item)

    model, before = net(), net()
    quiet(tmp_path).train_step(step).build(model, sgd(model)).fit(batches())
    same = {
        name: torch.equal(a, b)
        for (name, a), b in zip(model.named_parameters(), before.parameters(), strict=True)
    }
    assert same == {"0.weight": True, "0.bias": True, "3.weight": True, "3.bias": False}


def test_a_tied_parameter_may_go_by_either_name(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.one, self.other = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
            self.other.weight = self.one.weight

        def train_step(self, batch):
            loss = self.other(self.one(batch[0])).square().mean()
            (grad,) = torch.autograd.grad(loss, [self.one.weight])
            return TrainOutput(self, {name: grad}, SimpleNamespace(loss=loss))

    ends = []
    for name in ("one.weight", "other.weight"):
        model = Tied()
        quiet(tmp_path / name).build(model, sgd(model)).fit(batches())
        ends.append(model.one.weight)
    assert torch.equal(*ends)
    assert not torch.equal(ends[0], Tied().one.weight)


WRONG_GRADIENTS = {
    "an unknown name": (
        lambda model, item: {"head.weight": torch.zeros(1)},
        "TrainOutput.grads names 'head.weight', which is no parameter of the model; there are: 0.weight, ",
    ),
    "a stranger": (
        lambda model, item: {nn.Parameter(torch.zeros(1)): torch.zeros(1)},
        "TrainOutput.grads names a Parameter, which is no parameter of the model; there are: 0.weight, ",
    ),
    "too few": (
        lambda model, item: in_order(model, item)[:2],
        "TrainOutput.grads holds 2 gradients, but the model has 4 parameters; give one each, in the order of "
        "model.parameters(), or a mapping by name",
    ),
    "another shape": (
        lambda model, item: {"0.bias": torch.zeros(3)},
        "TrainOutput.grads does not fit the parameter '0.bias': ",
    ),
    "the loss": (
        lambda model, item: item.loss,
        "TrainOutput.grads is of type Tensor; give None where `backward()` left them in `.grad`, a mapping",
    ),
    "none were made": (
        lambda model, item: None,
        "TrainOutput(grads=None) says that the gradients are in `.grad`, but no parameter has one; call "
        "item.loss.backward() before, or return the item",
    ),
}


@pytest.mark.parametrize("kind", WRONG_GRADIENTS)
def test_gradients_that_do_not_fit_are_told(kind, tmp_path):
    make, said = WRONG_GRADIENTS[kind]

    def step(model, batch):
        item = output_of(model, batch)
        return TrainOutput(model, make(model, item), item)

    model, before = net(), net()
    with pytest.raises(StepError) as caught:
        quiet(tmp_path).train_step(step).build(model, sgd(model)).fit(batches())
    assert caught.value.args[0].startswith(said)
    assert_same_bits(model, before)


def test_a_step_that_ran_backward_and_does_not_say_so_is_told(tmp_path):
    def step(model, batch):
        item = output_of(model, batch)
        item.loss.backward()
        return item

    model = net()
    with pytest.raises(StepError, match=r"ran backward\(\) itself .*return TrainOutput\(model, None, item\)"):
        quiet(tmp_path).train_step(step).build(model, sgd(model)).fit(batches())


def test_another_error_in_backward_is_the_users_own(tmp_path):
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("no gradient today")

    model = net()
    with pytest.raises(RuntimeError, match="no gradient today"):
        quiet(tmp_path).loss(lambda output, y: Broken.apply(output).sum()).build(model, sgd(model)).fit(
            batches()
        )


# What is left between steps --------------------------------------------------------------------------


def test_the_gradients_of_the_last_step_can_be_looked_at_in_a_pause(tmp_path):
    model, expected = net(), net()
    learner = classifier(tmp_path).build(model, sgd(model), None, batches())
    learner.step(2)
    by_hand(expected, sgd(expected), batches()[:2])
    for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


def test_a_nan_is_shown_as_one_and_not_hidden(tmp_path):
    model = net()
    data = batches()
    data[1][0][0, 0] = math.nan
    learner = classifier(tmp_path).metrics(Loss()).metric_train_numeric(GradNorm()).build(model, sgd(model))
    learner.fit(data)
    assert [math.isnan(value) for value in learner.history["train", "Loss"]] == [False, True, True, True]
    assert math.isnan(learner.history.final("Loss", "train"))
    assert math.isnan(learner.history["train", "Gradient Norm"][1])


@pytest.mark.parametrize("steps", [2, 3, 5, 6])
def test_norms_and_rates_go_on_from_a_restored_state_as_they_would_have(steps, tmp_path):
    """Inside a window, at its end, and in validation, which shows those of the last training step."""

    def learner(name):
        model = net()
        metrics = classifier(tmp_path / name).metrics(GradNorm(), LearningRate()).grads_accumulation(2)
        return metrics.build(model, sgd(model), lambda step: 0.1 / (1 + step), batches(), batches((3, 3)))

    straight = learner("straight")
    straight.step(steps)
    state = straight.capture()
    straight.fit()
    again = learner("again")
    again.restore(state)
    again.fit()
    for split in ("train", "valid"):
        for name in ("Gradient Norm", "Learning Rate"):
            assert again.history[split, name].tolist() == pytest.approx(
                straight.history[split, name].tolist(), rel=0, abs=0, nan_ok=True
            )
