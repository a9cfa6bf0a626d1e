"""Random walks over verbs and changes of the shape, compared with a loop by hand that makes the same ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes_support import PAIRS, Net, bits, made, mse, one_thread, optimizer_of, same
from torch import Tensor, nn
from torch.optim import SGD, Adam

from notebook_learner import Learner
from notebook_learner.errors import StateError

STEPS = 2 * len(PAIRS)


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


def trained(run: Any) -> list[nn.Parameter]:
    return [each for each in run.model.parameters() if each.requires_grad]


def in_a_group(run: Any) -> set[int]:
    return {id(each) for group in run.optimizer.param_groups for each in group["params"]}


def unfreeze_next(run: Any) -> None:
    """One layer more trains each time."""
    frozen = [each for each in run.model.parameters() if not each.requires_grad][:2]
    for each in frozen:
        each.requires_grad_(True)
    if new := [each for each in frozen if id(each) not in in_a_group(run)]:
        run.optimizer.add_param_group({"params": new, "lr": 0.01})


def deepen(run: Any) -> None:
    run.model.head = nn.Sequential(run.model.head, nn.Linear(1, 1))
    run.optimizer.add_param_group({"params": run.model.head[1].parameters()})


def to_sgd(run: Any) -> None:
    run.optimizer = SGD(trained(run), lr=0.05, momentum=0.9)


def to_adam(run: Any) -> None:
    run.optimizer = Adam(trained(run), lr=0.02)


def freeze_head(run: Any) -> None:
    next(iter(run.model.head.parameters())).requires_grad_(False)


CHANGES: list[Callable[[Any], None]] = [unfreeze_next, deepen, to_sgd, to_adam, freeze_head]
Plan = tuple[tuple[int, Callable[[Any], None]], ...]


class Place(NamedTuple):
    """Where a learner should stand: its step, the changes so far, and those to come."""

    step: int
    log: Plan
    coming: Plan


def straight(plan: Plan, steps: int) -> list[Tensor]:
    torch.manual_seed(3)
    model = Net()
    run = SimpleNamespace(model=model, optimizer=optimizer_of(model))
    torch.manual_seed(7)
    model.train()
    for step in range(steps + 1):
        for at, change in plan:
            if at == step:
                change(run)
        if step < steps:
            x, y = PAIRS[step % len(PAIRS)]
            run.optimizer.zero_grad()
            mse(model(x), y).backward()
            run.optimizer.step()
    return bits(model)


class Walk:
    def __init__(self, directory: Path) -> None:
        self.directory, self.forks = directory, 0
        self.learner: Learner = made(directory / "0", *CHANGES)
        self.at = Place(0, (), ())
        self.captured: list[tuple[Any, Place]] = []
        self.saved: tuple[str, Place] | None = None
        self.planned = False
        """Whether this learner has made or dropped changes, so that it knows what is to come."""

    def check(self) -> None:
        assert self.learner.position.iteration == self.at.step
        assert same(bits(self.learner.model), straight(self.at.log, self.at.step))

    def step(self, count: int) -> None:
        step = min(self.at.step + count, STEPS)
        if step > self.at.step:
            self.learner.step(step - self.at.step)
            self._move(step, (*self.at.log, *self.at.coming))

    def rewind(self, count: int) -> None:
        step = max(self.at.step - count, 0)
        if step < self.at.step:
            try:
                self.learner.rewind(to=step)
            except StateError as refused:  # of a fork, or of another course, this lies too far back
                assert "the earliest place to go back to is" in str(refused)
            else:
                self._move(step, (*self.at.log, *self.at.coming))

    def reshape(self, number: int) -> None:
        if self.at.step < STEPS:
            change = CHANGES[number % len(CHANGES)]
            self.learner.reshape(change)
            self.at, self.planned = Place(self.at.step, (*self.at.log, (self.at.step, change)), ()), True

    def drop(self, _: int) -> None:
        self.learner.reshape(None)
        self.at, self.planned = self.at._replace(coming=()), True

    def capture(self, _: int) -> None:
        self.captured.append((self.learner.capture(), self.at))

    def restore(self, number: int) -> None:
        if self.captured:
            state, there = self.captured[number % len(self.captured)]
            self.learner.restore(state)
            self._restored(there)

    def save(self, _: int) -> None:
        if self.at.step % len(PAIRS):  # at an epoch's end the run saves by itself, under the same label
            self.saved = self.learner.save(), self.at

    def restore_saved(self, _: int) -> None:
        if self.saved is not None:
            label, there = self.saved
            self.learner.restore(label)
            self._restored(there)

    def fork(self, _: int) -> None:
        self.forks += 1
        self.learner = self.learner.fork(self.directory / str(self.forks))
        self.captured, self.saved = [], None
        self.planned = bool(self.at.log or self.at.coming)

    def resume(self, _: int) -> None:
        """The process ends here, and another one begins."""
        if self.at.step:
            self.learner.save()
            torch.manual_seed(11)
            self.learner = made(self.directory / str(self.forks), *CHANGES, resume=True)
            self.captured, self.saved = [], None
            self.planned = bool(self.at.log or self.at.coming)

    def what_if(self, number: int) -> None:
        if self.at.step < STEPS:
            self.learner.what_if(2, then=CHANGES[number % len(CHANGES)])

    def _move(self, step: int, plan: Plan) -> None:
        self.at = Place(
            step, tuple(each for each in plan if each[0] <= step), tuple(p for p in plan if p[0] > step)
        )

    def _restored(self, there: Place) -> None:
        plan = (*self.at.log, *self.at.coming)
        later = plan[len(there.log) :]
        on_its_way = self.at.log[: len(there.log)] == there.log and all(at >= there.step for at, _ in later)
        self.at = Place(there.step, there.log, later) if on_its_way and self.planned else there
        self.planned |= bool(there.log or there.coming)


VERBS = [
    "step",
    "step",
    "rewind",
    "reshape",
    "reshape",
    "capture",
    "restore",
    "save",
    "restore_saved",
    "fork",
]
ACTIONS = st.lists(
    st.tuples(st.sampled_from([*VERBS, "resume", "what_if", "drop"]), st.integers(1, 4)),
    min_size=4,
    max_size=14,
)


def walk(actions: list[tuple[str, int]], directory: Path) -> None:
    taken = Walk(directory)
    for verb, number in actions:
        getattr(taken, verb)(number)
        taken.check()
    taken.step(STEPS)
    taken.check()


@settings(max_examples=15, deadline=None)
@given(actions=ACTIONS)
def test_a_walk_over_verbs_and_changes_is_the_straight_course(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    walk(actions, tmp_path_factory.mktemp("walk"))


@pytest.mark.soak
@settings(max_examples=300, deadline=None)
@given(actions=ACTIONS)
def test_three_hundred_walks_are_straight_courses(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    walk(actions, tmp_path_factory.mktemp("walk"))
