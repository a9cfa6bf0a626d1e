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

This uses private parts of ipykernel, which may change (see shell_streams.py). They are tested first. If one
is missing, or fails later, the log of "notebook_learner" says so. Training then continues, and buttons act
when the cell is over. `NOTEBOOK_LEARNER_SERVICING=off` in the environment, or `disable()`, switches
servicing off.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from types import FrameType
from typing import Any, Literal

from . import shell_streams

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
    return getattr(shell, "kernel", None)


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
        self._main = threading.main_thread().ident
        try:
            self._inbox = _tested_inbox(kernel)
        except Exception as error:
            self.problem = f"this kernel is of an unknown make: {type(error).__name__}: {error}"

    @property
    def mode(self) -> Mode:
        """When a message reaches its handler while a cell runs.

        "boundary": at the next step. "subshell": on another thread, if the page asks for that (JupyterLab
        with ipykernel 7.0 to 7.3). "interrupt": when the cell is over; only the kernel's own ■ acts at once.
        """
        if self._inbox is not None and not _is_off():
            return "boundary"
        return "subshell" if _delivers_on_subshells(self.kernel) else "interrupt"

    @property
    def is_open(self) -> bool:
        """Whether a blocking run is being served."""
        return self._open

    def open(self) -> None:
        """Begin to serve a run that blocks the main thread. A second call has no effect."""
        if self._open or self.mode != "boundary" or threading.get_ident() != self._main:
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
        main thread serves.
        """
        if not self._open or monotonic() < self._next:
            return
        if self._serving or threading.get_ident() != self._main:
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
        if not self._open or threading.get_ident() != self._main:
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
            with ExitStack() as put_back:
                put_back.enter_context(_same_parent(self.kernel))
                put_back.enter_context(_without_hooks(self.kernel))
                while message is not None:
                    _drive(self.kernel.dispatch_shell(message))
                    message = inbox.next() if self._open and monotonic() < end else None

    def _leave(self) -> None:
        assert self._inbox is not None
        with _held_interrupt():
            self._inbox.close()

    def _give_up(self, error: Exception) -> None:
        """Never serve again, and log it once: ipykernel does not work as this module expects."""
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


# --------------------------------------------------------------------------------------- what is found


def _tested_inbox(kernel: Any) -> shell_streams.Inbox:
    """Return the kernel's inbox after one test of all that serving needs; raise an error if a test fails."""
    import zmq

    inbox = shell_streams.find_inbox(kernel)
    frames = [zmq.Frame(part) for part in kernel.session.serialize(kernel.session.msg("comm_info_request"))]
    if shell_streams.kind_of(kernel, frames) != "comm_info_request":
        raise TypeError("its messages cannot be read")
    if kernel._parent_ident["shell"] is None or not isinstance(kernel.get_parent("shell"), dict):
        raise TypeError("it does not tell which cell runs")
    for name in ("dispatch_shell", "set_parent", "_publish_status", "pre_handler_hook", "post_handler_hook"):
        if not callable(getattr(kernel, name)):
            raise TypeError(f"its {name} is no function")
    inbox.open()
    inbox.has_news()
    inbox.close()  # wakes the event loop again, for a message whose signal this check may have used up
    return inbox


def _delivers_on_subshells(kernel: Any) -> bool:
    """Whether a widget's message gets to the subshell that it asks for.

    ipykernel 7.4 sends it to the loop that wrote to the widget last, mostly that of the main thread.
    """
    if not getattr(kernel, "_supports_kernel_subshells", False):
        return False
    comm = sys.modules.get("ipykernel.comm.comm")
    return not hasattr(getattr(comm, "BaseComm", None), "_reply_subshell_for")


# ------------------------------------------------------------------------------- putting things back


@contextmanager
def _held_interrupt() -> Iterator[None]:
    """Delay ■ until all is put back. A second press acts at once: then a handler hangs."""
    before = signal.getsignal(signal.SIGINT)
    if not callable(before):
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


@contextmanager
def _same_parent(kernel: Any) -> Iterator[None]:
    """Handle other messages without changing the present cell's prints, displays and busy status."""
    ident, parent = kernel._parent_ident["shell"], kernel.get_parent("shell")
    _flush_prints()  # older kernels choose the cell of a print only when they send it
    try:
        yield
    finally:
        _flush_prints()
        kernel.set_parent(ident, parent)
        kernel._publish_status("busy", "shell")


def _flush_prints() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


@contextmanager
def _without_hooks(kernel: Any) -> Iterator[None]:
    """Leave out the kernel's hooks around a handler: they replace the run's SIGINT handler by Python's."""
    names = ("pre_handler_hook", "post_handler_hook")
    own = {name: vars(kernel)[name] for name in names if name in vars(kernel)}
    try:
        for name in names:
            setattr(kernel, name, _nothing)
        yield
    finally:
        for name in names:
            vars(kernel).pop(name, None)
        vars(kernel).update(own)


def _nothing() -> None:
    pass


# --------------------------------------------------------------------------------------- coroutines

TURNS = 100


def _drive(handling: Any) -> None:
    """Run the kernel's coroutine now. The handlers of ipykernel never wait.

    If one does wait, the event loop finishes it when the cell is over.
    """
    if not inspect.iscoroutine(handling):
        return
    waits_for = None
    try:
        for _ in range(TURNS):
            waits_for = handling.send(None)
            if waits_for is not None:
                break
    except StopIteration:
        return
    _unfinished.add(rest := asyncio.ensure_future(_Rest(handling, waits_for)))
    rest.add_done_callback(_unfinished.discard)


_unfinished: set[asyncio.Future[Any]] = set()


class _Rest:
    """The rest of a coroutine, from the point where it began to wait."""

    def __init__(self, handling: Any, waits_for: Any) -> None:
        self._handling, self._waits_for = handling, waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                got = yield waits_for
            except BaseException as error:
                resume = (self._handling.throw, error)
            else:
                resume = (self._handling.send, got)
            try:
                waits_for = resume[0](resume[1])
            except StopIteration as end:
                return end.value
