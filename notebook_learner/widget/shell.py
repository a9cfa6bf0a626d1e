"""Make buttons work while a cell trains.

A notebook's page talks to the kernel's main thread. While a cell trains, that thread is busy, and the message
of a button would wait until the cell is over. So the training checks for messages between two steps, at most
20 times a second. The kernel then handles those that do not change the order of cells: messages of widgets,
and the questions of a page that was just (re)loaded or that completes a name. New cells wait as usual.

    servicing = shell.servicing()            # None outside a kernel
    with servicing.during():
        while training:
            step()
            servicing.serve()

The steps print below their cell, as usual. What the handler of a message prints belongs to the message, not
to the cell: JupyterLab shows it in its log console, and an `Output` widget can catch it.

This uses private parts of ipykernel (see shell_streams.py) and of marimo (see marimo_queue.py), which may
change. They are tested first. If one is missing, or fails later, the log of "notebook_learner" says so.
Training then continues, and buttons act when the cell is over. `NOTEBOOK_LEARNER_SERVICING=off` in the
environment, or `disable()`, switches servicing off.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Any, Literal

from . import marimo_queue, shell_streams

Mode = Literal["boundary", "subshell", "interrupt"]

SWITCH = "NOTEBOOK_LEARNER_SERVICING"
"""The environment variable that switches servicing off."""
PAUSE = 0.05
"""Seconds between two checks: short enough that a click seems to act at once. A check costs 1-4 us."""
ROUND = 0.05
"""Seconds of messages after which the training continues, even if more wait (the user drags a slider)."""

_log = logging.getLogger("notebook_learner")
_lock = threading.Lock()
_current: Servicing | None = None
_disabled = False


def servicing() -> Servicing | None:
    """Return the servicing of this process's kernel; None outside a kernel."""
    global _current
    kernel = _find_kernel()
    if kernel is None:
        return None
    with _lock:
        if _current is None or _current.kernel is not kernel:
            _current = Servicing(kernel)
        return _current


def disable() -> None:
    """Switch servicing off for this process; messages are then handled when the cell is over."""
    global _disabled
    _disabled = True  # a run that is served sees it at its next check, on its own thread


def _is_off() -> bool:
    return _disabled or os.environ.get(SWITCH, "").strip().lower() in ("off", "0", "no", "false")


def _find_kernel() -> Any | None:
    # A running kernel has loaded IPython. If IPython is not loaded, there is no kernel: no need to load it.
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()  # another thread may be importing it
    return getattr(shell, "kernel", None) or marimo_queue.kernel()


class Servicing:
    """Hands the page's messages to the kernel between the steps of a training. Get it with `servicing()`.

    Attributes:
        kernel: the kernel of this process.
        problem: why messages cannot be served at step boundaries, or "".
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.problem = ""
        self._inbox: shell_streams.Inbox | None = None
        self._open = False
        self._serving = False
        self._next = 0.0
        of_marimo = marimo_queue.kernel() is kernel
        # `marimo run` gives each visitor a thread.
        self._thread = threading.get_ident() if of_marimo else threading.main_thread().ident
        try:
            self._inbox = (marimo_queue if of_marimo else shell_streams).tested_inbox(kernel)
        except Exception as error:
            self.problem = f"this kernel is of an unknown make: {type(error).__name__}: {error}"
            _log.warning("buttons act when the cell is over: %s", self.problem)

    @property
    def mode(self) -> Mode:
        """When a message reaches its handler while a cell runs.

        "boundary": at the next step. "subshell": on another thread, if the page asks for that (JupyterLab
        with ipykernel 7). "interrupt": when the cell is over; only the kernel's own ■ acts at once.
        """
        if self._inbox is not None and not _is_off():
            return "boundary"
        return "subshell" if shell_streams.delivers_on_subshells(self.kernel) else "interrupt"

    @property
    def is_here(self) -> bool:
        """Whether this is the thread that runs the cells: no other one is served, or waits for buttons."""
        return threading.get_ident() == self._thread

    @property
    def is_open(self) -> bool:
        """Whether a blocking run is being served."""
        return self._open

    def open(self) -> None:
        """Begin to serve a run that blocks the cells' thread. A second call has no effect."""
        if self._open or self.mode != "boundary" or not self.is_here:
            return
        assert self._inbox is not None
        self._open, self._next = True, 0.0
        try:
            self._inbox.open()
        except Exception as error:
            self._give_up(error)

    def serve(self) -> None:
        """Let the kernel handle waiting messages; call it between any two steps.

        Without messages it costs less than a microsecond, and a few microseconds 20 times a second. Only the
        cells' thread serves.
        """
        if not self._open or monotonic() < self._next:
            return
        if self._serving or not self.is_here:
            return
        self._serving = True
        try:
            if _disabled:
                self.close()
            else:
                self._serve()
        except Exception as error:
            self._give_up(error)
        finally:
            self._serving = False
            self._next = monotonic() + PAUSE

    def close(self) -> None:
        """End the serving of a run. The kernel gets the messages that are left, in order."""
        if not self._open or not self.is_here:
            return
        self._open = False
        try:
            self._leave()
        except Exception as error:
            self._give_up(error)

    @contextmanager
    def during(self) -> Iterator[None]:
        """Open for a block of code. In nested blocks, the outer one closes."""
        opens = not self._open
        try:
            self.open()
            yield
        finally:
            if opens:
                self.close()

    # ------------------------------------------------------------------------------------------ a round

    def _serve(self) -> None:
        inbox = self._inbox
        if inbox is None or not inbox.has_news():
            return
        # Until all messages are put back, an interrupt would lose some.
        with _held_interrupt():
            message = inbox.next()
            if message is None:
                return
            end = monotonic() + ROUND
            with inbox.aside():
                while message is not None:
                    inbox.handle(message)
                    message = inbox.next() if self._open and monotonic() < end else None

    def _leave(self) -> None:
        assert self._inbox is not None
        with _held_interrupt():
            self._inbox.close()

    def _give_up(self, error: Exception) -> None:
        """Never serve again, and log it once: the kernel does not work as this module expects."""
        inbox, self._inbox, was_open, self._open = self._inbox, None, self._open, False
        self.problem = f"{type(error).__name__}: {error}"
        _log.warning(
            "buttons act when the cell is over: handling messages between steps failed with %s",
            self.problem,
            exc_info=error,
        )
        if inbox is not None and was_open:
            try:
                inbox.close()
            except Exception:
                _log.debug("the messages that waited could not be handed back", exc_info=True)


# ------------------------------------------------------------------------------------------ interrupts


@contextmanager
def _held_interrupt() -> Iterator[None]:
    """Delay ■ until all is put back. A second press acts at once: then a handler hangs."""
    before = signal.getsignal(signal.SIGINT)
    # A visitor's thread of `marimo run` gets no interrupt.
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    act: Callable[[int, FrameType | None], Any] = before
    pressed: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            act(number, frame)

    signal.signal(signal.SIGINT, press)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            act(pressed[0], sys._getframe())
