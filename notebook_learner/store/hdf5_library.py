"""h5py, loaded by whoever needs it first, and the end of the interpreter put in order.

h5py takes its type conversions away by an `atexit` hook. Hooks run last come, first served, so one that
was registered before h5py was loaded runs when it works no more; a training in the background that ends
only then could not write its last files.

And while it is loaded it asks `platform` for the processor, which runs a program (`uname -p`). The pipe by
which that says that it has begun would be held open by a process that another thread forks in that moment,
such as a loader's worker: the loading would wait until the worker ends, and whoever waits for the files as
well. So that is asked beforehand, and nothing is forked meanwhile.
"""

from __future__ import annotations

import atexit
import os
import platform
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

_endings: list[Callable[[], None]] = []
_lock = threading.Lock()
_asking = threading.RLock()
"""Not held while h5py is loaded: where somebody forks, h5py's own lock is taken first, and that is needed to
load it."""
_hooked = False

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_asking.acquire, after_in_parent=_asking.release, after_in_child=_asking.release
    )


def load() -> Any:
    """The h5py package; it has no types. Loading it takes 60 ms and more."""
    global _hooked
    with _asking:
        platform.processor()  # remembered from here on
    h5py = import_module("h5py")
    with _lock:
        if not _hooked:
            atexit.register(_end_all)
            _hooked = True
    return h5py


def ends_before(ending: Callable[[], None]) -> None:
    """Have this called before h5py ends."""
    _endings.append(ending)


def _end_all() -> None:
    for ending in list(_endings):
        ending()
