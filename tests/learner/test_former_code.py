"""A step or a loss that was replaced in mid-run: earlier steps are taken again by the code of then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from branching_support import STEPS, step_on, weights
from branching_support import learner_in as plain_learner_in
from torch.nn import functional as F


def twice(model: Any, batch: Any) -> Any:
    x, y = batch
    return 2 * F.mse_loss(model(x), y)


def absolute(model: Any, batch: Any) -> Any:
    x, y = batch
    return F.l1_loss(model(x), y)


def learner_in(directory: Path, **options: Any) -> Any:
    return plain_learner_in(directory, **options)


EDITS = {
    "a step": lambda learner: learner.tools.use_step("train", twice),
    "an assigned step": lambda learner: setattr(learner, "train_step", absolute),
    "a loss": lambda learner: setattr(learner, "loss", F.l1_loss),
}
edited_in_each_way = pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)


def walked(learner: Any, edits: dict[int, Any], steps: int) -> dict[int, torch.Tensor]:
    seen = {learner.position.iteration: weights(learner)}
    while learner.position.iteration < steps:
        if (at := learner.position.iteration) in edits:
            edits[at](learner)
        step_on(learner)
        seen[learner.position.iteration] = weights(learner)
    return seen


@edited_in_each_way
@pytest.mark.parametrize("target", [3, STEPS, 13])
def test_a_rewind_to_a_step_before_the_edit_gives_its_bits(edit: Any, target: int, tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    seen = walked(learner, {14: edit}, 20)
    report = learner.rewind(to=target)
    assert report.exact, report
    assert torch.equal(weights(learner), seen[target])


@edited_in_each_way
def test_after_it_the_run_goes_on_by_the_code_of_then_until_it_is_edited_anew(
    edit: Any, tmp_path: Path
) -> None:
    learner = learner_in(tmp_path / "run")
    seen = walked(learner, {14: edit}, 20)
    learner.rewind(to=5)
    ways = walked(learner_in(tmp_path / "other"), {7: edit}, 12)
    assert torch.equal(walked(learner, {7: edit}, 12)[12], ways[12])
    assert learner.rewind(to=4).exact and torch.equal(weights(learner), seen[4])
    assert learner.go_to("1").exact and torch.equal(weights(learner), seen[20])


@edited_in_each_way
def test_the_past_is_asked_over_the_edit(edit: Any, tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    seen = walked(learner, {14: edit, 22: EDITS["a step"]}, 28)
    answer = learner.ask(weights, steps=(2, 27))
    assert answer.exact, answer.differs
    assert all(torch.equal(value, seen[number]) for number, value in enumerate(answer.value, 2))
    assert torch.equal(weights(learner), seen[28])
    found = learner.verify(replay=True)
    assert found.exact, found
    ways = walked(learner_in(tmp_path / "again"), {14: edit, 22: EDITS["a step"]}, 32)
    assert torch.equal(walked(learner, {}, 32)[32], ways[32]), "the present step is in use again"


@edited_in_each_way
def test_each_branch_is_entered_by_its_own_code(edit: Any, tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    first = walked(learner, {}, 20)
    learner.rewind(to=10)
    second = walked(learner, {10: edit}, 18)
    assert learner.go_to("1").exact
    assert torch.equal(weights(learner), first[20])
    assert learner.go_to("2").exact, learner.branches
    assert torch.equal(weights(learner), second[18])
    ways = walked(learner_in(tmp_path / "other"), {10: edit}, 24)
    assert torch.equal(walked(learner, {}, 24)[24], ways[24])


def test_an_edit_behind_a_way_back_that_was_edited_before_is_told_apart(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    seen = walked(learner, {6: EDITS["a step"], 12: EDITS["an assigned step"]}, 16)
    for target in (14, 9, 4):
        assert learner.rewind(to=target).exact
        assert torch.equal(weights(learner), seen[target]), target
    learner.step()
    assert learner.rewind(to=2).exact and torch.equal(weights(learner), seen[2])


def test_a_step_that_a_new_process_puts_in_before_its_first_one_takes_the_steps_before_it(
    tmp_path: Path,
) -> None:
    learner = learner_in(tmp_path / "run")
    learner.tools.use_step("train", twice)
    seen = walked(learner, {}, 10)
    learner.save()
    learner.artifacts  # noqa: B018  # waits for the files
    again = learner_in(tmp_path / "run", plain=True)
    again.tools.use_step("train", twice)
    answer = again.ask(weights, steps=(1, 10))
    assert answer.exact, answer.differs
    assert all(torch.equal(each, seen[at]) for at, each in enumerate(answer.value, 1))
    walked(again, {}, 12)
    assert again.rewind(to=4).exact and torch.equal(weights(again), seen[4])
