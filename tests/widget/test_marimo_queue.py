"""Buttons act while a cell of marimo trains: what is taken out of its queue of commands, and what stays."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from queue import Queue
from typing import Any

import pytest
from marimo._plugins.ui._impl.anywidget.init import WIDGET_COMM_MANAGER
from marimo._runtime.commands import (
    DeleteCellCommand,
    ModelCommand,
    ModelCustomMessage,
    ModelUpdateMessage,
    StopKernelCommand,
)
from marimo._runtime.context.types import initialize_context, teardown_context
from marimo._runtime.kernel_lifecycle import (
    listen_messages,
    make_control_enqueuer,
    threaded_queue_reader,
)

from notebook_learner.widget import marimo_queue, shell


class Widget:
    """The kernel's side of a widget, as marimo keeps it."""

    def __init__(self, name: str, seen: list[Any], element: str | None = None) -> None:
        self.comm_id, self.ui_element_id, self._seen = name, element, seen

    def handle_msg(self, message: dict[str, Any]) -> None:
        self._seen.append(message["content"]["data"].get("content", "state"))


class Kernel:
    """A kernel whose cells are functions: marimo's own loop takes its commands, from marimo's own queues."""

    def __init__(self, kind: str) -> None:
        make: Any = Queue if kind == "threads" else get_context("spawn").Queue
        self.queue, self._of_widgets = make(), make()
        self.send = make_control_enqueuer(self.queue, self._of_widgets)
        self.seen: list[Any] = []
        self.cells: list[Callable[[], None]] = []
        self._kernel = self  # marimo's context leads to its kernel by this name

    async def handle_message(self, command: Any) -> None:
        if isinstance(command, ModelCommand):
            WIDGET_COMM_MANAGER.receive_comm_message(command)
        elif command.cell_id == "cell":
            self.cells.pop(0)()
        else:
            self.seen.append(command.cell_id)

    def click(self, content: object, widget: str = "panel") -> None:
        self.send(ModelCommand(model_id=widget, message=ModelCustomMessage(content=content), buffers=[]))

    def run(self, *cells: Callable[[], None]) -> list[Any]:
        """Run the cells, and all that they send; what came to its end, in order."""
        self.cells += cells
        for _ in cells:
            self.send(DeleteCellCommand(cell_id="cell"))
        initialize_context(self)  # type: ignore[arg-type]
        try:
            asyncio.run(listen_messages(self, self.queue, self._of_widgets, threaded_queue_reader))  # type: ignore[arg-type]
        finally:
            teardown_context()
        return self.seen


@pytest.fixture(params=["threads", "processes"])
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    made = Kernel(request.param)
    WIDGET_COMM_MANAGER.comms |= {
        "panel": Widget("panel", made.seen),
        "other": Widget("other", made.seen, "ui"),
    }  # type: ignore[dict-item]
    yield made
    WIDGET_COMM_MANAGER.comms.clear()


def train(kernel: Kernel, over: Callable[[], bool]) -> shell.Servicing:
    """A training in the running cell, until something is so."""
    servicing = shell.servicing()
    assert servicing is not None
    never = threading.Event()
    with servicing.during():
        for _ in range(30_000):
            if over():
                break
            servicing.serve()
            never.wait(0.001)
    return servicing


def test_a_click_acts_while_the_cell_trains_and_not_again_after_it(kernel: Kernel) -> None:
    def cell() -> None:
        kernel.click("click")
        servicing = train(kernel, lambda: "click" in kernel.seen)
        kernel.seen.append((servicing.mode, servicing.problem, "over"))
        kernel.click("later")  # marimo takes all messages of widgets that wait with it
        kernel.send(StopKernelCommand())

    assert kernel.run(cell) == ["click", ("boundary", "", "over"), "later"]


def test_all_other_commands_keep_their_order_and_come_before_newer_ones(kernel: Kernel) -> None:
    def cell() -> None:
        for number in range(3):
            kernel.send(DeleteCellCommand(cell_id=str(number)))
            kernel.click(f"click {number}")
        train(kernel, lambda: len(kernel.seen) == 3)
        kernel.send(DeleteCellCommand(cell_id="newer"))
        kernel.send(StopKernelCommand())

    clicks = [f"click {number}" for number in range(3)]
    assert kernel.run(cell) == [*clicks, "0", "1", "2", "newer"]


@pytest.mark.parametrize(
    "kernel", ["threads"], indirect=True
)  # between processes the second copy may be late
def test_without_the_notes_a_click_would_act_twice(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marimo_queue.CommandInbox, "_is_new", lambda self, command: True)
    monkeypatch.setattr(marimo_queue.CommandInbox, "test", lambda self: None)

    def cell() -> None:
        kernel.click("click")
        train(kernel, lambda: "click" in kernel.seen)
        kernel.click("later")
        kernel.send(StopKernelCommand())

    assert kernel.run(cell).count("click") == 2


