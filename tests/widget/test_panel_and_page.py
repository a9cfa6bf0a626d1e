"""The panel between a real learner and a page that is a list of messages."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_of_messages import SOON, Page, learner_in, page_of, panel_of, series_of

from notebook_learner.event import CheckpointSaved, Column, MetricBlock, MetricInfo, RunOpened, SplitStarted
from notebook_learner.widget import message_pace
from notebook_learner.widget import panel as panels
from notebook_learner.widget.panel import Panel
from notebook_learner.widget.wire import Message


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pace, "INTERVAL", 0.0)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 0)


def test_a_page_that_says_hello_is_told_everything(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(4)
    page = page_of(learner)
    assert page.messages == []
    page.ask("hello")
    (message,) = page.messages
    assert message.content["type"] == "snapshot"
    board = page.board
    assert (board["title"], board["model"], board["parameters"]) == (tmp_path.name, "Linear", "15")
    assert (board["status"], board["position"]) == ("paused", "epoch 1, train, step 4 of 10")
    assert [metric["name"] for metric in board["metrics"]] == ["Loss", "Accuracy"]
    assert page.curves == series_of(learner)
    assert board["controls"]["pause"] == "nothing is running"
    assert board["controls"]["step"] == board["controls"]["rewind"] == ""


def test_while_it_trains_news_follow_and_make_the_same_curves(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    learner.fit()
    kinds = [message.content["type"] for message in page.messages]
    assert kinds[0] == "snapshot" and "delta" in kinds
    trained = {key: curve for key, curve in page.curves.items() if key[1] == "train"}
    assert trained == series_of(learner)
    x, y = page.curves["Loss", "valid"]
    assert x == [10.0, 20.0, 30.0]
    assert y == pytest.approx([learner.history.epochs("Loss", "valid")[k] for k in range(3)], abs=0)
    assert page.board["status"] == "finished"
    assert page.board["progress"] == 1.0
    assert [mark["text"] for mark in page.board["marks"] if mark["kind"] == "epoch"] == [
        "epoch 1",
        "epoch 2",
        "epoch 3",
    ]


def test_nothing_is_sent_while_nobody_looks(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    learner.step(3)
    assert page.messages == []
    page.ask("hello")
    page.ask("look", visible=False)
    before = len(page.messages)
    learner.step(3)
    assert len(page.messages) == before
    page.ask("look", visible=True)
    assert page.messages[-1].content["type"] == "snapshot"
    assert page.curves == series_of(learner)
    learner.step(1)
    assert page.messages[-1].content["type"] == "delta"
    assert page.curves == series_of(learner)


def test_a_page_that_falls_silent_is_taken_for_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    monkeypatch.setattr(panels, "PATIENCE", 0.0)
    page.ask("hello")
    before = len(page.messages)
    learner.step(3)
    assert len(page.messages) == before


def test_what_came_last_is_told_once_the_interval_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    monkeypatch.setattr(message_pace, "INTERVAL", 0.2)
    for _ in range(8):
        learner.step(1)
    assert len(page.messages) < 8
    page.until(lambda: page.curves == series_of(learner) and page.board["status"] == "paused")


def test_what_waited_to_be_told_when_the_page_looked_away_is_told_when_it_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is scrolled away for a moment, the run is paused meanwhile, and nothing else happens."""
    learner = learner_in(tmp_path)
    panel = panel_of(learner)
    page = panel.wire
    assert isinstance(page, Page)
    page.ask("hello")
    learner.step(1)
    monkeypatch.setattr(message_pace, "INTERVAL", 0.2)
    for _ in range(7):
        learner.step(1)
    assert panel._later is not None, "the last news wait"
    page.ask("look", visible=False)
    panel._later.join()
    assert page.curves != series_of(learner), "told to nobody"
    page.ask("look", visible=True)
    assert page.curves == series_of(learner)
    assert (page.board["status"], page.board["position"]) == ("paused", "epoch 1, train, step 8 of 10")


