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

from notebook_learner import Learner, LearnerBuilder

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


def straight(folder: Path, register: Register, turns: dict[str, Any]) -> Tensor:
    """The weights at the end of a training that nothing interrupts."""
    learner = program(folder / "straight", register, **turns)
    learner.fit()
    return weights(learner)


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
    expected = straight(tmp_path, register, turns)
    without = straight(tmp_path / "without", register, {"comes": never})
    assert not torch.equal(expected, without)  # the hook changes what is learned

    learner = program(tmp_path / "rewound", register, **turns)
    learner.step(4)
    learner.rewind(3)
    learner.step(6)
    learner.rewind(2)
    learner.rewind(4)
    learner.step(1)
    learner.fit()
    assert torch.equal(weights(learner), expected)


def test_a_hook_that_the_user_adds_at_a_pause_stays(register: Register, tmp_path: Path) -> None:
    learner = program(tmp_path / "a", register, never)
    learner.step(4)
    register(learner.model, learner.optimizer)
    learner.step(1)
    learner.rewind(3)
    learner.fit()
    assert not torch.equal(weights(learner), straight(tmp_path, register, {"comes": never}))


def test_both_of_a_fork_end_like_the_straight_run(register: Register, tmp_path: Path) -> None:
    turns = PROGRAMS["it comes and goes"]
    expected = straight(tmp_path, register, turns)
    parent = program(tmp_path / "parent", register, **turns)
    parent.step(4)
    child = parent.fork(tmp_path / "child")
    child.step(4)
    parent.step(1)
    parent.rewind(4)
    child.rewind(3)
    parent.fit()
    child.fit()
    assert torch.equal(weights(parent), expected)
    assert torch.equal(weights(child), expected)


def test_a_trial_leaves_none_behind(register: Register, tmp_path: Path) -> None:
    turns = PROGRAMS["it comes"]
    expected = straight(tmp_path, register, turns)
    learner = program(tmp_path / "tried", register, **turns)
    learner.step(2)
    learner.what_if(steps=3, lr=0.5)
    learner.fit()
    assert torch.equal(weights(learner), expected)


@pytest.mark.parametrize("place", PLACES)
def test_a_resumed_program_has_it_again_or_says_that_it_cannot_bring_it(place: str, tmp_path: Path) -> None:
    """It has it if the dict of hooks and the function are there: a file holds no code."""
    turns = PROGRAMS["it comes"]
    expected = straight(tmp_path, PLACES[place], turns)
    first = program(tmp_path / "run", PLACES[place], **turns)
    first.step(4)
    first.save()
    notices = Notices()
    resumed = program(tmp_path / "run", PLACES[place], **turns, resume=True, display=notices)
    resumed.fit()
    there = "optimizer" in place
    assert torch.equal(weights(resumed), expected) is there
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
    expected = straight(tmp_path, register, turns)
    first = program(tmp_path / "run", register, **turns)
    first.step(4)
    first.save()
    notices = Notices()
    resumed = program(tmp_path / "run", register, **turns, resume=True, display=notices)
    resumed.fit()
    assert torch.equal(weights(resumed), expected)
    assert not any("hook" in text for text in notices.texts), notices.texts


def test_the_table_names_it(tmp_path: Path) -> None:
    learner = program(tmp_path / "run", PLACES["forward"], lambda call: call == 3)
    learner.step(4)
    row = learner.carried["model.0._forward_hooks"]
    assert (row.kind, row.kept) == ("hooks", "by value")


def of_a_library(module: str, function: Callable[..., Any]) -> Callable[..., Any]:
    function.__module__ = module
    return function


@pytest.mark.parametrize(
    ("module", "stays"),
    [
        ("notebook_learner.breakpoint.conditions", True),
        ("torch.distributed.fsdp", True),
        ("torch.nn.utils.prune", False),
        ("torchvision.ops", False),
    ],
)
def test_hooks_by_which_a_library_runs_or_watches_the_model_stay(
    module: str, stays: bool, tmp_path: Path
) -> None:
    def register(model: Any, optimizer: Any) -> Any:
        return model[0].register_forward_hook(of_a_library(module, lambda *_: None))

    learner = program(tmp_path / "run", register, lambda call: call == 3)
    learner.step(4)
    learner.rewind(3)
    assert bool(learner.model[0]._forward_hooks) is stays  # type: ignore[index, union-attr]


def test_it_comes_back_to_its_place_before_the_hook_of_a_library(tmp_path: Path) -> None:
    def register(model: Any, optimizer: Any) -> Any:
        handle = model[0].register_forward_hook(lambda module, given, made: made * 2)
        added = of_a_library("torch.distributed.fsdp", lambda module, given, made: made + 1)
        model[0].register_forward_hook(added)
        return handle

    turns = PROGRAMS["the program's goes"]
    expected = straight(tmp_path, register, turns)
    learner = program(tmp_path / "rewound", register, **turns)
    learner.step(4)
    learner.rewind(3)
    learner.fit()
    assert torch.equal(weights(learner), expected)


@pytest.mark.parametrize("turns", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_verify_finds_no_difference_in_a_hook_that_a_step_makes_anew(
    register: Register, turns: dict[str, Any], tmp_path: Path
) -> None:
    learner = program(tmp_path / "run", register, **turns)
    learner.step(1)
    assert learner.verify(steps=6).exact
    learner.fit()
    assert torch.equal(weights(learner), straight(tmp_path, register, turns))


@pytest.mark.parametrize("place", PLACES)
def test_the_handle_of_a_hook_that_cannot_come_removes_nothing(place: str, tmp_path: Path) -> None:
    turns = PROGRAMS["it comes and goes"]
    first = program(tmp_path / "run", PLACES[place], **turns)
    first.step(4)
    first.save()
    notices = Notices()
    resumed = program(tmp_path / "run", PLACES[place], **turns, resume=True, display=notices)
    resumed.fit()  # a step calls `handles.pop().remove()`
    assert resumed.status == "finished"
    if "optimizer" in place:  # its function is there: one of the module
        assert torch.equal(weights(resumed), straight(tmp_path, PLACES[place], turns))
    else:
        assert any("_hooks (hooks), and this program has no place" in text for text in notices.texts)
