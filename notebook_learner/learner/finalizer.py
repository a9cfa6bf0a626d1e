"""Stops a learner's threads and worker processes when the learner is garbage-collected.

When the last reference to a learner goes, the thread that dropped it waits for the end, and finds the memory
free. The garbage collector must not wait: it calls a finalizer in any thread, between any two calls, with any
lock held. Once it ran in a writer inside h5py, which held h5py's only lock. There it waited for another
learner's writer, which needed that lock: a deadlock. So a collected learner is handed to a thread of its own.

This module keeps no reference to what it ends. A step, a model or a metric that refers to its learner (in a
closure, for example) makes a reference cycle. With a reference from here, such as `weakref.finalize` keeps,
the cycle would never be collected.
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
"""The only queue into which a finalizer may put while it interrupts another `put`."""
_lock = threading.Lock()
_partings: weakref.WeakSet[Parting] = weakref.WeakSet()
_thread: threading.Thread | None = None
_process = os.getpid()
_told = OrderedDict.fromkeys(("start", "stop"))
"""The last phase of the garbage collector is the last key. The collector's callback is `move_to_end`, which
is written in C: in a Python function an interrupt could be raised, and it would be printed and lost there. So
the collecting thread is not known; what another thread drops in that moment is handed over, too."""


def lets_go(verb: Callable[P, T]) -> Callable[P, T]:
    """Decorate a learner's verb so that the traceback of its interrupt keeps no learner alive. Python and
    IPython keep the last traceback, so the locals of our own frames are cleared. The frames of the user's
    code stay whole, for `%debug`."""

    @wraps(verb)
    def letting_go(*given: P.args, **named: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return verb(*given, **named)
        except KeyboardInterrupt as interrupt:
            trace = interrupt.__traceback__
            while trace is not None:
                if str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_OURS):
                    with suppress(RuntimeError):  # this frame still runs
                        trace.tb_frame.clear()
                trace = trace.tb_next
            del given, named, trace
            raise

    return letting_go


class Parting:
    """Calls `end` when its only owner is garbage-collected, or when the interpreter ends.

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
        # After a collection the handed-over object lives on for a moment; the next collection takes it.
        if (end := self.take()) is not None:
            _part(end)

    def take(self) -> Ending | None:
        """Give the ending to the first caller only. A forked child gets None, as it would end what belongs to
        its parent."""
        end, self._end = self._end, None
        return None if end is None or os.getpid() != self._process else end


def end_all() -> None:
    """End in this thread all learners that are still alive, as the interpreter ends; pending endings finish
    first."""
    global _thread
    if os.getpid() != _process:  # in a forked child: the parent ends its own learners
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
    if next(reversed(_told)) == "start" and _thread is not None:  # there is no thread after the end
        _left.put(end)
    else:
        _end(end)


def _begin() -> None:
    global _thread, _process
    if _thread is None or not _thread.is_alive():  # a forked process has no live thread
        _process = os.getpid()
        # A daemon thread: it waits for learners as long as the process runs, and `end_all` waits for it.
        _thread = threading.Thread(target=_serve, name="notebook_learner parting", daemon=True)
        _thread.start()


def _serve() -> None:
    while (end := _left.get()) is not None:
        _end(end)
        del end  # it refers to a whole training


def _end(end: Ending) -> None:
    try:
        end()
    except Exception as error:  # no caller is left; it is printed like an error of any thread
        told = (type(error), error, error.__traceback__, threading.current_thread())
        threading.excepthook(threading.ExceptHookArgs(told))


_tell: Any = _told.move_to_end  # gets (phase, info); `info` is never empty, so it always moves to the end
gc.callbacks.append(_tell)
atexit.register(end_all)
ends_before(end_all)
