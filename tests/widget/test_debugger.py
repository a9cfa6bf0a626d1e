"""Breakpoints, inspection and the way back, between a real learner and a page that is a list of messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from page_of_messages import SOON, Page, learner_in, page_of

from notebook_learner import Artifacts, Learner, Paused
from notebook_learner.artifacts.watch_panel import Watching
from notebook_learner.breakpoint import AtStep, NonFinite
from notebook_learner.widget import message_pace
from notebook_learner.widget.panel import Panel


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 0)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Steps wait for it, so that a run is one for as long as a test wants."""
    opened = threading.Event()
    yield opened
    opened.set()


def bits(learner: Learner) -> list[torch.Tensor]:
    moments = [value for state in learner.optimizer.state.values() for value in state.values()]
    tensors = [*learner.model.state_dict().values(), *moments, torch.get_rng_state()]
    return [value.clone() for value in tensors if isinstance(value, torch.Tensor)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


# -- breakpoints ----------------------------------------------------------------------------------------


def test_breakpoints_of_a_cell_show_with_the_next_message(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    assert page.board["breakpoints"] == []
    learner.breakpoints.add(NonFinite())
    learner.breakpoints.add(AtStep(500), once=True, name="<b>late</b>")
    learner.step(1)
    assert page.board["breakpoints"] == [
        {"name": "NonFinite()", "text": "", "on": True, "hit": False},
        {"name": "<b>late</b>", "text": "once only", "on": True, "hit": False},
    ]
    learner.breakpoints["NonFinite()"].on = False
    page.ask("look", visible=True)  # as an open page does every 20 s: nothing else happens
    assert page.board["breakpoints"][0]["on"] is False
    learner.breakpoints.clear()
    learner.step(1)
    assert page.board["breakpoints"] == []


def test_a_page_that_looks_again_is_told_nothing_it_knows(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.breakpoints.add(NonFinite())
    page = page_of(learner)
    page.ask("hello")
    before = len(page.messages)
    page.ask("look", visible=True)
    assert len(page.messages) == before


def test_a_switch_on_the_page_acts_while_it_runs(tmp_path: Path, gate: threading.Event) -> None:
    learner = learner_in(tmp_path)
    learner.breakpoints.add(AtStep(25)).on = False
    learner.breakpoints.add(AtStep(28))
    learner.model.register_forward_hook(lambda *_: gate.wait(0.02) and None)
    page = page_of(learner)
    page.ask("hello")
    page.ask("run", 100)
    page.until(lambda: page.board["status"] == "running")
    assert page.answer("breakpoint", name="AtStep(25)", on=True) == (True, "AtStep(25) is on")
    assert page.answer("breakpoint", name="AtStep(28)", on=False) == (True, "AtStep(28) is off")
    gate.set()
    page.until(lambda: page.board["status"] == "paused")
    rows = {row["name"]: row for row in page.board["breakpoints"]}
    assert rows["AtStep(25)"] == {"name": "AtStep(25)", "text": "hit once", "on": True, "hit": True}
    assert rows["AtStep(28)"]["hit"] is False
    assert learner.position.iteration == 24
    page.until(lambda: 100 in page.answers)
    assert page.answer("run") == (True, "finished")
    assert not any(row["hit"] for row in page.board["breakpoints"])


def test_a_hit_is_told_with_its_reason_and_goes_when_the_learner_does(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.breakpoints.add(
        lambda moment: "five of them" if moment.step == 5 else False, name="five", once=True
    )
    page = page_of(learner)
    page.ask("hello")
    with pytest.raises(Paused, match="stopped by five: five of them"):
        learner.fit()
    board = page.board
    assert (board["status"], board["reason"]) == ("paused", "stopped by five: five of them")
    assert board["stopped"] is True
    assert board["breakpoints"] == [
        {"name": "five", "text": "five of them; hit once; once only", "on": False, "hit": True}
    ]
    assert [(mark["kind"], mark["x"]) for mark in board["marks"]][-1] == ("breakpoint", 4.0)
    assert page.answer("rewind", n=2)[0]
    assert page.board["breakpoints"][0]["hit"] is False
    assert page.board["stopped"] is False
    assert learner.hit is None


def test_a_breakpoint_that_is_gone_is_no_error_of_the_training(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    ok, text = page.answer("breakpoint", name="NonFinite()", on=True)
    assert (ok, text) == (False, "there is no breakpoint 'NonFinite()' any more")
    assert page.board["error"] is None


# -- inspection -----------------------------------------------------------------------------------------


def test_inspect_fills_the_section_changes_nothing_and_goes_with_the_next_step(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(4)
    page = page_of(learner)
    page.ask("hello")
    assert page.board["inspection"] == []
    before = bits(learner)
    assert page.answer("inspect", rank=0) == (True, "inspected at epoch 1, train, step 4 of 10")
    assert same(before, bits(learner))
    sections = {section["title"]: section for section in page.board["inspection"]}
    assert {"Step", "Batch", "Worst samples", "Layers"} <= set(sections)
    assert sections["Worst samples"]["grid"]["heads"] == ["sample", "loss", "target", "prediction"]
    assert len(sections["Worst samples"]["grid"]["cells"]) == 4
    learner.step(1)
    assert page.board["inspection"] == []
    assert page.answer("rewind", n=1)[0]
    assert page.board["inspection"], "it stands there again"


def test_verify_says_on_the_panel_whether_it_is_exact_and_when_it_was_last(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(4)
    page = page_of(learner)
    page.ask("hello")
    assert page.board["verified"] is None
    before = bits(learner)
    ok, text = page.answer("verify")
    assert ok, text
    assert text.startswith("exact: 3 steps from epoch 1, train, step 4 of 10")
    assert same(before, bits(learner))
    found = page.board["verified"]
    assert (found["exact"], found["text"], found["exact_at"]) == (True, text, found["at"])

    draws = (number for number in range(99))
    learner.model.register_forward_hook(lambda *given: given[-1] * next(draws))
    report = learner.verify(1)
    page.ask("look", visible=True)  # as an open page does every 20 s: verify leaves no line in the log
    now = page.board["verified"]
    assert now["text"] == str(report) and now["exact_at"] == found["at"] < now["at"]


def test_a_click_right_after_the_stop_waits_until_the_learner_can_be_moved(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(2)
    page = page_of(learner)
    page.ask("hello")
    entered, leave = threading.Event(), threading.Event()

    def finish() -> None:
        entered.set()
        assert leave.wait(SOON)

    thread = threading.Thread(target=learner._driver.here, args=(finish,))
    thread.start()
    assert entered.wait(SOON)
    page.ask("inspect", 50, rank=0)
    threading.Timer(0.2, leave.set).start()
    page.until(lambda: 50 in page.answers)
    thread.join(SOON)
    assert page.answers[50] == (True, "inspected at epoch 1, train, step 2 of 10")


def test_what_a_cell_inspects_shows_in_the_panel(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    learner.inspect()
    assert page.board["inspection"][0]["title"] == "Step"


def test_an_inspection_does_not_outlive_the_first_step_of_a_run(
    tmp_path: Path, gate: threading.Event
) -> None:
    learner = learner_in(tmp_path)
    learner.step(1)
    page = page_of(learner)
    page.ask("hello")
    learner.inspect()
    learner.model.register_forward_hook(lambda *_: gate.wait(0.02) and None)
    page.ask("run", 100)
    page.until(lambda: page.board["status"] == "running")
    assert page.board["inspection"] == []
    assert page.board["controls"]["inspect"] == "it is running; pause it first"
    ok, text = page.answer("inspect", rank=0)
    assert not ok and "already under way" in text
    gate.set()
    page.until(lambda: 100 in page.answers)


# -- the way back ---------------------------------------------------------------------------------------


def test_the_reach_follows_the_run_and_rewind_to_goes_there(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    straight = learner_in(tmp_path / "straight")
    straight.fit()
    page = page_of(learner)
    page.ask("hello")
    assert page.board["reach"] == {"from": 0, "to": 0}
    assert page.board["controls"]["rewind_to"] == "no step was taken yet"
    assert page.answer("step", n=17)[0]
    assert page.board["reach"] == {"from": 0, "to": 15}, "two steps of validation are none of training"
    assert page.board["controls"]["rewind_to"] == ""
    ok, text = page.answer("rewind_to", step=6)
    assert ok and text.startswith("rewound to epoch 1, train, step 6 of 10")
    assert page.board["reach"] == {"from": 0, "to": 6}
    back = {"x": 6.0, "kind": "rewind", "text": "back to epoch 1, train, step 6 of 10"}
    assert back in page.board["marks"]
    assert page.answer("rewind_to", step=0)[0]
    assert learner.position.iteration == 0
    assert page.answer("run") == (True, "finished")
    assert same(list(learner.model.state_dict().values()), list(straight.model.state_dict().values()))


def test_the_button_takes_back_training_steps_also_after_a_validation(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    assert page.answer("step_epoch")[0] and learner.position.key == (2, 0, 0)
    ok, text = page.answer("rewind", n=3)
    assert ok and text.startswith("rewound to epoch 1, train, step 7 of 10")


def test_a_step_that_was_not_taken_is_refused_with_the_reason(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(3)
    page = page_of(learner)
    page.ask("hello")
    assert page.answer("rewind_to", step=9) == (
        False,
        "rewind(to=9): the run has taken 3 training steps",
    )
    assert page.board["error"] is None


# -- logged values, and panels of files -----------------------------------------------------------------


def with_logged(directory: Path) -> Learner:
    """Logs `size` at every training step."""
    learner = learner_in(directory)

    def note(module: Any, given: Any, output: torch.Tensor) -> None:
        if module.training:
            learner.log("size", output.detach().abs().max())

    learner.model.register_forward_hook(note)
    return learner


def test_a_value_that_a_step_logs_has_a_curve_at_once(tmp_path: Path) -> None:
    learner = with_logged(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    assert [metric["name"] for metric in page.board["metrics"]] == ["Loss", "Accuracy"]
    learner.step(6)
    assert [metric["name"] for metric in page.board["metrics"]] == ["Loss", "Accuracy", "size"]
    x, values = page.curves["size", "train"]
    assert x == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert values == pytest.approx(list(learner.history["train", "size"]), abs=0)


def test_a_logged_metric_of_a_restored_run_has_its_whole_curve(tmp_path: Path) -> None:
    first = with_logged(tmp_path)
    first.step(6)
    first.save()
    second = learner_in(tmp_path)
    page = page_of(second)
    page.ask("hello")
    assert page.answer("restore", label="1-6")[0]
    assert [metric["name"] for metric in page.board["metrics"]] == ["Loss", "Accuracy", "size"]
    assert page.curves["size", "train"][0] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_a_panel_of_files_has_none_of_it(tmp_path: Path) -> None:
    learner = with_logged(tmp_path)
    learner.breakpoints.add(AtStep(25))
    with pytest.raises(Paused):
        learner.fit()
    learner.inspect()
    panel = Panel(Page)
    watching = Watching(Artifacts(tmp_path), panel)
    watching.start()
    page = panel.wire
    assert isinstance(page, Page)
    page.ask("hello")
    page.until(lambda: page.board["status"] == "paused" and len(page.board["metrics"]) == 3)
    assert (page.board["breakpoints"], page.board["inspection"], page.board["reach"]) == ([], [], None)
    assert page.board["inspected"] is None
    assert page.board["controls"] == {}
    assert page.board["metrics"][-1]["name"] == "size"
    assert len(page.curves["size", "train"][0]) == 24
    for cmd, args in (
        ("inspect", {"rank": 0}),
        ("rewind_to", {"step": 1}),
        ("breakpoint", {"name": "AtStep(25)", "on": False}),
    ):
        assert page.answer(cmd, **args) == (False, "the learner is gone; this is what it had done")
    watching.stop()
