"""h5py, loaded by whoever needs it first, and the end of the interpreter put in order.

h5py takes its type conversions away by an `atexit` hook. Hooks run last come, first served, so one that
was registered before h5py was loaded runs when it works no more; a training in the background that ends
only then could not write its last files.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

_endings: list[Callable[[], None]] = []
_lock = threading.Lock()
_hooked = False


def load() -> Any:
    """The h5py package; it has no types. Loading it takes 60 ms and more."""
    global _hooked
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
