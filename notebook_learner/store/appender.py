"""Writes one text file that only grows. If the disk fails, no line is lost or written twice."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from . import durable, files
from .run_folder import RunPath, below


class Descriptor:
    """One open file. To open the file again, make a new object: Python calls a finalizer only once, and
    a learner's last files may be written after the garbage collector has run.

    >>> import os
    >>> opened = Descriptor(os.open(".", os.O_RDONLY))
    >>> opened.number is None
    False
    >>> opened.close()
    >>> opened.number is None
    True
    """

    __slots__ = ("number",)

    def __init__(self, number: int | None = None) -> None:
        self.number = number

    def close(self) -> None:
        """Close it; a second call does nothing."""
        number, self.number = self.number, None
        if number is not None:
            files.close(number)

    def __reduce__(self) -> Any:
        """Refuse: in another process its number is another file."""
        raise TypeError("an open file cannot be sent to another process")

    def __del__(self) -> None:
        with suppress(OSError):  # no caller is left to get the error, and durable data was synced before
            self.close()


_CHUNK = 1 << 20


class LineAppender:
    """Appends whole lines, and keeps them in memory until the disk takes them.

    `add` only puts lines into memory; `write_out` gives all waiting lines to the kernel, if possible in one
    call. There is no buffer in between: what was written survives a `kill -9`.
    """

    __slots__ = ("_file", "_fresh", "_sent", "_waiting", "_waiting_lines", "blank", "lines", "path")

    def __init__(self, path: Path, *, fresh: bool = False, blank: str = "\n") -> None:
        self._file = Descriptor()
        self.path = below(path)
        self.blank = blank
        """The line of a step without a value."""
        self.lines = 0
        """The number of all lines, written or waiting."""
        self._fresh = fresh
        self._nothing_waits()

    @property
    def waiting(self) -> bool:
        """Whether lines still wait for the disk."""
        return bool(self._waiting)

    @property
    def is_open(self) -> bool:
        """Whether it holds a descriptor."""
        return self._file.number is not None

    def add(self, text: str, lines: int) -> None:
        """Take text of `lines` whole lines, which `write_out` will write."""
        self._waiting += text.encode(errors="backslashreplace")
        self._waiting_lines += lines
        self.lines += lines

    def fill(self, lines: int) -> None:
        """Add blank lines until there are `lines` lines."""
        if lines > self.lines:
            self.add(self.blank * (lines - self.lines), lines - self.lines)

    def write_out(self) -> None:
        """Write all waiting lines. After an OSError the rest still waits; call again."""
        if not self._waiting:
            return
        descriptor = self._open()
        while self._sent < len(self._waiting):
            rest = memoryview(self._waiting)[self._sent :]
            written = files.append(descriptor, rest)
            if not written:
                raise OSError(errno.EIO, "the file system took no byte and gave no reason", str(self.path))
            self._sent += written
        self._nothing_waits()

    def keep(self, lines: int) -> None:
        """Cut the file after its first `lines` lines; a file with fewer lines starts anew."""
        self.close()
        self._nothing_waits()
        size = _end_of_line(self.path, lines)
        if size is None:
            files.unlink(self.path)
        else:
            files.truncate(self.path, size)
        self._fresh = size is None
        self.lines = 0 if size is None else lines

    def close(self) -> None:
        """Close the descriptor; a later `write_out` opens the file again and appends to it."""
        self._file.close()

    def _nothing_waits(self) -> None:
        self._waiting, self._waiting_lines, self._sent = b"", 0, 0

    def _open(self) -> int:
        number = self._file.number
        if number is None:
            files.make_directory(self.path.parent)
            number = files.open_to_append(self.path, fresh=self._fresh)
            self._file, self._fresh = Descriptor(number), False
        elif files.link_count(number) == 0:  # 0.5 us: without it a removed file swallows lines
            self._start_over()
        return number

    def _start_over(self) -> None:
        """Replace the lines of a removed file by blank lines, so that line k is still step k."""
        self.close()
        lost = self.lines - self._waiting_lines
        self._waiting = self.blank.encode() * lost + self._waiting
        self._waiting_lines, self._sent, self._fresh = self.lines, 0, True
        raise FileNotFoundError(
            errno.ENOENT,
            f"the log file was removed while the run wrote to it, and its {lost} lines with it; "
            "the next write starts it anew with blank lines for them",
            str(self.path),
        )


def _end_of_line(path: RunPath, line: int) -> int | None:
    """The size of the file's first `line` lines; None for 0 lines, or if it has fewer lines before the first
    NUL byte. A power cut leaves blocks of NUL bytes."""
    if line == 0 or not os.path.lexists(path):
        return None
    passed, nul = 0, bytearray()
    with durable.opened(path) as file:
        while passed < file.size and not nul:
            chunk, nul, _ = file.read(passed, min(_CHUNK, file.size - passed)).partition(b"\0")
            here = chunk.count(b"\n")
            if here >= line:
                ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
                return passed + int(ends[line - 1]) + 1
            line -= here
            passed += len(chunk)
    return None
