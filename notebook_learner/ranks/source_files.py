"""The files that a person's own code comes from, and whether they are still what the processes imported."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress

_INSTALLED = ("site-packages", "dist-packages")


class Files:
    """Of the modules in use, as they were when they were seen first."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def look(self) -> None:
        """See which there are by now."""
        for file in _own_files():
            if file not in self._times:
                self._times[file] = _time_of(file)

    def changed(self) -> bool:
        """Whether one was edited since: a process that has imported it runs what it was."""
        return any(_time_of(file) != time for file, time in self._times.items())


def _own_files() -> Iterator[str]:
    """Those of no installed package: people edit their own."""
    library = sysconfig.get_path("stdlib")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(library) and not any(p in file for p in _INSTALLED):
            yield file


def _time_of(file: str) -> int:
    with suppress(OSError):
        return os.stat(file).st_mtime_ns
    return 0  # it is gone, or lies in an archive
