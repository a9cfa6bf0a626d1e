"""A build that fails leaves everything of the user's as it was: the corrected cell starts from there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builder_support import adam, batches, by_hand, classifier, net, quiet, sgd
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, StepLR

from notebook_learner import ConfigurationError, MemoryCheckpointer
from notebook_learner.metric import Accuracy, Loss


class Replacing(nn.Module):
    """As on a device whose tensors cannot take the place of the CPU's: a move makes new ones."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.register_buffer("scale", torch.ones(2))

    def to(self, *args, **kwargs):
        self.weight.data = torch.zeros(2, 2)
        self.weight = nn.Parameter(torch.zeros(2, 2))
        self.scale = torch.zeros(2)
        return self

    def train_step(self, batch):
        return (batch @ self.weight * self.scale).sum()


def failing(parameters):
    raise ValueError("no")


def test_the_model_is_put_back_where_it_was(tmp_path):
    model = Replacing()
    weight, scale, memory = model.weight, model.scale, model.weight.data_ptr()
    with pytest.raises(ConfigurationError, match="the optimizer factory failed"):
        quiet(tmp_path).build(model, failing)
    assert model.weight is weight
    assert model.scale is scale
    assert weight.data_ptr() == memory
    assert torch.equal(weight, torch.ones(2, 2))


def test_a_model_is_not_moved_for_a_configuration_that_is_wrong_already(tmp_path):
    class Watched(nn.Linear):
        def to(self, *args, **kwargs):
            raise AssertionError("moved")

    with pytest.raises(ConfigurationError, match="num_epochs is 0"):
        quiet(tmp_path).loss(F.mse_loss).num_epochs(0).build(Watched(2, 2), torch.optim.SGD)


@pytest.mark.parametrize(
    "rate",
    [0.9, lambda step: 0.9, lambda optimizer: OneCycleLR(optimizer, max_lr=0.9, total_steps=10)],
    ids=["float", "function", "factory"],
)
@pytest.mark.parametrize("tensor", [False, True], ids=["number", "tensor rate"])
def test_the_optimizer_keeps_its_rate_and_no_scheduler_holds_on_to_it(rate, tensor, tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), torch.tensor(0.25) if tensor else 0.25, momentum=0.5)
    step, groups = optimizer.step.__func__, [dict(group) for group in optimizer.param_groups]
    with pytest.raises(ConfigurationError, match="num_epochs"):
        classifier(tmp_path).num_epochs(0).build(model, optimizer, rate)
    assert optimizer.step.__func__ is step
    assert "step" not in vars(optimizer)
    assert [dict(group) for group in optimizer.param_groups] == groups
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_the_optimizers_state_is_put_back(tmp_path):
    model = net()
    optimizer = adam(model)
    by_hand(model, optimizer, batches())
    before = {p: dict(values) for p, values in optimizer.state.items()}
    with pytest.raises(ConfigurationError, match="the scheduler is of type str"):
        classifier(tmp_path).build(model, optimizer, "cosine")
    assert {p: dict(values) for p, values in optimizer.state.items()} == before


def test_a_scheduler_of_the_users_own_is_not_stepped(tmp_path):
    model = net()
    optimizer = sgd(model)
    scheduler = StepLR(optimizer, 1)
    before = scheduler.state_dict()
    with pytest.raises(ConfigurationError):
        classifier(tmp_path).num_epochs(0).build(model, optimizer, scheduler)
    assert scheduler.state_dict() == before


def test_the_forward_is_not_compiled(tmp_path):
    class NoCopy(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("this one cannot")

    model = NoCopy(2, 2)
    with pytest.raises(ConfigurationError, match=r"ema\(0.9\) keeps a copy of the model, which cannot"):
        quiet(tmp_path).loss(F.mse_loss).compile(backend="eager").ema(0.9).build(model, sgd(model))
    assert model._compiled_call_impl is None


def test_metrics_belong_to_nobody_yet(tmp_path):
    accuracy = Accuracy()
    with pytest.raises(ConfigurationError):
        classifier(tmp_path).metrics(accuracy).num_epochs(0).build(net(), torch.optim.SGD)
    assert not hasattr(accuracy, "context")


def test_no_generator_is_moved_and_nothing_is_written(tmp_path):
    before = torch.get_rng_state()
    with pytest.raises(ConfigurationError):
        classifier(tmp_path / "run").seed(3).num_epochs(0).build(nn.Linear, torch.optim.SGD)
    assert torch.equal(torch.get_rng_state(), before)
    assert not (tmp_path / "run").exists()


def test_the_corrected_build_trains_as_if_nothing_had_been(tmp_path):
    def factory(optimizer):
        return OneCycleLR(optimizer, max_lr=0.5, total_steps=8)

    model, expected = net(), net()
    optimizer = sgd(model, momentum=0.9)
    builder = classifier(tmp_path).grads_accumulation(0)
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            builder.build(model, optimizer, factory)
    builder.grads_accumulation(1).num_epochs(2).build(model, optimizer, factory).fit(batches())

    reference = sgd(expected, momentum=0.9)
    scheduler = factory(reference)
    assert isinstance(scheduler, LRScheduler)
    by_hand(expected, reference, batches(), epochs=2, after_step=scheduler.step)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


def test_a_checkpoint_of_another_model_leaves_this_one_alone(tmp_path):
    kept = MemoryCheckpointer()
    other = nn.Linear(6, 3)
    classifier(tmp_path / "a").with_checkpointer(kept).build(other, sgd(other)).fit(batches())
    model, untouched = net(), net()
    with pytest.raises(Exception, match="the state belongs to another model"):
        classifier(tmp_path / "b").with_checkpointer(kept).checkpoint(1).build(model, sgd(model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))


def test_a_checkpoint_of_another_optimizer_leaves_the_model_alone(tmp_path):
    kept = MemoryCheckpointer()
    other = net(seed=5)
    classifier(tmp_path / "a").with_checkpointer(kept).metrics(Loss()).build(other, sgd(other)).fit(batches())
    model, untouched = net(), net()
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    with pytest.raises(Exception, match="build the optimizer over the same parameter groups"):
        classifier(tmp_path / "b").with_checkpointer(kept).checkpoint(1).build(
            model, torch.optim.SGD(groups, lr=0.1)
        )
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), untouched.parameters(), strict=True))
