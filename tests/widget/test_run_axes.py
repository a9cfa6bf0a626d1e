"""What the panel tells its page of epochs and training time, so that it can draw along them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_of_messages import Page, learner_in, page_of
from test_watching import ended, watch  # noqa: F401

from notebook_learner import Artifacts, Learner
from notebook_learner.event import MetricBlock
from notebook_learner.event.training_time import TrainingTime
from notebook_learner.widget import message_pace
from notebook_learner.widget.run_axes import MOST, RunAxes, epoch_knots


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 0)


def place(knots: Any, step: float) -> float:
    return float(np.interp(step, *knots))


def seconds_of(learner: Learner) -> float:
    """The seconds of all steps on the learner's line."""
    return sum(block.seconds for part in learner.history.snapshot() for block in part.blocks)


def test_the_middle_of_an_epoch_is_a_fraction_of_its_own_length() -> None:
    knots = epoch_knots({1: 0, 2: 100, 3: 160}, 277, 240)
    assert place(knots, 160 + 117) == 2 + 117 / 240
    assert place(knots, 130) == 1.5
    assert place(knots, 0) == 0


def test_an_epoch_of_unknown_length_is_as_long_as_the_one_before_and_the_first_has_none() -> None:
    assert epoch_knots({1: 0}, 7, None) is None
    assert epoch_knots({}, 0, 10) is None
    assert place(epoch_knots({1: 0, 2: 20}, 25, None), 25) == 1.25
    assert place(epoch_knots({1: 0, 2: 20}, 60, None), 60) == 2, "it is longer than that"


def test_few_places_tell_of_many_epochs() -> None:
    assert epoch_knots({n: 40 * (n - 1) for n in range(1, 5001)}, 199_980, 40) == (
        [0.0, 200_000.0],
        [0.0, 5000.0],
    )
    lengths = np.random.default_rng(0).integers(1, 50, 5000)
    starts = dict(enumerate(np.concatenate([[0], np.cumsum(lengths)]).tolist(), 1))
    knots = epoch_knots(starts, starts[5001], 40)
    assert knots is not None and len(knots[0]) <= MOST + 1
    assert place(knots, starts[2501]) == pytest.approx(2500, abs=10)


def test_the_places_are_told_again_as_the_run_grows_and_not_at_each_message() -> None:
    axes, told = RunAxes(), 0
    for step in range(1, 5001):
        axes.add(MetricBlock(1, "train", step, 1, step, {}, {}, 0.01))
        told += "seconds" in axes.moving(step)
    assert told < 300


def test_the_page_knows_what_each_step_took(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    assert page.board["seconds"] is None and page.board["epochs"] is None and page.board["spent"] is None
    learner.step(17)  # ten of training, two of validation, five of training
    assert page.board["spent"] == pytest.approx(seconds_of(learner), abs=1e-3)
    assert place(page.board["epochs"], 13) == 1.3
    steps, times = page.board["seconds"]
    assert (steps[0], times[0], steps[-1]) == (0, 0, 15)
    assert times == sorted(times)


def test_time_that_was_taken_back_does_not_count(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    learner.step(15)
    learner.rewind(9)
    page.ask("hello")
    assert page.board["spent"] == pytest.approx(seconds_of(learner), abs=1e-3)
    assert page.board["seconds"][0][-1] == 6
    learner.step(9)
    page.ask("hello")
    assert page.board["spent"] == pytest.approx(seconds_of(learner), abs=1e-3)


def test_a_resumed_run_knows_the_time_of_its_earlier_process(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(17)
    learner.save()
    before = seconds_of(learner)
    again = learner_in(tmp_path, with_file_checkpointer=None, checkpoint="latest")
    page = page_of(again)
    page.ask("hello")
    assert page.board["spent"] == pytest.approx(before, abs=5e-3)
    again.step(4)
    page.ask("hello")
    assert page.board["spent"] == pytest.approx(seconds_of(again), abs=5e-3)
    assert page.board["spent"] > before - 5e-3


def test_a_run_that_is_read_from_its_files_has_its_times(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.fit()
    whole = seconds_of(learner)
    last = [part for part in learner.history.snapshot() if part.split == "valid"][-1]
    _, page = watch(tmp_path)
    wanted = whole - sum(block.seconds for block in last.blocks)  # it comes after the last training step
    page.until(lambda: page.board.get("spent"))
    assert page.board["spent"] == pytest.approx(wanted, abs=0.01)
    assert place(page.board["epochs"], 25) == 2.5


def test_a_run_without_times_has_epochs_and_no_time(tmp_path: Path) -> None:
    learner_in(tmp_path).fit()
    (tmp_path / "artifacts.h5").unlink()
    _, page = watch(tmp_path)
    assert page.board["seconds"] is None and page.board["spent"] is None
    assert place(page.board["epochs"], 25) == 2.5


def lines(page: Page) -> dict[str, Any]:
    return {each["name"]: each for each in page.board.get("branches", {"lines": []})["lines"]}


def test_another_run_has_a_clock_and_epochs_of_its_own(tmp_path: Path) -> None:
    other = learner_in(tmp_path / "other")
    other.fit()
    learner = learner_in(tmp_path / "own")
    page = page_of(learner)
    page.ask("hello")
    learner.step(3)
    learner.panel.overlay(tmp_path / "other")
    learner.step()
    page.until(lambda: "run other" in lines(page))
    line = lines(page)["run other"]
    read = TrainingTime.of(Artifacts(tmp_path / "other").history.snapshot())
    assert line["seconds"] == [*(read.knots() or ())]
    assert place(line["epochs"], 25) == 2.5


def test_a_branch_keeps_its_times_and_so_does_the_line_that_takes_it(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    learner.step(15)  # thirteen of them train
    there = TrainingTime.of(learner.history.snapshot()).now
    learner.rewind(9)
    here = TrainingTime.of(learner.history.snapshot()).now
    learner.lr = 0.01
    learner.step(2)
    page.until(lambda: "1" in lines(page) and lines(page)["1"]["seconds"])
    line = lines(page)["1"]
    assert place(line["seconds"], 13) == pytest.approx(there, abs=5e-3)
    assert place(line["seconds"], 6) == pytest.approx(here, rel=0.5, abs=0.05)
    assert place(line["epochs"], 13) == 1.3
    learner.tools.go_to("1")
    assert TrainingTime.of(learner.history.snapshot()).now == pytest.approx(there, abs=5e-3)
