"""A fork and its parent share nothing that a step writes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from carried_support import weights
from test_data_hooks_and_schedules import HOOKS, with_data_of_its_own
from test_what_steps_reach import KINDS, plain_step, program, straight
from torch import Tensor, nn
from torch.nn import functional as F

from notebook_learner import LearnerBuilder
from notebook_learner.errors import StateError

REFUSED = {"class attribute", "object with state_dict"}
"""A class is not copied, and neither is a generator in an object."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in REFUSED])
@pytest.mark.parametrize("steps", [0, 3])
def test_both_end_like_the_straight_run(kind: str, steps: int, tmp_path: Path) -> None:
    expected = straight(tmp_path / "straight", kind)
    parent = program(tmp_path / "parent", kind)
    if steps:
        parent.step(steps)
    child = parent.fork(tmp_path / "child")
    child.step(4)
    parent.step(2)
    child.rewind(2)
    parent.rewind(1)
    child.fit()
    parent.fit()
    assert torch.equal(weights(parent), expected)
    assert torch.equal(weights(child), expected)


@pytest.mark.parametrize(
    "kind", ["list that is replaced", "other network and optimizer", "replay buffer", "count"]
)
def test_a_fork_is_resumed_by_the_same_program(kind: str, tmp_path: Path) -> None:
    parent = program(tmp_path / "parent", kind)
    parent.step(3)
    child = parent.fork(tmp_path / "child")
    child.step(1)
    child.save()
    resumed = program(tmp_path / "child", kind, resume=True)
    assert resumed.position.step == 4
    resumed.fit()
    assert torch.equal(weights(resumed), straight(tmp_path / "straight", kind))


@pytest.mark.parametrize("hook", HOOKS[1:])
def test_hooks_schedules_samplers_and_data_are_copied(hook: str, tmp_path: Path) -> None:
    for steps in (0, 3):
        folder = tmp_path / str(steps)
        assert_both_end_like_the_straight_run(
            lambda name, above=folder: with_data_of_its_own(above / name, hook), steps, folder / "child"
        )


def assert_both_end_like_the_straight_run(made: Callable[[str], Any], steps: int, child: Path) -> None:
    expected = made("straight")
    expected.fit()
    parent = made("parent")
    if steps:
        parent.step(steps)
    other = parent.fork(child)
    other.fit()
    parent.fit()
    assert torch.equal(weights(parent), weights(expected))
    assert torch.equal(weights(other), weights(expected))


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_what_ties_them_is_named(kind: str, tmp_path: Path) -> None:
    parent = program(tmp_path / "parent", kind)
    parent.step(2)
    named = "class OfAClass" if kind == "class attribute" else "cannot be copied"
    with pytest.raises(StateError, match=named):
        parent.fork(tmp_path / "child")
    parent.fit()
    assert torch.equal(weights(parent), straight(tmp_path / "straight", kind))


CALLS = 0


class CountsInAGlobal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        return self.body(x) * (1 + CALLS / 10)


def test_a_global_that_a_method_counts_in_is_named(tmp_path: Path) -> None:
    model = CountsInAGlobal()
    data = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 4
    builder = LearnerBuilder(tmp_path / "parent").train_step(plain_step).renderer("silent")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, data)
    learner.step(2)
    with pytest.raises(StateError, match=r"CALLS, which CountsInAGlobal\.forward uses"):
        learner.fork(tmp_path / "child")


def test_what_steps_change_in_another_module_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`module.count` is the same variable for a copy of the function that names it."""
    lines = ["count = 0", "class Counts:", "    made = []", "def counted():", "    global count"]
    lines += ["    count += 1", "    return count"]
    (tmp_path / "counting_module.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    counting = importlib.import_module("counting_module")

    def by_function(model: nn.Module, batch: Any) -> Tensor:
        return plain_step(model, batch) * (1 + counting.counted() / 10)

    def by_class(model: nn.Module, batch: Any) -> Tensor:
        from counting_module import Counts

        Counts.made.append(1)
        return plain_step(model, batch) * (1 + len(Counts.made) / 10)

    data = [(torch.ones(2, 4), torch.tensor([0, 1]))] * 4
    for number, (step, name) in enumerate(
        [(by_function, "counting_module.count"), (by_class, "class Counts.made")]
    ):
        model = nn.Linear(4, 2)
        builder = LearnerBuilder(tmp_path / str(number)).train_step(step).renderer("silent")
        learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, data)
        learner.step(2)
        with pytest.raises(StateError, match=f"cannot be copied: {name}[.]"):
            learner.fork(tmp_path / f"fork {number}")


def test_a_scheduler_of_an_optimizer_outside_goes_on_in_both(tmp_path: Path) -> None:
    """The scheduler wraps the optimizer's `step`; a copy with that wrapper would step the original."""

    def made(name: str) -> Any:
        torch.manual_seed(0)
        model, critic = nn.Linear(4, 2), nn.Linear(2, 1)
        optimizer = torch.optim.SGD(critic.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

        def step(model: nn.Module, batch: Any) -> Tensor:
            made = model(batch[0])
            optimizer.zero_grad()
            (critic(made.detach()) - 1).square().mean().backward()
            optimizer.step()
            schedule.step()
            return F.cross_entropy(made, batch[1]) + critic(made).mean() / 10

        data = [(torch.randn(2, 4), torch.tensor([0, 1])) for _ in range(4)]
        builder = LearnerBuilder(tmp_path / name).train_step(step).num_epochs(2).renderer("silent")
        return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, data)

    assert_both_end_like_the_straight_run(made, 3, tmp_path / "child")


def test_batches_that_a_step_changes_in_place_are_copied_and_go_back(tmp_path: Path) -> None:
    def shrinking(model: nn.Module, batch: Any) -> Tensor:
        batch[0].mul_(0.9)
        return F.cross_entropy(model(batch[0]), batch[1])

    def made(name: str) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        data = [(torch.randn(2, 4), torch.tensor([0, 1])) for _ in range(4)]
        builder = LearnerBuilder(tmp_path / name).train_step(shrinking).num_epochs(3).renderer("silent")
        return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, data)

    expected = made("straight")
    expected.fit()
    parent = made("parent")
    parent.step(3)
    parent.rewind(2)
    child = parent.fork(tmp_path / "child")
    child.step(5)
    parent.fit()
    child.rewind(4)
    child.fit()
    assert torch.equal(weights(parent), weights(expected))
    assert torch.equal(weights(child), weights(expected))
