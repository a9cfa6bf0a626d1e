"""The panel lets its pages know that the kernel lives, and what they can still do."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
from page_of_messages import SOON, Page, learner_in, page_of, panel_of

from notebook_learner.widget import message_pace
from notebook_learner.widget import panel as panels
from notebook_learner.widget.panel import Panel


class Deaf:
    """A kernel that hears no page while a cell trains."""

    mode = "interrupt"
    is_here = True

    def open(self) -> None: ...
    def serve(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "BEAT", 0.01)
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)


def test_a_page_that_looks_gets_beats_without_news_and_none_when_it_looks_away(
    tmp_path: Path, quick: None
) -> None:
    panel = panel_of(learner_in(tmp_path))
    page = panel.wire
    assert isinstance(page, Page)
    before = beating()
    page.ask("hello")
    page.until(lambda: page.beats >= 3)
    (thread,) = beating() - before
    page.ask("look", visible=False)
    thread.join(SOON)
    assert not thread.is_alive()
    seen = page.beats
    page.ask("look", visible=True)
    page.until(lambda: page.beats > seen)
    page.ask("look", visible=False)


def test_beats_do_not_keep_a_panel(quick: None) -> None:
    panel = Panel(Page)
    known, page = weakref.ref(panel), panel.wire
    assert isinstance(page, Page)
    before = beating()
    page.ask("hello")
    (thread,) = beating() - before
    page.until(lambda: page.beats >= 1)
    del panel
    gc.collect()
    thread.join(SOON)
    assert not thread.is_alive() and known() is None


def beating() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "notebook_learner panel beat"}


def test_a_page_that_no_kernel_hears_is_offered_no_button(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    panel = Panel(Page, Deaf())
    panel.attach(learner)
    page = panel.wire
    assert isinstance(page, Page)
    page.ask("hello")
    assert page.board["controls"]["step"] == ""
    with panel.blocking():
        page.until(lambda: page.board["connection"]["mode"] == "interrupt")
        assert set(page.board["controls"].values()) == {panels._CONNECTIONS["interrupt"]}
    page.until(lambda: page.board["controls"]["step"] == "")


def test_a_learner_that_is_replaced_is_told_without_an_event(tmp_path: Path, quick: None) -> None:
    learner = learner_in(tmp_path)
    learner.step()
    page = page_of(learner)
    page.ask("hello")
    newer = learner_in(tmp_path)
    newer.step()
    page.until(lambda: page.board["connection"]["mode"] == "away")
    assert "a newer learner has the directory" in page.board["connection"]["text"]
