"""The commands that wait for a kernel of marimo, and how to take some of them out.

marimo's server puts every command of a page into one queue: cells to run, values of its own controls, and
messages of widgets. The kernel takes the next one when the cells before it are over. While a cell trains,
this takes out the messages of widgets. All others keep their order.

A message of a widget is in a second queue, too, from which marimo takes several at once. marimo notes which
messages it has had from there, so that it handles none twice. What is served here goes by the same notes.

This uses private parts of marimo. They were read in its release 0.25.2. A missing one raises an error, and
then nothing is served. This module never loads marimo.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from queue import Empty
from types import FrameType
from typing import Any

_log = logging.getLogger("notebook_learner")
_LISTENS = "listen_messages"
"""marimo's function that takes one command after the other; the cells run inside of it."""

_kept: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
"""The commands of each queue that were taken out and still wait for the kernel."""


def kernel() -> Any | None:
    """Return marimo's kernel of this thread; None outside of one, and on a thread that runs no cells."""
    marimo, contexts = sys.modules.get("marimo"), sys.modules.get("marimo._runtime.context.types")
    if marimo is None or contexts is None or isinstance(threading.current_thread(), marimo.Thread):
        return None
    return getattr(contexts.safe_get_context(), "_kernel", None)


def tested_inbox(kernel: Any) -> CommandInbox:
    """Return the inbox of the kernel whose cell runs now, after one test of all that serving needs.

    Raises:
        Exception: marimo is not as this module knows it.
    """
    inbox = CommandInbox(*_places(sys._getframe()))
    inbox.test()
    return inbox


def _places(frame: FrameType | None) -> tuple[Any, Any]:
    """The queue of commands, and marimo's notes about them, out of the function that this cell runs in."""
    while frame is not None and frame.f_code.co_name != _LISTENS:
        frame = frame.f_back
    if frame is None:
        raise LookupError(f"its cells do not run inside of {_LISTENS}()")
    return frame.f_locals["control_queue"], frame.f_locals["ui_request_mgr"]


class CommandInbox:
    """The inbox of marimo. Only the thread that runs the cells may use it.

    Args:
        queue: the commands that wait.
        notes: which messages of widgets marimo has had.
    """

    def __init__(self, queue: Any, notes: Any) -> None:
        commands = import_module("marimo._runtime.commands")  # marimo has loaded both
        self._widgets = import_module("marimo._plugins.ui._impl.anywidget.init").WIDGET_COMM_MANAGER
        self._queue, self._notes = queue, notes
        self._command, self._custom = commands.ModelCommand, commands.ModelCustomMessage
        self._waiting = _kept.setdefault(queue, deque())

    def test(self) -> None:
        """Raise an error if one of the parts does something else than is expected here."""
        never = self._command(model_id="", message=self._custom(content=None), buffers=[])
        if [self._is_new(never), self._is_new(never), self._is_new(never)] != [True, False, True]:
            raise TypeError("it notes messages of widgets in another way")
        self._is_new(never)  # the note is gone again
        if "" in self._widgets.comms or not callable(self._widgets.receive_comm_message):
            raise TypeError("it has its widgets in another place")
        self.has_news()
        handed_out = vars(self._queue).get("get")
        _get_first(self._queue, deque([never]))
        if self._queue.get() is not never:
            raise TypeError("its queue hands out commands in another way")
        vars(self._queue).pop("get")
        if handed_out is not None:
            self._queue.get = handed_out

    def open(self) -> None:
        """Begin to look: nothing to do."""

    def has_news(self) -> bool:
        """Whether a command came that was not looked at."""
        return not self._queue.empty()

    def next(self) -> Any:
        """Take out the next message of a widget; all other commands stay, in order."""
        while True:
            try:
                command = type(self._queue).get(self._queue, False)  # not the `get` of this object: see below
            except Empty:
                return None
            if self._is_served(command):
                if self._is_new(command):
                    return command
            else:
                self._waiting.append(command)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The handlers run in the cell, and print below it."""
        yield

    def handle(self, message: Any) -> None:
        """Let the widget handle its message. A handler that fails is logged, as marimo does it."""
        try:
            self._widgets.receive_comm_message(message)
        except Exception:
            _log.exception("the handler of a widget's message failed")

    def close(self) -> None:
        """Give the kernel the commands that are left, before any newer one."""
        if self._waiting:
            _get_first(self._queue, self._waiting)

    def _is_new(self, command: Any) -> bool:
        pending: list[Any] = []
        self._notes._dedup(command, pending)
        return bool(pending)

    def _is_served(self, command: Any) -> bool:
        """Whether it is a message of a widget, and no earlier one to this widget waits.

        The new state of a widget that is wrapped in `mo.ui.anywidget` is none: the cells that use its value
        run again, and each cell keeps its turn.
        """
        if not isinstance(command, self._command):
            return False
        comm = self._widgets.comms.get(command.model_id)
        wrapped = getattr(comm, "ui_element_id", None) is not None
        if wrapped and not isinstance(command.message, self._custom):
            return False
        return all(getattr(other, "model_id", None) != command.model_id for other in self._waiting)


def _get_first(queue: Any, waiting: deque[Any]) -> None:
    """Make the queue hand out these commands first. To put them back would put them behind newer ones."""

    def get(block: bool = True, timeout: float | None = None) -> Any:
        try:
            return waiting.popleft()
        except IndexError:
            vars(queue).pop("get", None)
            return queue.get(block, timeout)

    queue.get = get
