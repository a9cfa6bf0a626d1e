"""What a step may hand back: the outputs of this package, anything with `.loss`, and what is refused."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, fields
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from builder_support import SIZES, assert_same_bits, batches, by_hand, net, quiet, sgd
from torch import nn

from notebook_learner import (
    ClassificationOutput,
    LossError,
    MultiLabelClassificationOutput,
    OutputError,
    RegressionOutput,
    SequenceOutput,
    TrainOutput,
)
from notebook_learner.metric import Accuracy, Loss


def scores_and_loss(model, batch):
    scores = model(batch[0])
    return scores, F.cross_entropy(scores, batch[1])


# Anything with a loss --------------------------------------------------------------------------------


class ModelOutput(OrderedDict):
    """As Hugging Face's: a dataclass that is an ordered dict too."""

    def __post_init__(self):
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


@dataclass
class SequenceClassifierOutput(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None


class TensorOfOnesOwn(torch.Tensor):
    """A library's subclass of torch's tensor."""


Pair = namedtuple("Pair", ["loss", "output"])

FORMS = {
    "a bare loss": lambda scores, loss, y: loss,
    "a loss of a subclass": lambda scores, loss, y: loss.as_subclass(TensorOfOnesOwn),
    "a field of a subclass": lambda scores, loss, y: SimpleNamespace(loss=loss.as_subclass(TensorOfOnesOwn)),
    "a namespace": lambda scores, loss, y: SimpleNamespace(loss=loss),
    "a named tuple": lambda scores, loss, y: Pair(loss, scores),
    "Hugging Face's": lambda scores, loss, y: SequenceClassifierOutput(loss=loss, logits=scores),
    "a classification": lambda scores, loss, y: ClassificationOutput(loss, scores, y),
    "a regression": lambda scores, loss, y: RegressionOutput(loss, scores, y),
    "labels": lambda scores, loss, y: MultiLabelClassificationOutput(loss, scores, y),
}


@pytest.mark.parametrize("form", FORMS)
def test_anything_with_a_loss_trains_and_is_measured(form, tmp_path):
    def step(model, batch):
        scores, loss = scores_and_loss(model, batch)
        return FORMS[form](scores, loss, batch[1])

    model, expected = net(), net()
    learner = quiet(tmp_path).train_step(step).valid_step(step).build(model, sgd(model))
    learner.fit(batches(), batches())
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))
    assert learner.history.weights("Loss", "train").tolist() == list(SIZES)
    assert learner.history.weights("Loss", "valid").tolist() == list(SIZES)


def test_the_last_steps_output_is_at_hand(tmp_path):
    def step(model, batch):
        scores, loss = scores_and_loss(model, batch)
        return SequenceClassifierOutput(loss=loss, logits=scores)

    model = net()
    learner = quiet(tmp_path).train_step(step).build(model, sgd(model), None, batches())
    learner.step(2)
    assert type(learner.output) is SequenceClassifierOutput
    assert learner.output["logits"].shape == (SIZES[1], 3)
    assert learner.output.loss.item() == learner.history["train", "Loss"][1]


# The outputs of this package -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [ClassificationOutput, RegressionOutput, MultiLabelClassificationOutput], ids=lambda k: k.__name__
)
def test_an_output_weighs_as_many_samples_as_it_has_targets(kind):
    assert kind(torch.tensor(0.5), torch.zeros(7, 3), torch.zeros(7)).weight == 7


def test_a_sequence_output_weighs_its_tokens_without_the_padding():
    targets = torch.tensor([[1, 2, -100], [0, -100, -100]])
    output = SequenceOutput(torch.tensor(0.5), torch.zeros(2, 3, 5), targets)
    assert int(output.weight) == 3
    assert int(SequenceOutput(output.loss, output.logits, targets, ignore_index=0).weight) == 5
    assert SequenceOutput(output.loss, output.logits, targets, ignore_index=None).weight == 6


@pytest.mark.parametrize("places", [(4,), (3, 4)], ids=["a line", "a page of lines"])
def test_a_sequence_output_has_its_classes_where_metrics_look_for_them(places):
    logits = torch.randn(2, *places, 5)
    targets = torch.randint(5, (2, *places))
    output = SequenceOutput(torch.tensor(0.5), logits, targets).output
    assert output.shape == (2, 5, *places)
    assert torch.equal(output, torch.stack([logits[..., label] for label in range(5)], dim=1))
    assert F.cross_entropy(output, targets) == pytest.approx(
        float(F.cross_entropy(logits.flatten(0, -2), targets.flatten()))
    )


def test_sequences_are_measured_by_their_tokens(tmp_path):
    def step(model, batch):
        logits = model(batch[0])
        loss = F.cross_entropy(logits.movedim(-1, 1), batch[1])
        return SequenceOutput(loss, logits, batch[1])

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))
    tokens = torch.randint(0, 7, (3, 2, 5))
    targets = torch.randint(0, 3, (3, 2, 5))
    targets[0, :, 1:] = -100  # two tokens in the first batch, ten in the others
    builder = quiet(tmp_path).metrics(Loss(), Accuracy(pad_token=-100)).train_step(step)
    learner = builder.build(model, sgd(model, lr=0.0))
    learner.fit(list(zip(tokens, targets, strict=True)))

    logits, flat = model(tokens).reshape(-1, 3), targets.reshape(-1)
    real = flat != -100
    assert learner.history.weights("Loss", "train").tolist() == [2, 10, 10]
    assert learner.history.final("Loss", "train") == pytest.approx(F.cross_entropy(logits, flat).item())
    right = (logits.argmax(1) == flat)[real].float().mean().item()
    assert learner.history.final("Accuracy", "train") == pytest.approx(100 * right)


