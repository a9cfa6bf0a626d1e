"""Loads h5py at its first use, and orders the hooks at the end of the interpreter.

h5py removes its type conversions in an `atexit` hook. The hook that was registered last runs first. So a hook
that was registered before h5py was loaded runs when h5py does not work any more, and a training in the
background that ends only then could not write its last files.

While h5py is loaded, it asks `platform` for the processor, which runs a program (`uname -p`). A pipe reports
the start of this program. If another thread forks a process in that moment, such as a loader's worker, that
process holds the pipe open. Then the import, and every thread that waits for the files, would wait until the
worker ends. So this module asks for the processor first, and lets no thread fork meanwhile.
"""

from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

_endings: list[Callable[[], None]] = []
_lock = threading.Lock()
_asking = threading.RLock()
"""Not held while h5py is loaded: a fork first takes the lock of h5py, and loading h5py needs that lock."""
_hooked = False

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_asking.acquire, after_in_parent=_asking.release, after_in_child=_asking.release
    )


def load() -> Any:
    """The h5py package, which has no types. Loading it takes at least 60 ms."""
    global _hooked
    with _asking:
        platform.processor()  # `platform` keeps the answer
    h5py = import_module("h5py")
    with _lock:
        if not _hooked:
            _complete(h5py)
            atexit.register(_end_all)
            _hooked = True
    return h5py


def _complete(package: Any) -> None:
    """Name the modules of a package in it. An interrupt in the midst of its import leaves them loaded; when
    the package is loaded again, Python finds them, and does not name them."""
    for name, module in [*sys.modules.items()]:
        parent, _, own = name.rpartition(".")
        if parent == package.__name__ and not hasattr(package, own):
            setattr(package, own, module)


def ends_before(ending: Callable[[], None]) -> None:
    """Register a function that is called before h5py ends."""
    _endings.append(ending)


def _end_all() -> None:
    for ending in list(_endings):
        ending()
