"""The lines that a run has left, between a real learner and a page that is a list of messages."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from page_of_messages import SOON, Page, learner_in, page_of, panel_of, series_of

from notebook_learner import Artifacts, Learner, checkpoint
from notebook_learner.artifacts.watch_panel import Watching
from notebook_learner.logger.branches import Branch
from notebook_learner.widget import branch_lines, message_pace
from notebook_learner.widget.branch_lines import MOST, BranchLines, LeftBranches
from notebook_learner.widget.panel import Panel


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 0)


def weights(learner: Learner) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in learner.model.parameters()])


def names(page: Page) -> list[str]:
    return [each["name"] for each in page.board.get("branches", {"lines": []})["lines"]]


def by_hand(directory: Path, rates: dict[int, float], steps: int) -> list[float]:
    """The losses of a loop written by hand, with a rate from each step on."""
    learner = learner_in(directory)
    model, optimizer = learner.model, torch.optim.SGD(learner.model.parameters(), lr=0.1)
    torch.manual_seed(0)
    torch.nn.Linear(4, 3)
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    losses = []
    for number in range(steps):
        optimizer.param_groups[0]["lr"] = rates.get(number, optimizer.param_groups[0]["lr"])
        at = number % 10 * 4
        loss = torch.nn.functional.cross_entropy(model(x[at : at + 4]), y[at : at + 4])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_branch_is_drawn_from_the_step_where_it_leaves_to_its_end(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    page = page_of(learner)
    page.ask("hello")
    learner.lr = 0.2
    learner.step(8)
    learner.rewind(5)
    learner.lr = 0.01
    learner.step(2)
    page.until(lambda: names(page) == ["1"])
    (line,) = page.board["branches"]["lines"]
    assert (line["from"], line["to"]) == (3, 8)
    assert line["text"] == "branch 1: from epoch 1, train, step 3 to epoch 1, train, step 8"
    x, y = page.thin["1", "Loss", "train"]
    assert x == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert y == by_hand(tmp_path / "other", {0: 0.2}, 8)[2:]
    assert page.curves["Loss", "train"] == series_of(learner)["Loss", "train"]
    assert page.curves["Loss", "train"][1] == by_hand(tmp_path / "third", {0: 0.2, 3: 0.01}, 5)
    assert page.board["branches"]["more"] == 0
    (said,) = [each for each in page.board["log"] if "left branch" in each]
    assert said.endswith("left branch 1: from epoch 1, train, step 3 to epoch 1, train, step 8")


def test_a_branch_that_begins_in_a_validation_and_one_across_epochs(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    page = page_of(learner)
    page.ask("hello")
    learner.step(15)  # ten, two of validation, three
    before = learner.history.epochs("Loss", "valid").tolist()
    learner.rewind(to=(1, "valid", 1))
    learner.lr = 0.5
    learner.step(1)
    page.until(lambda: names(page) == ["1"])
    x, y = page.thin["1", "Loss", "train"]
    assert x == [11.0, 12.0, 13.0] and y == by_hand(tmp_path / "other", {}, 13)[10:]
    assert page.thin["1", "Loss", "valid"] == ([10.0], before)


def test_go_to_by_the_page_gives_the_bits_of_the_branch(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    page = page_of(learner)
    page.ask("hello")
    ends = {}
    learner.step(2)
    for number, rate in enumerate((0.2, 0.3, 0.4), 1):
        learner.lr = rate
        learner.step(6)
        ends[str(number)] = weights(learner)
        learner.rewind(6)
    learner.lr = 0.5
    learner.step(2)
    page.until(lambda: names(page) == ["1", "2", "3"] and page.board["status"] == "paused")
    assert [each["changes"] for each in page.board["branches"]["lines"]] == [f"lr = 0.{n}" for n in (2, 3, 4)]
    assert page.board["controls"]["go_to"] == ""
    ok, text = page.answer("go_to", branch="2")
    assert ok and "exact" in text, text
    assert torch.equal(weights(learner), ends["2"])
    page.until(lambda: "2" not in names(page) and len(names(page)) == 3)
    assert page.curves["Loss", "train"] == series_of(learner)["Loss", "train"]
    ok, text = page.answer("go_to", branch="2")
    assert not ok and "there is no branch '2' of this run; there are:" in text


def test_the_same_steps_again_take_the_line_away(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    page = page_of(learner)
    page.ask("hello")
    learner.step(6)
    learner.rewind(3)
    page.until(lambda: names(page) == ["1"])
    learner.step(3)
    page.until(lambda: names(page) == [] and page.thin == {})


@pytest.mark.parametrize("new", [False, True])
def test_how_many_steps_are_taken_again_is_what_the_report_says(tmp_path: Path, new: bool) -> None:
    learner = learner_in(tmp_path / "run", with_file_checkpointer=checkpoint.Hdf5Recorder())
    learner.step(4)
    learner.save()
    learner.run_until((1, 9))
    learner.rewind(to=(1, 2))
    learner.lr = 0.3
    learner.step(1)
    if new:  # it has no state in memory before the place where the branch leaves
        learner.save()
        given = {"with_file_checkpointer": checkpoint.Hdf5Recorder(), "checkpoint": "latest"}
        learner = learner_in(tmp_path / "run", **given)
    page = page_of(learner)
    page.ask("hello")
    page.until(lambda: names(page) == ["1"])
    (line,) = page.board["branches"]["lines"]
    assert learner.go_to("1").replayed == line["again"] == (5 if new else 8)


def test_while_it_runs_the_button_cannot_be_used(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    gate = threading.Event()
    page = page_of(learner)
    page.ask("hello")
    learner.step(4)
    learner.rewind(2)
    learner.lr = 0.5
    learner.model.register_forward_hook(lambda *_: gate.wait(0.02))
    page.ask("run", 100)
    page.until(lambda: page.board["status"] == "running")
    assert page.board["controls"]["go_to"] == "it is running; pause it first"
    ok, _ = page.answer("go_to", branch="1")
    assert not ok and page.answer("stop")[0]
    gate.set()


def test_no_file_of_a_branch_is_read_while_steps_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_in(tmp_path / "run")
    page = page_of(learner)
    page.ask("hello")
    learner.step(6)
    learner.rewind(3)
    learner.lr = 0.5
    learner.step(1)
    page.until(lambda: names(page) == ["1"])
    read: list[str] = []
    monkeypatch.setattr(type(learner), "_left", lambda self: read.append("branches"))
    before = len(page.messages)
    learner.run_until((3, 5))
    assert len(page.messages) > before and read == []


def test_of_fifty_branches_the_latest_few_are_drawn_and_the_others_counted(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    page = page_of(learner)
    page.ask("hello")
    for number in range(50):
        learner.lr = 0.01 * (number + 1)
        learner.step(3)
        learner.rewind(3)
    page.until(lambda: names(page) == [str(number) for number in range(51 - MOST, 51)])
    assert page.board["branches"]["more"] == 50 - MOST
    assert {each[0] for each in page.thin} == {*names(page)}


def test_the_files_of_a_branch_are_read_twice_and_no_more(tmp_path: Path) -> None:
    asked = []

    def passes(branch: Branch) -> Any:
        asked.append(branch.name)
        return ()

    first, second = (
        Branch(name, "", (1, "train", 3, 3), (1, "train", 8, 8), 1.0, changes=("lr = 0.1",))
        for name in ("1", "2")
    )
    names_of: dict[Any, set[str]] = {"train": set(), "valid": set()}
    lines = BranchLines()
    for found in ([first], [first, second], [first, second], [first, second]):
        lines = lines.read(LeftBranches(found, passes, lambda _: 5), names_of)
    assert asked == ["1", "1", "2", "2"]
    longer = replace(second, ends=(1, "train", 9, 9))
    lines = lines.read(LeftBranches([first, longer], passes, lambda _: 5), names_of)
    assert asked == ["1", "1", "2", "2", "2"]
    assert json.loads(json.dumps(lines.told))["lines"][0]["text"].endswith("step 8 (lr = 0.1)")


def test_a_long_branch_takes_few_bytes(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run", num_epochs=500)
    page = page_of(learner)
    page.ask("hello")
    learner.run_until((400, 0))
    losses = learner.history["train", "Loss"]
    learner.rewind(to=(1, 2))
    page.until(lambda: names(page) == ["1"])
    x, mean = page.thin["1", "Loss", "train"]
    assert len(x) <= branch_lines.BUCKETS
    assert np.average(mean[:-1]) == pytest.approx(np.mean(losses[1:]), rel=0.05)


def test_who_resumes_sees_the_branches_and_is_told_of_none_as_new(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run", with_file_checkpointer=checkpoint.Hdf5Recorder())
    learner.step(6)
    learner.rewind(3)
    learner.lr = 0.5
    learner.step(1)
    learner.save()
    time.sleep(0.01)
    new = learner_in(tmp_path / "run", with_file_checkpointer=checkpoint.Hdf5Recorder(), checkpoint="latest")
    page = page_of(new)
    page.ask("hello")
    page.until(lambda: names(page) == ["1"])
    assert not [each for each in page.board["log"] if "left branch" in each]


def test_a_panel_of_files_shows_them_without_a_button(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run", with_file_checkpointer=checkpoint.Hdf5Recorder())
    learner.step(6)
    losses = learner.history["train", "Loss"].tolist()
    learner.rewind(3)
    learner.lr = 0.5
    learner.step(1)
    learner.save()
    panel = Panel(Page)
    page = panel.wire
    assert isinstance(page, Page)
    watching = Watching(Artifacts(tmp_path / "run"), panel)
    watching.start()
    try:
        page.ask("hello")
        page.until(lambda: names(page) == ["1"])
        assert page.thin["1", "Loss", "train"] == ([3.0, 4.0, 5.0, 6.0], losses[2:])
        assert page.board["controls"] == {}
    finally:
        watching.stop()


def test_a_reading_that_fails_is_tried_again_at_the_next_change(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    panel = panel_of(learner)
    page = panel.wire
    assert isinstance(page, Page)
    page.ask("hello")
    learner.step(6)
    done = threading.Event()
    whole = type(learner)._left
    try:

        def failing(self: Any) -> Any:
            done.set()
            raise OSError("the disk is away")

        type(learner)._left = failing  # type: ignore[method-assign]
        learner.rewind(2)
        assert done.wait(SOON)
    finally:
        type(learner)._left = whole  # type: ignore[method-assign]
    learner.rewind(2)
    page.until(lambda: names(page) == ["1"])
