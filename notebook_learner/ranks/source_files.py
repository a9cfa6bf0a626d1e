"""The files of the user's own code, and whether they have changed since the processes imported them."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress

_INSTALLED = ("site-packages", "dist-packages")


class Files:
    """The source files of the imported modules, with their times when they were first seen."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def look(self) -> None:
        """Add the files of modules that were imported since the last call."""
        for file in _own_files():
            if file not in self._times:
                self._times[file] = _time_of(file)

    def changed(self) -> bool:
        """Whether a file was edited since: a process that has imported it runs the old code."""
        return any(_time_of(file) != time for file, time in self._times.items())


def _own_files() -> Iterator[str]:
    """The files that do not belong to an installed package: users edit their own files."""
    library = sysconfig.get_path("stdlib")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not file.startswith(library) and not any(p in file for p in _INSTALLED):
            yield file


def _time_of(file: str) -> int:
    with suppress(OSError):
        return os.stat(file).st_mtime_ns
    return 0  # it is gone, or is in an archive
