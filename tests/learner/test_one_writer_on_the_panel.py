"""The panel of a training that is over says who goes on with its run, and offers nothing of that one's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rerun_support import builder_in, built
from two_kernels import Kernel

from notebook_learner.widget import message_pace
from notebook_learner.widget.board import BUTTONS

sys.path.append(str(Path(__file__).parents[1] / "widget"))


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 0)


def test_a_run_that_another_notebook_goes_on_with_has_no_buttons_here(tmp_path):
    from page_of_messages import page_of

    run = tmp_path / "digits"
    learner = built(builder_in(run, epochs=2, files=True))
    page = page_of(learner)
    learner.fit()
    page.ask("hello")
    page.until(lambda: len(page.board["checkpoints"]) == 2)
    assert page.board["controls"]["restore"] == "" and page.board["connection"]["text"] == ""
    before = page.board["checkpoints"]

    with Kernel("/home/ada/second.ipynb") as other:
        other("learner = built(builder_in(Path(run), epochs=5, files=True).resume())", run=str(run))
        other("learner.step(3); learner.save()")
        page.ask("look", visible=True)
        says = f"process {other.pid} (notebook '/home/ada/second.ipynb') goes on with this run"
        page.until(lambda: page.board["connection"]["text"] == says)
        assert page.board["controls"] == dict.fromkeys(BUTTONS, says)
        assert page.board["checkpoints"] == before
        ok, text = page.answer("restore", label="2")
        assert not ok and f"(pid {other.pid})" in text and "second.ipynb" in text
        ok, text = page.answer("save")
        assert not ok and "the training is over here" in text

    page.ask("look", visible=True)
    says = "another process has gone on with this run"
    page.until(lambda: page.board["connection"]["text"] == says)
    assert set(page.board["controls"].values()) == {says}
    ok, text = page.answer("restore", label="2")
    assert not ok and ".resume() goes on from" in text


def test_where_nobody_went_on_the_buttons_work_as_before(tmp_path):
    from page_of_messages import page_of

    learner = built(builder_in(tmp_path / "digits", epochs=2, files=True))
    page = page_of(learner)
    learner.fit()
    page.ask("hello")
    page.until(lambda: len(page.board["checkpoints"]) == 2)
    assert page.answer("restore", label="1") == (True, "restored 1")
    page.until(lambda: page.board["status"] == "paused")
    assert page.answer("run") == (True, "finished")
    assert page.board["connection"]["text"] == ""
