"""Buttons that work while a cell trains.

A notebook's page talks to the kernel's main thread, and that thread is busy: what a button sends waits until
the cell is over. So the training looks between two steps, at most 20 times a second, whether something came,
and lets the kernel handle what does not change the order of cells: messages of widgets, and the questions of
a page that was just (re)loaded, or that completes a name. Cells that were sent meanwhile wait their turn.

    servicing = shell.servicing()            # None outside a kernel
    with servicing.during():
        while training:
            step()
            servicing.serve()

Prints of the steps stay with their cell. What the handler of a message prints goes where it always goes: it
belongs to the message, not to the cell; JupyterLab shows it in its log console, and an `Output` widget can
catch it.

This uses parts of ipykernel that it does not promise to keep (see shell_streams.py). They are tried first; if
something is missing, or fails later, a line in the log of "notebook_learner" says so, training goes on, and
buttons act when the cell is over. `NOTEBOOK_LEARNER_SERVICING=off` in the environment, or `disable()`,
switches it off.
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
"""Seconds between two looks: a click acts at once for a person, and a look costs 1-4 us."""
ROUND = 0.05
"""Seconds after which a flood of messages (a slider that is dragged) lets the training go on."""

_log = logging.getLogger("notebook_learner")
_lock = threading.Lock()
_current: Servicing | None = None
_disabled = False


def servicing() -> Servicing | None:
    """The servicing of this process's kernel, or None where no kernel runs."""
    global _current
    kernel = _find_kernel()
    if kernel is None:
        return None
    with _lock:
        if _current is None or _current.kernel is not kernel:
            _current = Servicing(kernel)
        return _current


def disable() -> None:
    """Switch servicing off for the rest of this process; messages are handled when the cell is over."""
    global _disabled
    _disabled = True  # a run that is being served sees it when it looks next, in its own thread


def _is_off() -> bool:
    return _disabled or os.environ.get(SWITCH, "").strip().lower() in ("off", "0", "no", "false")


def _find_kernel() -> Any | None:
    # A kernel that runs has loaded IPython. Where it is not loaded there is none, and nothing is loaded.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None)


class Servicing:
    """Hands the page's messages to the kernel between the steps of a training. Get it with `servicing()`.

    Attributes:
        kernel: the kernel that runs this process.
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
        """How a message reaches a handler while a cell runs.

        "boundary": at the next step. "subshell": on another thread, where the page asks for that (JupyterLab
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
        """A run that blocks the main thread begins. Opening twice is like opening once."""
        if self._open or self.mode != "boundary" or threading.get_ident() != self._main:
            return
        assert self._inbox is not None
        self._open, self._next = True, 0.0
        try:
            self._inbox.open()
        except Exception as error:
            self._give_up(error)

    def serve(self) -> None:
        """Let the kernel handle what came; call it between any two steps. Where there is nothing to do it
        costs less than a microsecond, and a few of them 20 times a second. Only the main thread serves."""
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
        """The run is over, however it ended: what was not served is the kernel's again, in order."""
        if not self._open or threading.get_ident() != self._main:
            return
        self._open = False
        try:
            self._leave()
        except Exception as error:
            self._give_up(error)

    @contextmanager
    def during(self) -> Iterator[None]:
        """Open for a block of code. In another block that is open, the outer one closes."""
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
        # From the first message taken out until all is put back, an interrupt would lose something.
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
        """Something is not as this module believes: never serve again, and say so once."""
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
    """The kernel's inbox, after everything that serving needs was looked at once. Raises what is wrong."""
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
    inbox.close()  # gives the event loop back the news that this look may have used up
    return inbox


def _delivers_on_subshells(kernel: Any) -> bool:
    """Whether a widget's message that asks for a subshell gets there: ipykernel 7.4 sends it to the loop that
    wrote to the widget last, mostly the main thread."""
    if not getattr(kernel, "_supports_kernel_subshells", False):
        return False
    comm = sys.modules.get("ipykernel.comm.comm")
    return not hasattr(getattr(comm, "BaseComm", None), "_reply_subshell_for")


# ------------------------------------------------------------------------------- putting things back


@contextmanager
def _held_interrupt() -> Iterator[None]:
    """■ counts when all is put back. Pressed a second time it counts at once: then a handler hangs."""
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
    """Whatever is dispatched meanwhile, prints and displays belong to the same cell before and after, and the
    kernel is busy with it."""
    ident, parent = kernel._parent_ident["shell"], kernel.get_parent("shell")
    _flush_prints()  # older kernels look only when they send a text whose it is
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
    """The kernel's hooks around a handler put Python's own SIGINT handler in the place of the run's."""
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
    """Run the kernel's coroutine here and now. The handlers of ipykernel never wait; one that does is ended
    by the event loop when the cell is over."""
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
    """A coroutine from the point where it began to wait."""

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
