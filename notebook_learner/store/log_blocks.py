"""Reads the whole lines of a log, a block at a time, so that a file of any size takes little memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .durable import Reader

BLOCK = 1 << 18
"""Bytes read and parsed at once: a parsed line takes up to 30 times its bytes for a moment."""
LARGEST = 1 << 30
"""The most bytes of a log. With fifteen bytes for each step, this is a pass of 70 million steps. Its values
take the same in memory."""
LONGEST_LINE = 1 << 24
"""The most bytes of a line. A number has fewer than 2,000, and longer texts are cut when they are written."""

_NULS = re.compile(rb"\0+")


class LogLines:
    """Blocks of whole lines, in order, up to the first damage.

    They end before the first NUL byte: after a power cut a file may end in blocks of NUL bytes. They end
    before a line that is longer than any written line. A last line without its end is left out.
    """

    def __init__(self, file: Reader, block: int = BLOCK, longest: int = LONGEST_LINE) -> None:
        self._file, self._block, self._longest = file, block, longest
        self.end = 0
        """Bytes of the whole lines so far; at the end, of all undamaged lines."""
        self.nul: int | None = None
        """The place of the first NUL byte, if there is one."""
        self.too_long = False
        """Whether a line was longer than any may be."""

    def __iter__(self) -> Iterator[bytes]:
        begun, at, self.end, self.nul, self.too_long = bytearray(), 0, 0, None, False
        while at < self._file.size and self.nul is None:
            data = self._file.read(at, min(self._block, self._file.size - at))
            found = data.find(b"\0")
            if found >= 0:
                self.nul = at + found
                del data[found:]
            at += len(data)
            cut = data.rfind(b"\n") + 1
            if cut:
                whole = bytes(begun + data[:cut])
                self.end += len(whole)
                yield whole
                begun = data[cut:]
            else:
                begun += data
            if len(begun) > self._longest:
                self.too_long = True
                return


def lines_between(
    file: Reader, start: int, end: int, longest: int = 1 << 16, block: int = BLOCK
) -> Iterator[list[bytes]]:
    """The whole lines of a part of a file that only grows, a block at a time.

    NUL bytes end a line, because the power cut that left them ended it. Lines over `longest` are skipped.
    """
    begun, passes_over = b"", False
    for at in range(start, end, block):
        data = _NULS.sub(b"\n", file.read(at, min(block, end - at)))  # one for all: a block may hold no other
        *lines, begun = (begun + data).split(b"\n")
        if passes_over:
            passes_over = not lines
            begun = b"" if passes_over else begun
            del lines[:1]
        if len(begun) > longest:
            begun, passes_over = b"", True
        yield [line for line in lines if len(line) <= longest]
