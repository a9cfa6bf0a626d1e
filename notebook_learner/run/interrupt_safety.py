"""Decides where an interrupt may break off a step that hangs: the exception must not leave a lock taken.

Python runs a signal's handler between any two calls. So a KeyboardInterrupt may come right after a lock was
taken and before the `try` that would release it. `logging` takes a lock around every fork, and the queues
of a DataLoader take one for every batch. If such a lock stays taken, a thread, or the end of the loader's
workers, waits for ever.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from types import CodeType, FrameType

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
