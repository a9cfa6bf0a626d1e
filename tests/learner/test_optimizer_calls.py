"""The learner leaves out the profiler's labels around the optimizer, and nothing else.

Who listens is told, and an optimizer that does something of its own does it.
"""

from __future__ import annotations

import copy
import functools
from contextlib import ExitStack

import pytest
import torch
from builder_support import assert_same_bits, batches, by_hand, classifier, net
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from notebook_learner.step import update as optimizer_calls

STEPS = len(batches())
OPTIMIZERS = {
    "Adam": lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=1e-3),
    "fused AdamW": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "foreach SGD": lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9, foreach=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=1e-3),
    "ASGD": lambda params: torch.optim.ASGD(params, lr=1e-3),
}


class Counting(torch.optim.SGD):
    """Does something of its own in both calls."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.called = []

    def step(self, closure=None):
        self.called.append("step")
        return super().step(closure)

    def zero_grad(self, set_to_none=True):
        self.called.append("zero_grad")
        super().zero_grad(set_to_none)


def sgd_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(tmp_path, optimizer, model):
    classifier(tmp_path).build(model, optimizer).fit(batches())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_bits_are_those_of_the_optimizers_own_calls(make, tmp_path):
    model, expected = net(), net()
    train(tmp_path, make(model.parameters()), model)
    by_hand(expected, make(expected.parameters()), batches(), epochs=1)
    assert_same_bits(model, expected)


def test_the_label_is_left_out_where_nobody_listens(tmp_path, monkeypatch):
    labels = []
    plain = torch.autograd.profiler.record_function
    monkeypatch.setattr(
        torch.autograd.profiler, "record_function", lambda name: labels.append(name) or plain(name)
    )
    model = net()
    train(tmp_path, sgd_of(model), model)
    assert not [label for label in labels if label.startswith("Optimizer")]
    sgd_of(model).step()
    assert labels == ["Optimizer.step#SGD.step"]


def test_a_profiler_sees_every_step_and_every_clearing(tmp_path):
    model = net()
    learner = classifier(tmp_path).build(model, sgd_of(model))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        learner.fit(batches())
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["Optimizer.step#SGD.step"] == STEPS
    assert counts["Optimizer.zero_grad#SGD.zero_grad"] == STEPS


def test_hooks_of_an_optimizer_are_called_at_every_step(tmp_path):
    model, told = net(), []
    optimizer = sgd_of(model)
    optimizer.register_step_pre_hook(lambda *_: told.append("before"))
    optimizer.register_step_post_hook(lambda *_: told.append("after"))
    train(tmp_path, optimizer, model)
    assert told == ["before", "after"] * STEPS


def test_a_hook_that_comes_in_the_middle_is_called_from_then_on(tmp_path):
    model, told = net(), []
    optimizer = sgd_of(model)
    learner = classifier(tmp_path).build(model, optimizer, None, batches())
    learner.step(1)
    optimizer.register_step_post_hook(lambda *_: told.append(1))
    learner.step(2)
    assert told == [1, 1]


def test_hooks_for_all_optimizers_are_called_at_every_step(tmp_path):
    model, told = net(), []
    with ExitStack() as hooks:
        hooks.callback(register_optimizer_step_pre_hook(lambda *_: told.append("before")).remove)
        hooks.callback(register_optimizer_step_post_hook(lambda *_: told.append("after")).remove)
        train(tmp_path, sgd_of(model), model)
    assert told == ["before", "after"] * STEPS


def test_a_class_with_calls_of_its_own_is_asked(tmp_path):
    model = net()
    optimizer = Counting(model.parameters())
    train(tmp_path, optimizer, model)
    assert optimizer.called == ["zero_grad", "step"] * STEPS


def test_calls_that_were_put_into_an_optimizer_are_made(tmp_path):
    model, called = net(), []
    optimizer = sgd_of(model)
    for name in ("step", "zero_grad"):
        plain = getattr(optimizer, name)
        setattr(optimizer, name, lambda plain=plain, name=name: (called.append(name), plain()))
    train(tmp_path, optimizer, model)
    assert called == ["zero_grad", "step"] * STEPS


def test_a_function_that_was_put_around_a_classs_step_is_called(tmp_path, monkeypatch):
    model, called = net(), []
    optimizer = sgd_of(model)
    plain = torch.optim.SGD.step

    @functools.wraps(plain)  # which takes over the marks that torch leaves at its own
    def around(self, closure=None):
        called.append(1)
        return plain(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", around)
    train(tmp_path, optimizer, model)
    assert len(called) == STEPS


def test_a_schedule_of_torch_knows_that_the_optimizer_stepped(tmp_path):
    """It warns otherwise, and a warning is an error here."""
    model = net()
    optimizer = sgd_of(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1)
    classifier(tmp_path).build(model, optimizer, schedule).fit(batches())
    assert schedule.last_epoch == STEPS


def test_a_copied_optimizer_is_one_like_any_other():
    model = net()
    optimizer = copy.deepcopy(sgd_of(model))
    (parameter, *_) = optimizer.param_groups[0]["params"]
    parameter.grad = torch.ones_like(parameter)
    before = parameter.detach().clone()
    optimizer_calls.step(optimizer)
    assert torch.allclose(parameter.detach(), before - 0.1)
    optimizer_calls.clear(optimizer)
    assert parameter.grad is None
