"""Where a step that hangs may be broken off: an exception out of nowhere must leave no lock behind.

Python runs a signal's handler between any two calls, so a KeyboardInterrupt may come right after a lock was
taken and before the `try` that would give it back. `logging` takes a lock around every fork, and the queues
of a DataLoader take one for every batch; either of them left behind makes some thread, or the end of the
loader's workers, wait for ever.
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
"""Modules (and those below them) that take locks, or write down halves of what belongs together: an iterator
that is not noted down yet would keep its worker processes."""
_WAITING = {
    "threading": {"wait", "join", "_wait_for_tstate_lock"},
    "multiprocessing.connection": {"_poll", "_recv", "wait"},
    "multiprocessing.popen_fork": {"poll"},
}
"""Their functions that wait for something else, where nearly all of a hanging step's time goes by; they
put things right when they are left."""
_ENDING = {"__del__", "_shutdown_workers"}
"""Functions that clean up: an exception there is lost, and so is the rest of the cleaning."""
_CALLED_BACK = {"weakref": None, "_weakrefset": None, "importlib._bootstrap": {"cb"}}
"""Modules whose functions (or these of them) are called as something goes away: from there, too, an exception
is lost."""


class Breaking:
    """Tells at which interrupt to break off.

    >>> import sys
    >>> Breaking().is_harmless(sys._getframe())
    True
    """

    def __init__(self) -> None:
        self._last: tuple[FrameType | None, int] = (None, 0)

    def is_harmless(self, frame: FrameType | None) -> bool:
        """Whether an exception may be raised in this frame. Where it may not, but where the same frame has
        stood still since it was last asked about, it waits for a lock and does not hold it: it may."""
        at = (frame, frame.f_lasti if frame is not None else 0)
        stuck, self._last = at == self._last, at
        return stuck or not (_is_blocked() or _may_hold_a_lock(frame) or _cleans_up(frame))


def _is_blocked() -> bool:
    """Whether this thread keeps interrupts away for now: it starts processes, and they inherit that.
    Another thread may have been given the signal instead."""
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
    collecting = {_code(callback) for callback in gc.callbacks}  # what these raise is lost as well
    while frame is not None:
        if frame.f_code.co_name in _ENDING or frame.f_code in collecting or _is_called_back(frame):
            return True
        frame = frame.f_back
    return False


def _code(callback: Callable[..., object]) -> CodeType | None:
    """Of a function, of a method, or of an object that can be called."""
    function = callback if hasattr(callback, "__code__") else type(callback).__call__
    return getattr(function, "__code__", None)


def _is_called_back(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__")
    return module in _CALLED_BACK and frame.f_code.co_name in (_CALLED_BACK[module] or {frame.f_code.co_name})
