"""What a learner leaves behind is ended once nobody holds the learner any more.

Whoever lets go of it waits for that, and finds its memory free. The garbage collector must not: it calls a
finalizer wherever it happens to run, in any thread, between any two calls, with any lock held. A writer
that it struck inside h5py, whose one lock it held, waited there for another learner's writer, which needed
that lock: for ever. So what is collected is handed to a thread of its own.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from ..store.hdf5_library import ends_before

Ending = Callable[[], None]

_left: SimpleQueue[Ending | None] = SimpleQueue()
"""The one queue that may be put into by a finalizer that interrupts another `put`."""
_lock = threading.Lock()
_held: list[weakref.finalize[[Ending], object]] = []
_thread: threading.Thread | None = None
_process = os.getpid()
_collector: int | None = None
"""The thread that collects garbage right now."""


def when_gone(thing: object, end: Ending) -> None:
    """Call `end` when nobody holds the thing any more, or as the interpreter ends.

    >>> class Thing: ...
    >>> thing = Thing()
    >>> when_gone(thing, lambda: print("gone"))
    >>> del thing
    gone
    """
    finalizer = weakref.finalize(thing, _part, end)
    finalizer.atexit = False  # `end_all` is there for that
    with _lock:
        _held[:] = [each for each in _held if each.alive]
        _held.append(finalizer)
        _begin()


def end_all() -> None:
    """The interpreter ends: whatever is still held is ended by this thread, and all else is over first."""
    global _thread
    if os.getpid() != _process:  # forked: what the parent holds is not ours to end
        return
    with _lock:
        thread, _thread = _thread, None
        held = [each.detach() for each in _held]
        _held.clear()
    if thread is not None:
        _left.put(None)
        thread.join()
    for found in held:
        if found is not None:
            _end(found[2][0])


def _note_collector(phase: str, info: dict[str, Any]) -> None:
    """Called around each collection (0.2 us; the cheapest takes 5)."""
    global _collector
    _collector = threading.get_ident() if phase == "start" else None


def _part(end: Ending) -> None:
    if _collector == threading.get_ident():
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


gc.callbacks.append(_note_collector)
atexit.register(end_all)
ends_before(end_all)