def test_an_output_may_say_itself_what_it_weighs(tmp_path):
    def step(model, batch):
        return SimpleNamespace(loss=scores_and_loss(model, batch)[1], weight=5)

    model = net()
    learner = quiet(tmp_path).train_step(step).build(model, sgd(model))
    learner.fit(batches())
    assert learner.history.weights("Loss", "train").tolist() == [5] * len(SIZES)


@pytest.mark.parametrize(
    "made", [lambda loss, scores: {"loss": loss, "output": scores}, lambda loss, scores: (loss, scores)]
)
def test_a_dict_and_a_pair_are_understood(tmp_path, made):
    def step(model, batch):
        scores, loss = scores_and_loss(model, batch)
        return made(loss, scores)

    model, plain = net(), net()
    learner = quiet(tmp_path / "one").train_step(step).build(model, sgd(model))
    learner.fit(batches())
    other = quiet(tmp_path / "two").train_step(lambda model, batch: scores_and_loss(model, batch)[1])
    other.build(plain, sgd(plain)).fit(batches())
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    assert learner.output.output.requires_grad


# What is no loss -------------------------------------------------------------------------------------

NO_LOSS = {
    "nothing": (
        lambda scores, loss: None,
        "train_step returned None; end it with `return ClassificationOutput(loss, output, targets)`",
    ),
    "a dict": (
        lambda scores, loss: {"cost": loss},
        "train_step returned a dict without the key 'loss'; return {'loss': loss, ...}, or "
        "ClassificationOutput(loss, output, targets)",
    ),
    "a tuple": (
        lambda scores, loss: (scores, loss),
        "train_step returned a tuple without a `.loss`; return ClassificationOutput(loss, output, targets), "
        "any object with `.loss`, or TrainOutput(model, grads, item)",
    ),
    "a number": (
        lambda scores, loss: SimpleNamespace(loss=loss.item()),
        "the loss is a float (1.",
    ),
    "a loss per sample": (
        lambda scores, loss: scores.sum(1),
        "the loss has shape (8,), but backward needs a scalar; reduce it with `.mean()`, or leave out "
        "`reduction='none'`",
    ),
    "a detached loss": (
        lambda scores, loss: loss.detach(),
        "the loss does not require a gradient: no parameter that trains took part in it; look for ",
    ),
    "Hugging Face's without labels": (
        lambda scores, loss: SequenceClassifierOutput(logits=scores),
        "the `.loss` of the SequenceClassifierOutput that train_step returned is None; compute it in the "
        "step (a Hugging Face model does so itself where the batch has `labels`)",
    ),
}


@pytest.mark.parametrize("form", NO_LOSS)
def test_what_is_no_loss_is_told(form, tmp_path):
    make, said = NO_LOSS[form]
    model, before = net(), net()
    learner = quiet(tmp_path).train_step(lambda m, b: make(*scores_and_loss(m, b))).build(model, sgd(model))
    with pytest.raises(LossError) as caught:
        learner.fit(batches())
    assert caught.value.args[0].startswith(said)
    assert learner.position.step == 0
    assert_same_bits(model, before)


def test_a_loss_under_no_grad_is_told(tmp_path):
    @torch.no_grad()
    def step(model, batch):
        return scores_and_loss(model, batch)[1]

    model = net()
    with pytest.raises(LossError, match=r"does not require a gradient.*torch\.no_grad\(\)"):
        quiet(tmp_path).train_step(step).build(model, sgd(model)).fit(batches())


def test_an_output_that_a_metric_cannot_use_is_told(tmp_path):
    def step(model, batch):
        return scores_and_loss(model, batch)[1]

    model, before = net(), net()
    learner = quiet(tmp_path).metrics(Accuracy()).train_step(step).build(model, sgd(model))
    with pytest.raises(OutputError, match="Accuracy needs `output` and `targets`"):
        learner.fit(batches())
    assert_same_bits(model, before)


def test_gradients_made_by_the_step_need_no_differentiable_loss(tmp_path):
    def step(model, batch):
        loss = scores_and_loss(model, batch)[1]
        loss.backward()
        return TrainOutput(model, None, SimpleNamespace(loss=loss.detach()))

    model, expected = net(), net()
    quiet(tmp_path).train_step(step).build(model, sgd(model)).fit(batches())
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))


def test_validation_asks_for_no_loss_where_no_metric_does(tmp_path):
    def valid(model, batch):
        return SimpleNamespace(output=model(batch[0]), targets=batch[1])

    model = net()
    builder = quiet(tmp_path).metric_valid(Accuracy()).valid_step(valid)
    learner = builder.train_step(lambda m, b: scores_and_loss(m, b)[1]).build(model, sgd(model))
    learner.fit(batches(), batches())
    assert 0 <= learner.history.final("Accuracy", "valid") <= 100
