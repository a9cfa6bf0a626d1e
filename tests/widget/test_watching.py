"""The panel of a run that another process trains, or trained: whole, read-only, and it follows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from page_of_messages import SOON, Page, learner_in, series_of

from notebook_learner import Artifacts
from notebook_learner.artifacts import watch_panel
from notebook_learner.artifacts.watch_panel import Watching
from notebook_learner.widget import message_pace
from notebook_learner.widget.panel import Panel


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 0)
    monkeypatch.setattr(watch_panel, "POLL", 0.02)


ALL: list[Watching] = []


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    while ALL:
        ALL.pop().stop()


def watch(directory: Path) -> tuple[Watching, Page]:
    panel = Panel(Page)
    watching = Watching(Artifacts(directory), panel)
    watching.start()
    ALL.append(watching)
    page = panel.wire
    assert isinstance(page, Page)
    page.ask("hello")
    return watching, page


def steps_shown(page: Page) -> list[float]:
    return page.curves.get(("Loss", "train"), ([], []))[0]


def marks_shown(page: Page) -> list[tuple[str, float]]:
    return [(mark["kind"], mark["x"]) for mark in page.board["marks"]]


def test_a_run_that_is_over_is_shown_as_it_was(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(15)
    learner.save()
    learner.fit()
    _, page = watch(tmp_path)
    assert page.board["readonly"] is True
    assert page.board["status"] == "finished"
    assert page.board["model"] == "Linear"
    assert page.board["controls"] == {}
    assert [each["label"] for each in page.board["checkpoints"]] == ["2-3"]
    assert any("finished" in line for line in page.board["log"])
    trained = {key: curve for key, curve in page.curves.items() if key[1] == "train"}
    assert trained == series_of(learner)
    assert page.curves["Loss", "valid"][0] == [10.0, 20.0, 30.0]
    assert marks_shown(page) == [("epoch", 10.0), ("epoch", 20.0)]
    assert page.answer("run") == (False, "the learner is gone; this is what it had done")


def test_a_run_that_goes_on_is_followed_and_so_is_a_rewind(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.run_until((1, "train", 4))
    learner._set_status("running")  # as a run that was not paused
    watching, page = watch(tmp_path)
    learner.step(9)
    learner._set_status("running")
    page.until(lambda: steps_shown(page)[-1:] == [11.0])
    page.until(lambda: page.board["status"] == "running")  # it was paused for a moment, which may be seen
    learner.rewind(5)
    learner._set_status("running")
    page.until(lambda: 0 < len(steps_shown(page)) < 11)
    learner.fit()
    page.until(lambda: page.board["status"] == "finished")
    # The run may end between the watcher's look at the values and that at the status: then the last values
    # come with its next look.
    both = [("epoch", 10.0), ("epoch", 20.0)]
    page.until(lambda: [mark for mark in marks_shown(page) if mark[0] == "epoch"] == both)
    trained = {key: curve for key, curve in page.curves.items() if key[1] == "train"}
    assert trained == series_of(learner)
    watching.stop()


def test_nobody_who_looks_ends_the_following(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(4)
    learner._set_status("running")
    before = set(threading.enumerate())
    watching, _ = watch(tmp_path)
    (thread,) = (each for each in set(threading.enumerate()) - before if "watcher" in each.name)
    watching.stop()
    thread.join(SOON)
    assert not thread.is_alive()