def test_put_back_into_the_queue_they_would_come_behind_newer_ones(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marimo_queue, "_get_first", lambda queue, waiting: [*map(queue.put, waiting)])
    monkeypatch.setattr(marimo_queue.CommandInbox, "test", lambda self: None)

    def cell() -> None:
        kernel.send(DeleteCellCommand(cell_id="older"))
        kernel.click("click")
        train(kernel, lambda: "click" in kernel.seen and newer())

    def newer() -> bool:
        kernel.send(DeleteCellCommand(cell_id="newer"))
        kernel.send(StopKernelCommand())
        return True

    assert kernel.run(cell) == ["click", "newer"], "the older one waits behind the end"


def test_what_was_kept_for_after_one_training_waits_for_the_next_one_too(kernel: Kernel) -> None:
    def first() -> None:
        kernel.send(DeleteCellCommand(cell_id="cell"))
        kernel.send(DeleteCellCommand(cell_id="behind"))
        kernel.click("one")
        train(kernel, lambda: "one" in kernel.seen)

    def second() -> None:
        kernel.send(DeleteCellCommand(cell_id="newer"))
        kernel.click("two")
        train(kernel, lambda: "two" in kernel.seen)
        kernel.send(StopKernelCommand())

    kernel.cells.append(first)
    assert kernel.run(second) == ["one", "two", "behind", "newer"]


def test_the_state_of_a_wrapped_widget_waits_and_so_do_its_later_messages(kernel: Kernel) -> None:
    def cell() -> None:
        kernel.click("before", "other")
        state = ModelUpdateMessage(state={"value": 1}, buffer_paths=[])
        kernel.send(ModelCommand(model_id="other", message=state, buffers=[]))
        kernel.click("behind", "other")
        kernel.click("panel")
        train(kernel, lambda: "panel" in kernel.seen)
        kernel.seen.append("over")
        kernel.send(StopKernelCommand())

    seen = kernel.run(cell)
    assert seen[:3] == ["before", "panel", "over"]
    assert sorted(seen[3:]) == ["behind", "state"], "marimo itself puts the newest state last"


def test_a_handler_that_fails_is_logged_and_the_next_click_acts(
    kernel: Kernel, caplog: pytest.LogCaptureFixture
) -> None:
    def cell() -> None:
        WIDGET_COMM_MANAGER.comms["broken"] = object()  # type: ignore[index,assignment]
        kernel.click("lost", "broken")
        kernel.click("click")
        train(kernel, lambda: "click" in kernel.seen)
        kernel.send(StopKernelCommand())

    assert kernel.run(cell) == ["click"]
    assert [record.getMessage() for record in caplog.records] == ["the handler of a widget's message failed"]


def served_in_vain(kernel: Kernel) -> None:
    """What a cell does that is clicked at and asks twice for what waits; notes when the click will act."""
    kernel.click("click")
    for _ in range(2):
        servicing = shell.servicing()
        assert servicing is not None
        with servicing.during():
            servicing.serve()
    kernel.seen.append(servicing.mode)
    kernel.send(StopKernelCommand())


@pytest.mark.parametrize("kernel", ["threads"], indirect=True)
def test_switched_off_a_click_acts_when_the_cell_is_over(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shell.SWITCH, "off")

    assert kernel.run(partial(served_in_vain, kernel)) == ["interrupt", "click"]


@pytest.mark.parametrize("part", ["_dedup", "control_queue"])
@pytest.mark.parametrize("kernel", ["threads"], indirect=True)
def test_where_a_part_is_missing_one_line_says_so_and_a_click_acts_when_the_cell_is_over(
    kernel: Kernel, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if part == "_dedup":
        from marimo._runtime.utils.set_ui_element_request_manager import SetUIElementRequestManager as Notes

        kept = Notes._dedup
        monkeypatch.setattr(Notes, "process_request", lambda self, each: (p := [], kept(self, each, p))[0])
        monkeypatch.delattr(Notes, "_dedup")
    else:
        monkeypatch.setattr(marimo_queue, "_LISTENS", "a later name")

    with caplog.at_level(logging.WARNING, logger="notebook_learner"):
        assert kernel.run(partial(served_in_vain, kernel)) == ["interrupt", "click"]
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("buttons act when the cell is over: this kernel is of")


def test_without_marimo_nothing_of_it_is_loaded() -> None:
    code = """
import sys
from notebook_learner import LearnerBuilder
from notebook_learner.widget import notebook, shell
print(shell.servicing(), notebook.front_end(), notebook.cell() == "", "marimo" in sys.modules)
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert told == "None none True False\n"
