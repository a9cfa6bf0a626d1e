"""The values of a text metric over many steps, in a few flat arrays."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

Run = tuple[int, str]


class Texts(Sequence[Run]):
    """(rows, text) runs; neighbouring runs have different texts. A log of 100 MB whose lines all differ takes
    200 MB in this form, and 1.7 GB as a tuple of tuples.

    >>> texts = Texts.of([(2, "0 GB"), (1, "0 GB"), (1, "1 GB")])
    >>> list(texts), texts[-1], len(texts)
    ([(3, '0 GB'), (1, '1 GB')], (1, '1 GB'), 2)
    """

    __slots__ = ("_data", "_ends", "_last", "_rows")

    def __init__(self) -> None:
        self._data = bytearray()
        """The texts in UTF-8, one after another."""
        self._ends = array("I")
        self._rows = array("I")
        self._last: bytes | None = None

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Texts:
        """Build it from runs; neighbours with the same text become one run."""
        made = cls()
        for rows, text in runs:
            made.add(rows, text)
        return made

    def add(self, rows: int, text: str) -> None:
        """Add rows of one text. Only the code that builds the object calls this."""
        self._add(rows, text.encode(errors="surrogatepass"))

    def add_lines(self, lines: Sequence[bytes]) -> None:
        """Add lines in UTF-8, one row each. Only the code that builds the object calls this."""
        start = 0
        for at, (line, following) in enumerate(pairwise(lines), 1):
            if line != following:
                self._add(at - start, line)
                start = at
        if lines:
            self._add(len(lines) - start, lines[-1])

    @property
    def steps(self) -> int:
        """How many rows there are."""
        return sum(self._rows)

    def _add(self, rows: int, text: bytes) -> None:
        if text == self._last:
            self._rows[-1] += rows
        elif rows:
            self._data += text
            self._ends.append(len(self._data))
            self._rows.append(rows)
            self._last = text

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Run]:
        begin = 0
        for rows, end in zip(self._rows, self._ends, strict=True):
            yield rows, self._data[begin:end].decode(errors="surrogatepass")
            begin = end

    @overload
    def __getitem__(self, at: int) -> Run: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Run]: ...
    def __getitem__(self, at: int | slice) -> Run | Sequence[Run]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        at = range(len(self))[at]
        begin = self._ends[at - 1] if at else 0
        return self._rows[at], self._data[begin : self._ends[at]].decode(errors="surrogatepass")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Texts):
            return (self._rows, self._ends, self._data) == (other._rows, other._ends, other._data)
        return isinstance(other, list | tuple) and len(self) == len(other) and all(map(_same, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Texts({len(self)} in {self.steps} rows)"


def _same(one: Run, other: object) -> bool:
    return one == other