@pytest.mark.parametrize("news", ["an error of a button", "files", "another connection"])
def test_so_is_all_else_that_came_meanwhile(
    tmp_path: Path, news: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_in(tmp_path)
    panel = panel_of(learner)
    page = panel.wire
    assert isinstance(page, Page)
    page.ask("hello")
    panel._read_files()
    page.ask("look", visible=False)
    match news:
        case "an error of a button":
            panel._failed("ValueError: no", "Traceback of it")
        case "files":
            monkeypatch.setattr(panels.boards, "checkpoints", lambda saved, best: [{"label": "1-1"}])
            panel._read_files()
        case _:
            panel._connected(blocking=True)
    known = len(page.messages)
    page.ask("look", visible=True)
    assert len(page.messages) > known and page.messages[-1].content["type"] == "snapshot"
    match news:
        case "an error of a button":
            assert page.board["error"] == {"title": "ValueError: no", "text": "Traceback of it"}
        case "files":
            assert page.board["checkpoints"] == [{"label": "1-1"}]


def test_the_buttons_do_what_they_say(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    assert page.answer("step", n=4)[0]
    assert learner.position.step == 4
    ok, text = page.answer("rewind", n=3)
    assert ok and "exact" in text
    assert learner.position.step == 1
    assert page.curves == series_of(learner)
    assert page.answer("save") == (True, "saved as 1-1")
    page.until(lambda: [each["label"] for each in page.board["checkpoints"]] == ["1-1"])
    assert page.answer("step", n=1)[0]
    assert page.answer("save") == (True, "saved as 1-2")
    page.until(lambda: [each["label"] for each in page.board["checkpoints"]] == ["1-1", "1-2"])
    assert page.answer("step_epoch")[0]
    assert page.board["position"].startswith("epoch 2, train, step 0")
    assert page.answer("restore", label="1-1") == (True, "restored 1-1")
    assert learner.position.step == 1
    assert page.answer("run") == (True, "finished")
    assert learner.status == "finished"
    assert page.answer("set", num_epochs=4) == (True, "trains up to epoch 4")
    page.until(lambda: page.board["num_epochs"] == 4 and page.board["controls"]["run"] == "")
    assert page.answer("run") == (True, "finished")
    assert learner.position.epoch == 4


def test_the_training_waits_for_no_disk_because_of_a_panel(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    page.answer("save")
    page.until(lambda: len(page.board["checkpoints"]) == 1)
    written = threading.Event()
    background = learner._replica.saving.store.keeper.background  # type: ignore[union-attr]
    background.submit("a slow disk", written.wait)

    def train() -> None:
        learner._replica.sinks.emit(CheckpointSaved("1", 1, "train", 0, 1))
        learner.step(3)

    with ThreadPoolExecutor(1) as pool:
        trained = pool.submit(train)
        try:
            trained.result(timeout=SOON)
        finally:
            written.set()
    assert learner.position.step == 3


def test_going_back_into_a_validation_leaves_one_mark_of_each_epoch(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    learner.step(13)
    learner.rewind(to=(1, "valid", 1))
    learner.fit()
    page.until(lambda: page.board["status"] == "finished")
    marks = [mark["x"] for mark in page.board["marks"] if mark["kind"] == "epoch"]
    assert marks == [10.0, 20.0, 30.0]


def test_the_best_checkpoint_is_marked(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    for _ in range(2):
        assert page.answer("step_epoch")[0]
        assert page.answer("save")[0]
    losses = learner.history.epochs("Loss", "valid")
    best = str(int(np.argmin(losses)) + 1)
    page.until(lambda: [row["label"] for row in page.board["checkpoints"] if row["best"]] == [best])


def test_pause_and_stop_reach_a_run(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    gate = threading.Event()

    def slowly(*_: Any) -> None:
        gate.wait(0.02)

    learner.model.register_forward_hook(slowly)
    page = page_of(learner)
    page.ask("hello")
    page.ask("run", 100)
    page.until(lambda: page.board["status"] == "running")
    assert page.board["controls"]["step"] == "it is running; pause it first"
    assert page.answer("pause")[0]
    page.until(lambda: 100 in page.answers)
    assert learner.status == "paused"
    page.ask("run", 101)
    page.until(lambda: page.board["status"] == "running")
    assert page.answer("stop")[0]
    assert learner.status == "stopped"
    gate.set()


def test_what_cannot_be_is_answered_with_the_reason(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    ok, text = page.answer("rewind", n=1)
    assert not ok and "no step was taken yet" in text
    ok, text = page.answer("restore", label="99")
    assert not ok and "99" in text
    page.receive({"cmd": "explode", "args": {}, "seq": 5, "client": "page"})
    ok, text = page.answers[5]
    assert not ok and text.startswith("there is no command 'explode'; there are status, run")


def test_an_error_in_a_step_is_shown_with_its_traceback(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")

    def broken(*_: Any) -> None:
        raise RuntimeError("<img src=x onerror=alert(1)>")

    hook = learner.model.register_forward_hook(broken)
    ok, text = page.answer("run")
    assert not ok and "onerror" in text
    page.until(lambda: (page.board["error"] or {}).get("text"))
    assert page.board["error"]["title"] == "RuntimeError: <img src=x onerror=alert(1)>"
    assert "in broken" in page.board["error"]["text"]
    assert page.board["status"] == "failed"
    hook.remove()
    assert page.answer("run") == (True, "finished")
    assert page.board["error"] is None


def test_two_pages_see_the_same(tmp_path: Path) -> None:
    """A message goes to all of them; one that comes later begins with a snapshot that suits both."""
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    learner.step(2)
    page.receive({"cmd": "hello", "args": {}, "seq": 1, "client": "another"})
    learner.step(2)
    page.receive({"cmd": "look", "args": {"visible": False}, "seq": 2, "client": "page"})
    before = len(page.messages)
    learner.step(2)
    assert len(page.messages) > before, "the other one still looks"
    assert page.curves == series_of(learner)


def test_a_learner_that_is_gone_is_not_kept_by_its_panel(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    panel = panel_of(learner)
    page = panel.wire
    assert isinstance(page, Page)
    page.ask("hello")
    page.answer("step", n=1)
    known = weakref.ref(learner)
    deadline = time.monotonic() + SOON
    del learner
    while known() is not None and time.monotonic() < deadline:  # the thread of the button ends in a moment
        gc.collect()
    assert known() is None
    assert page.answer("step", n=1) == (False, "the learner is gone; this is what it had done")


def test_a_million_steps_leave_little_to_send_and_to_keep() -> None:
    panel = Panel(Page)
    page = panel.wire
    assert isinstance(page, Page)
    infos = (MetricInfo("Loss", "train"),)
    panel.handle(RunOpened("runs/x", "Net", 1, 1, infos))
    panel.handle(SplitStarted(1, "train", 1_000_000, 1))
    values = np.zeros(10_000)
    for k in range(100):
        values = values.copy()
        values[7] = k
        column = Column(values, np.ones(10_000))
        panel.handle(
            MetricBlock(1, "train", 10_000 * k + 1, 10_000, 10_000 * (k + 1), {"Loss": column}, {}, 1.0)
        )
    page.ask("hello")
    (message,) = page.messages
    assert sum(map(len, message.buffers)) <= 2048 * 4 * 8
    high = np.frombuffer(message.buffers[0], "<f8").reshape(4, -1)[2]
    assert high.max() == 99.0


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.mark.parametrize(("takes", "rests"), [(0.0005, 0.3), (0.002, 0.5), (0.004, 1.0), (0.05, 2.0)])
def test_values_are_told_in_proportion_to_what_they_cost_and_the_place_twice_a_second(
    takes: float, rests: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(message_pace, "INTERVAL", 0.3)
    monkeypatch.setattr(message_pace, "IDLE_PER_COST", 250)
    monkeypatch.setattr(message_pace, "time", clock)
    monkeypatch.setattr(panels, "time", clock)

    class SlowPage(Page):
        def send(self, message: Message) -> None:
            clock.now += takes
            super().send(message)

    panel = Panel(SlowPage)
    page = panel.wire
    assert isinstance(page, SlowPage)
    panel.handle(RunOpened("runs/x", "Net", 1, 1, (MetricInfo("Loss", "train"),)))
    panel.handle(SplitStarted(1, "train", 1000, 1))
    page.ask("hello")

    def told_of(step: int, after: float) -> str:
        """What the page is told of a step so many seconds after the first message."""
        clock.now = sent + after
        before = len(page.messages)
        column = Column(np.zeros(1), np.ones(1))
        panel.handle(MetricBlock(1, "train", step, 1, step, {"Loss": column}, {}, 0.1))
        if len(page.messages) == before:
            return ""
        assert page.board["position"] == f"epoch 1, train, step {step} of 1000"
        steps, _ = page.curves.get(("Loss", "train"), ([], []))
        return "values" if steps[-1:] == [step] else "place"

    sent = clock.now
    told = {step: told_of(step, 0.1 * step - 0.01) for step in range(1, round(10 * rests) + 1)}
    assert "values" not in told.values()
    assert told_of(len(told) + 1, rests + 0.01) == "values"
    heard = [0.0, *(0.1 * step for step, what in told.items() if what), rests]
    assert np.diff(heard).max() <= 0.5
    clock.now += 0.31
    before = len(page.messages)
    panel.handle(SplitStarted(2, "train", 1000, 1))
    assert len(page.messages) == before + 1, "what comes once is not held back"
