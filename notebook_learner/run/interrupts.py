"""Interrupts: where one may break off a step that hangs, and the button while the background trains."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .control import Control

_LOCKING = (
    "threading",
    "queue",
    "logging",
    "multiprocessing",
    "torch.utils.data.dataloader",
    "notebook_learner.data",
)
"""Modules (and those below them) that take locks, or that write data in two parts: an iterator that is
not noted yet would keep its worker processes."""
_WAITING = {
    "threading": {"wait", "join", "_wait_for_tstate_lock"},
    "multiprocessing.connection": {"_poll", "_recv", "wait"},
    "multiprocessing.popen_fork": {"poll"},
}
"""Their functions that wait for something else, where a hanging step spends nearly all its time. They
clean up when an exception leaves them."""
_ENDING = {"__del__", "_shutdown_workers"}
"""Functions that clean up: an exception there is lost, and the rest of the cleaning is skipped."""
_CALLED_BACK = {"weakref": None, "_weakrefset": None, "importlib._bootstrap": {"cb"}}
"""Modules whose functions (or these of them) run when an object is deleted: an exception there is lost
too."""


class Breaking:
    """Decides at which interrupt to break off.

    >>> import sys
    >>> Breaking().is_harmless(sys._getframe())
    True
    """

    def __init__(self) -> None:
        self._last: tuple[FrameType | None, int] = (None, 0)

    def is_harmless(self, frame: FrameType | None) -> bool:
        """Whether an exception may be raised in this frame. If not, but the same frame was seen at the last
        interrupt, it waits for a lock and does not hold it: then it may."""
        at = (frame, frame.f_lasti if frame is not None else 0)
        stuck, self._last = at == self._last, at
        return stuck or not (_is_blocked() or _may_hold_a_lock(frame) or _cleans_up(frame))


def _is_blocked() -> bool:
    """Whether this thread blocks interrupts: it starts processes, which inherit the block. Another thread
    may have received the signal instead."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        return False
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def _may_hold_a_lock(frame: FrameType | None) -> bool:
    if frame is None:
        return False
    module = str(frame.f_globals.get("__name__", ""))
    if frame.f_code.co_name in _WAITING.get(module, ()):
        return False
    return any(module == known or module.startswith(known + ".") for known in _LOCKING)


def _cleans_up(frame: FrameType | None) -> bool:
    collecting = {_code(callback) for callback in gc.callbacks}  # exceptions in these are lost too
    while frame is not None:
        if frame.f_code.co_name in _ENDING or frame.f_code in collecting or _is_called_back(frame):
            return True
        frame = frame.f_back
    return False


def _code(callback: Callable[..., object]) -> CodeType | None:
    """The code of a function, of a method, or of a callable object."""
    function = callback if hasattr(callback, "__code__") else type(callback).__call__
    return getattr(function, "__code__", None)


def _is_called_back(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    return module in _CALLED_BACK and frame.f_code.co_name in (_CALLED_BACK[module] or {frame.f_code.co_name})


_running: dict[int, Control] = {}
"""The trainings in the background, by their identity."""


def begins(control: Control) -> None:
    """A training begins in the background."""
    _running[id(control)] = control


def is_over(control: Control) -> None:
    """A background training has ended. An interrupt that came too late for it must not pause the next one."""
    _running.pop(id(control), None)
    control.forget_interrupts()


def attend() -> None:
    """From now on this kernel handles the interrupt button, also between two cells. Outside a kernel this
    does nothing: in a terminal Ctrl-C ends the main thread's work and the process, which pauses the training
    as it ends."""
    shell = _kernels_shell()
    if shell is None or threading.current_thread() is not threading.main_thread():
        return
    kernel = shell.kernel
    # The handler that the kernel restores when the cell has ended.
    between = getattr(kernel, "saved_sigint_handler", None)
    if between is signal.SIG_IGN or (callable(between) and not isinstance(between, _JoinedCell)):
        kernel.saved_sigint_handler = _JoinedCell(between)
        shell.events.register("pre_execute", join_the_cell)


def join_the_cell(*event: Any) -> None:
    """Join a cell's handler: while a cell runs, the kernel has another one than between two cells."""
    if not _running or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    # Only in a kernel, which sets its own handler for each cell: elsewhere our handler would stay for ever.
    if _kernels_shell() is not None and callable(handler) and not isinstance(handler, _JoinedCell):
        signal.signal(signal.SIGINT, _JoinedCell(handler))


def _kernels_shell() -> Any:
    """The shell of this kernel; None if this process is not a kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if getattr(shell, "kernel", None) is not None else None


class _JoinedCell:
    """A handler of SIGINT: the background trainings pause, and then the earlier handler runs."""

    def __init__(self, before: Callable[[int, FrameType | None], Any] | signal.Handlers | None) -> None:
        self._before = before
        self._process = os.getpid()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:  # not in a child, whose trainings belong to its parent
            for control in tuple(_running.values()):
                control.interrupt()
                if id(control) not in _running:  # it has just ended
                    control.forget_interrupts()
        if callable(self._before):
            self._before(signum, frame)
