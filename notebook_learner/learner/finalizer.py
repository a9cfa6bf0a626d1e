"""What a learner leaves behind is ended once nobody holds the learner any more.

Whoever lets go of it waits for that, and finds its memory free. The garbage collector must not: it calls a
finalizer wherever it happens to run, in any thread, between any two calls, with any lock held. A writer
that it struck inside h5py, whose one lock it held, waited there for another learner's writer, which needed
that lock: for ever. So what is collected is handed to a thread of its own.

Nothing here holds what it ends. A step, a model or a metric that refers to its learner (in a closure, say)
makes a circle of it all; held from here, as `weakref.finalize` would, none of it was ever collected.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from ..store.hdf5_library import ends_before

P = ParamSpec("P")
T = TypeVar("T")
Ending = Callable[[], None]
_OURS = __name__.partition(".")[0] + "."

_left: SimpleQueue[Ending | None] = SimpleQueue()
"""The one queue that may be put into by a finalizer that interrupts another `put`."""
_lock = threading.Lock()
_partings: weakref.WeakSet[Parting] = weakref.WeakSet()
_thread: threading.Thread | None = None
_process = os.getpid()
_told = OrderedDict.fromkeys(("start", "stop"))
"""What the garbage collector said last comes last. Its callback is `move_to_end`, in C: in a function of
Python's an interrupt may be raised, and there it would be printed and lost. Which thread collects is not
known so; what another one lets go of in that very moment is handed over, too."""


def lets_go(verb: Callable[P, T]) -> Callable[P, T]:
    """A learner's verb whose interrupt holds no learner: Python and IPython keep the last traceback, and what
    ran in our own frames belongs to nobody then. Those of the user's code stay whole, for `%debug`."""

    @wraps(verb)
    def letting_go(*given: P.args, **named: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return verb(*given, **named)
        except KeyboardInterrupt as interrupt:
            trace = interrupt.__traceback__
            while trace is not None:
                if str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_OURS):
                    with suppress(RuntimeError):  # this one still runs
                        trace.tb_frame.clear()
                trace = trace.tb_next
            del given, named, trace
            raise

    return letting_go


class Parting:
    """Held by one thing alone: calls `end` when nobody holds that thing, or as the interpreter ends.

    >>> class Thing: ...
    >>> thing = Thing()
    >>> thing.parting = Parting(lambda: print("gone"))
    >>> del thing
    gone
    """

    def __init__(self, end: Ending) -> None:
        self._end: Ending | None = end
        self._process = os.getpid()
        with _lock:
            _partings.add(self)
            _begin()

    def __del__(self) -> None:
        # What is handed over from a collection lives on for a moment, whole, and the next one takes it.
        if (end := self.take()) is not None:
            _part(end)

    def take(self) -> Ending | None:
        """What is to be called, given to whoever asks first; not to a child that was forked meanwhile, where
        it would end what is its parent's."""
        end, self._end = self._end, None
        return None if end is None or os.getpid() != self._process else end


def end_all() -> None:
    """The interpreter ends: whatever is still held is ended by this thread, and all else is over first."""
    global _thread
    if os.getpid() != _process:  # forked: what the parent holds is not ours to end
        return
    with _lock:
        thread, _thread = _thread, None
        held = list(_partings)
    if thread is not None:
        _left.put(None)
        thread.join()
    for parting in held:
        if (end := parting.take()) is not None:
            _end(end)


def _part(end: Ending) -> None:
    if next(reversed(_told)) == "start" and _thread is not None:  # none is there when all is over
        _left.put(end)
    else:
        _end(end)


def _begin() -> None:
    global _thread, _process
    if _thread is None or not _thread.is_alive():  # none is alive in a process that was forked
        _process = os.getpid()
        # A daemon: it waits for learners as long as there may be any, and `end_all` waits for it.
        _thread = threading.Thread(target=_serve, name="notebook_learner parting", daemon=True)
        _thread.start()


def _serve() -> None:
    while (end := _left.get()) is not None:
        _end(end)
        del end  # it holds a whole training


def _end(end: Ending) -> None:
    try:
        end()
    except Exception as error:  # nobody is left to raise it to; told as that of any thread is
        told = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(told))


_tell: Any = _told.move_to_end  # of (phase, info); `info` is never empty, so it is always to the end
gc.callbacks.append(_tell)
atexit.register(end_all)
ends_before(end_all)
