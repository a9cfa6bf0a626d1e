"""A hook that a step registers or removes comes and goes with the steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from carried_support import Notices, weights
from test_what_steps_reach import plain_step
from torch import Tensor, nn

from notebook_learner import Learner, LearnerBuilder, breakpoint

Register = Callable[[Any, Any], Any]
"""Registers a hook that changes what is learned, on a model or its optimizer, and returns its handle."""


def halve_gradients(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


def halve_weights(optimizer: Any, *_: Any) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.5)


def halve_gradient(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


PLACES: dict[str, Register] = {
    "forward": lambda model, _: model[0].register_forward_hook(lambda module, given, made: made * 2),
    "before the forward": lambda model, _: model[2].register_forward_pre_hook(
        lambda module, given, named: ((given[0] * 2,), named), with_kwargs=True
    ),
    "backward": lambda model, _: model[2].register_full_backward_hook(
        lambda module, to, of: tuple(None if each is None else each * 2 for each in to)
    ),
    "before the backward": lambda model, _: model[2].register_full_backward_pre_hook(
        lambda module, of: tuple(each * 2 for each in of)
    ),
    "parameter": lambda model, _: model[0].weight.register_hook(lambda gradient: gradient * 2),
    "accumulated": lambda model, _: model[0].weight.register_post_accumulate_grad_hook(halve_gradient),
    "before the optimizer": lambda _, optimizer: optimizer.register_step_pre_hook(halve_gradients),
    "after the optimizer": lambda _, optimizer: optimizer.register_step_post_hook(halve_weights),
}


def never(call: int) -> bool:
    return False


def program(
    folder: Path,
    register: Register,
    comes: Callable[[int], bool],
    goes: Callable[[int], bool] = never,
    brought: bool = False,
    resume: bool = False,
    display: Any = "silent",
) -> Learner:
    """A training whose steps register a hook in some calls and remove it in others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    calls = 0
    handles = [register(model, optimizer)] if brought else []

    def step(model: Any, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if comes(calls):
            handles.append(register(model, optimizer))
        if goes(calls) and handles:
            handles.pop().remove()
        return plain_step(model, batch)

    data = [(torch.randn(5, 4), torch.randint(0, 2, (5,))) for _ in range(5)]
    builder = LearnerBuilder(folder).train_step(step).metrics().num_epochs(2).renderer(display)
    builder.with_file_checkpointer()
    if resume:
        builder.resume()
    return builder.build(model, optimizer, None, data)


@pytest.fixture(params=PLACES)
def register(request: pytest.FixtureRequest) -> Register:
    return PLACES[request.param]


PROGRAMS: dict[str, dict[str, Any]] = {
    "it comes": {"comes": lambda call: call == 3},
    "it comes and goes": {"comes": lambda call: call == 3, "goes": lambda call: call in (6, 12)},
    "one more each time": {"comes": lambda call: call % 3 == 0},
    "the program's goes": {"comes": never, "goes": lambda call: call == 3, "brought": True},
}


@pytest.mark.parametrize("turns", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_rewind_takes_it_back_and_a_replay_brings_it_again(
    register: Register, turns: dict[str, Any], tmp_path: Path
) -> None:
    expected = program(tmp_path / "straight", register, **turns)
    expected.fit()
    without = program(tmp_path / "without", register, never)
    without.fit()
    assert not torch.equal(weights(expected), weights(without))  # the hook changes what is learned

    learner = program(tmp_path / "rewound", register, **turns)
    learner.step(4)
    learner.rewind(3)
    learner.step(6)
    learner.rewind(2)
    learner.rewind(4)
    learner.step(1)
    learner.fit()
    assert torch.equal(weights(learner), weights(expected))


def test_a_hook_that_the_user_adds_at_a_pause_stays(register: Register, tmp_path: Path) -> None:
    learner = program(tmp_path / "a", register, never)
    learner.step(4)
    register(learner.model, learner.optimizer)
    learner.step(1)
    learner.rewind(3)
    learner.fit()
    plain = program(tmp_path / "b", register, never)
    plain.fit()
    assert not torch.equal(weights(learner), weights(plain))


def test_both_of_a_fork_end_like_the_straight_run(register: Register, tmp_path: Path) -> None:
    turns = PROGRAMS["it comes and goes"]
    expected = program(tmp_path / "straight", register, **turns)
    expected.fit()
    parent = program(tmp_path / "parent", register, **turns)
    parent.step(4)
    child = parent.fork(tmp_path / "child")
    child.step(4)
    parent.step(1)
    parent.rewind(4)
    child.rewind(3)
    parent.fit()
    child.fit()
    assert torch.equal(weights(parent), weights(expected))
    assert torch.equal(weights(child), weights(expected))


def test_a_trial_leaves_none_behind(register: Register, tmp_path: Path) -> None:
    turns = PROGRAMS["it comes"]
    expected = program(tmp_path / "straight", register, **turns)
    expected.fit()
    learner = program(tmp_path / "tried", register, **turns)
    learner.step(2)
    learner.what_if(steps=3, lr=0.5)
    learner.fit()
    assert torch.equal(weights(learner), weights(expected))


@pytest.mark.parametrize("place", PLACES)
def test_a_resumed_program_has_it_again_or_says_that_it_cannot_bring_it(place: str, tmp_path: Path) -> None:
    """It has it if the dict of hooks and the function are there: a file holds no code."""
    turns = PROGRAMS["it comes"]
    expected = program(tmp_path / "straight", PLACES[place], **turns)
    expected.fit()
    first = program(tmp_path / "run", PLACES[place], **turns)
    first.step(4)
    first.save()
    notices = Notices()
    resumed = program(tmp_path / "run", PLACES[place], **turns, resume=True, display=notices)
    resumed.fit()
    there = "optimizer" in place
    assert torch.equal(weights(resumed), weights(expected)) is there
    assert any("_hooks (hooks), and this program has no place" in text for text in notices.texts) is not there


def test_hooks_that_the_step_removes_again_are_not_named(register: Register, tmp_path: Path) -> None:
    notices = Notices()
    learner = program(tmp_path / "run", register, lambda call: True, lambda call: True, display=notices)
    learner.step(4)
    learner.rewind(2)
    learner.save()
    program(
        tmp_path / "run", register, lambda call: True, lambda call: True, resume=True, display=notices
    ).step(1)
    assert not any("hook" in text for text in notices.texts), notices.texts


def test_a_resumed_program_brings_its_own_hooks_again(register: Register, tmp_path: Path) -> None:
    turns = PROGRAMS["the program's goes"]
    expected = program(tmp_path / "straight", register, **turns)
    expected.fit()
    first = program(tmp_path / "run", register, **turns)
    first.step(4)
    first.save()
    notices = Notices()
    resumed = program(tmp_path / "run", register, **turns, resume=True, display=notices)
    resumed.fit()
    assert torch.equal(weights(resumed), weights(expected))
    assert not any("hook" in text for text in notices.texts), notices.texts


def test_the_table_names_it(tmp_path: Path) -> None:
    learner = program(tmp_path / "run", PLACES["forward"], lambda call: call == 3)
    learner.step(4)
    row = learner.carried["model.0._forward_hooks"]
    assert (row.kind, row.kept) == ("hooks", "by value")


def test_our_own_hooks_stay_after_a_rewind(tmp_path: Path) -> None:
    """A breakpoint that watches the model's calls does so by hooks: a rewind is not about them."""
    learner = program(tmp_path / "run", PLACES["forward"], lambda call: call == 3)
    learner.step(2)
    learner.breakpoints.add(breakpoint.DeadUnits())
    learner.step(2)
    held = len(learner.model[0]._forward_hooks)  # type: ignore[index, union-attr]
    learner.rewind(2)
    assert len(learner.model[0]._forward_hooks) == held - 1  # type: ignore[index, union-attr]
