"""Large data in memory that are taken to be read only: a thread compares them as a whole, at checkpoints."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..store.background import hand_over
from .kinds import Kind

_PIECE = 1 << 20
_SHARE = 0.1
"""The share of the time in which the thread reads. It reads 4 GB/s."""
_BEFORE = 0.05
"""Seconds for which the first step waits for it, which is 200 MB. Of more, what changes before it was read is
missed."""
_PATIENCE = 1.0
"""Seconds for which a run that is over waits for the thread."""


class TableKind(Kind):
    """A table of pandas: compared, and never copied."""

    name = "table"

    def take(self, live: Any) -> Any:
        return object()

    def same(self, live: Any, taken: Any) -> bool:
        return True

    def put(self, live: Any, taken: Any) -> None:
        pass


class Untouched:
    """Knows checksums of such data, and finds those that are of another one later.

    >>> data, untouched = np.zeros(3), Untouched()
    >>> found = [("data", data, None)]
    >>> untouched.compare(found, at_once=True)
    >>> data[1] = 1
    >>> untouched.compare(found, at_once=True)
    >>> untouched.changed()
    ['data']
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Any, Any, int]] = {}
        self.found: list[Any] = []
        """The keys of what has changed, and was not asked for yet."""
        self._work: Future[None] | None = None
        self._rests_until = 0.0
        self.due = False
        """Whether they should be compared, and the thread was busy."""

    def know(self, found: Sequence[tuple[Any, Any, Any]]) -> None:
        """Have a thread read data that steps are about to use, unless all of it is known."""
        known = self._sums
        if any(id(live) not in known or known[id(live)][1] is not taken for _, live, taken in found):
            due = self.due
            self.compare(found)
            self.due = due
            if self._work is not None:
                wait([self._work], _BEFORE)

    def compare(self, found: Sequence[tuple[Any, Any, Any]], at_once: bool = False) -> None:
        """Have a thread compare data. What is new, or was taken anew, is only read.

        Args:
            found: each with its key and with what was taken of it.
            at_once: wait for it, up to a second.
        """
        if self._work is not None and at_once:
            wait([self._work], _PATIENCE)
        busy = self._work is not None and not self._work.done()
        self.due = busy or (not at_once and monotonic() < self._rests_until)
        if self.due:
            return
        self._work = hand_over(partial(self._read, list(found)))
        if at_once:
            wait([self._work], _PATIENCE)

    def changed(self) -> list[Any]:
        """The keys of what has changed, once."""
        found, self.found = self.found, []
        return found

    def _read(self, found: list[tuple[Any, Any, Any]]) -> None:
        began, known = monotonic(), self._sums
        sums: dict[int, tuple[Any, Any, int]] = {}
        for key, live, taken in found:
            total = checksum(live)
            sums[id(live)] = (live, taken, total)
            _, before, expected = known.get(id(live), (live, taken, total))
            if before is taken and expected != total:
                self.found.append(key)
        self._sums = sums
        now = monotonic()
        self._rests_until = now + (now - began) / _SHARE


def checksum(live: Any) -> int:
    """A checksum of the bytes of a tensor, an array or a table."""
    total = 0
    for piece in _pieces(live):
        total = zlib.crc32(piece, total)
    return total


def _pieces(live: Any) -> Iterator[Any]:
    if isinstance(live, Tensor):
        yield from _cut(live.detach(), _bytes_of_tensor)
    elif isinstance(live, np.ndarray):
        yield from _cut(live, _bytes_of)
    elif hasattr(live, "columns"):
        for number in range(len(live.columns)):
            yield from _pieces(live.iloc[:, number])
    else:
        yield from _cut(np.asarray(live.array), _bytes_of)


def _cut(live: Any, bytes_of: Callable[[Any], Any]) -> Iterator[Any]:
    """The bytes of rows, as many at a time as fit into a piece."""
    if live.ndim == 0 or live.nbytes <= _PIECE:
        yield bytes_of(live)
        return
    rows = max(1, len(live) * _PIECE // live.nbytes)
    for start in range(0, len(live), rows):
        yield bytes_of(live[start : start + rows])


def _bytes_of_tensor(tensor: Tensor) -> Any:
    flat = tensor.reshape(-1)
    if flat.numel() and flat.stride(0) != 1:
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy()


def _bytes_of(array: Any) -> Any:
    if array.dtype.hasobject:  # which objects they are; what is in them is compared as everywhere
        return np.fromiter(map(id, array.flat), np.uint64)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
