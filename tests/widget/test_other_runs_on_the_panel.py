"""Other runs that are laid over the curves, between a real learner and a page that is a list of messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_of_messages import Page, learner_in, page_of

from notebook_learner import Artifacts, Learner
from notebook_learner.artifacts import run_status
from notebook_learner.errors import StoreError
from notebook_learner.widget import message_pace
from notebook_learner.widget import panel as panels


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(panels, "BEAT", 0.05)


def trained(directory: Path, rate: float, steps: int) -> Learner:
    learner = learner_in(directory)
    learner.lr = rate
    learner.step(steps)
    learner.save()
    return learner


def laid_over(page: Page) -> list[str]:
    return [each["run"] for each in page.board["branches"]["lines"] if "run" in each]


@pytest.fixture
def shown(tmp_path: Path) -> tuple[Learner, Page]:
    """A learner in a folder with two other runs and something else, and its page."""
    trained(tmp_path / "first", 0.2, 8)
    trained(tmp_path / "second", 0.01, 15)
    (tmp_path / "notes").mkdir()
    learner = learner_in(tmp_path / "own")
    page = page_of(learner)
    page.ask("hello")
    learner.step(3)
    page.until(lambda: page.board.get("branches", {}).get("offered") == ["first", "second"])
    return learner, page


def test_another_run_lies_behind_the_curves_with_the_values_that_it_measured(
    shown: tuple[Learner, Page], tmp_path: Path
) -> None:
    learner, page = shown
    learner.panel.overlay(tmp_path / "second")
    page.until(lambda: laid_over(page) == ["second"])
    (line,) = page.board["branches"]["lines"]
    assert (line["name"], line["from"], line["to"]) == ("run second", 0, 13)  # two of the steps validate
    assert line["text"] == "run second: 13 training steps"
    history = Artifacts(tmp_path / "second").history
    x, y = page.thin["run second", "Loss", "train"]
    assert x == [float(step) for step in range(1, 14)] and y == history.values("Loss", "train").tolist()
    assert page.thin["run second", "Loss", "valid"] == ([10.0], history.epochs("Loss", "valid").tolist())
    assert page.curves["Loss", "train"][1] != y[:3]
    assert len(page.curves["Loss", "train"][1]) == 3, "the run's own line is as it was"


def test_runs_are_added_and_all_taken_away_by_a_call_without_a_run(
    shown: tuple[Learner, Page], tmp_path: Path
) -> None:
    learner, page = shown
    learner.panel.overlay(str(tmp_path / "first"))
    learner.panel.overlay(Artifacts(tmp_path / "second"), tmp_path / "first")
    page.until(lambda: laid_over(page) == ["first", "second"])
    assert repr(learner.panel) == "LearnerPanel(whole; laid over: first, second)"
    learner.panel.overlay()
    page.until(lambda: laid_over(page) == [])
    assert not [key for key in page.thin if key[0].startswith("run")]


def test_a_run_that_goes_on_is_read_again_when_it_is_laid_over_again(
    shown: tuple[Learner, Page], tmp_path: Path
) -> None:
    learner, page = shown
    other = trained(tmp_path / "live", 0.1, 4)
    learner.panel.overlay(tmp_path / "live")
    other.step(3)
    page.until(lambda: laid_over(page) == ["live"])
    assert len(page.thin["run live", "Loss", "train"][0]) == 4
    other.save()
    learner.panel.overlay(tmp_path / "live")
    page.until(lambda: len(page.thin["run live", "Loss", "train"][0]) == 7)
    assert laid_over(page) == ["live"]


def test_the_page_lays_over_what_it_was_offered_and_nothing_else(
    shown: tuple[Learner, Page], tmp_path: Path
) -> None:
    _, page = shown
    assert page.answer("overlay", run="first", shown=True) == (True, "run first is laid over")
    page.until(lambda: laid_over(page) == ["first"])
    for name in ("notes", "own", "../first", str(tmp_path / "second"), "third"):
        ok, text = page.answer("overlay", run=name, shown=True)
        assert not ok and text == f"there is no run {name!r} in the folder of this one"
    assert page.answer("overlay", run="second", shown=False) == (False, "no run 'second' is laid over")
    assert page.answer("overlay", run="first", shown=False) == (True, "run first is taken away")
    page.until(lambda: laid_over(page) == [])
    ok, text = page.answer("overlay", run="first", shown="yes")
    assert not ok and "on or off" in text


def test_a_directory_without_a_run_is_refused_by_name(shown: tuple[Learner, Page], tmp_path: Path) -> None:
    learner, _ = shown
    learner.panel.overlay(tmp_path / "first")
    with pytest.raises(StoreError, match="there is no directory"):
        learner.panel.overlay(tmp_path / "second", tmp_path / "nowhere")
    with pytest.raises(StoreError, match="holds no run"):
        learner.panel.overlay(tmp_path / "notes")
    assert repr(learner.panel) == "LearnerPanel(whole; laid over: first)"


def test_only_so_many_folders_beside_the_run_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        trained(tmp_path / name, 0.1, 1)
    assert len(run_status.runs_beside(tmp_path / "a")) == 2
    monkeypatch.setattr(run_status, "_MOST_BESIDE", 0)
    assert run_status.runs_beside(tmp_path / "a") == []
    assert run_status.runs_beside(tmp_path / "nowhere" / "a") == []


def test_the_panel_is_compact_where_the_user_says_so(shown: tuple[Learner, Page]) -> None:
    learner, page = shown
    assert page.board["compact"] is False
    learner.panel.compact()
    page.until(lambda: page.board["compact"] is True)
    learner.panel.compact(False)
    page.until(lambda: page.board["compact"] is False)


def test_a_learner_that_was_never_shown_keeps_what_its_panel_is_to_show(tmp_path: Path) -> None:
    trained(tmp_path / "other", 0.2, 5)
    learner = learner_in(tmp_path / "run")
    learner.panel.overlay(tmp_path / "other")
    learner.panel.compact()
    page = page_of(learner)
    page.ask("hello")
    page.until(lambda: "branches" in page.board and laid_over(page) == ["other"])
    assert page.board["compact"] is True
    assert "text/plain" in learner.panel._repr_mimebundle_()
