"""Rows that an epoch adds one after another, for metrics that keep them all."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

SMALLEST, LARGEST = 4 << 10, 16 << 20
"""Bytes of the first block, and of any block at most: what is set aside at a time, and not filled yet."""

Part = tuple[Tensor, ...]


class Appended:
    """Tensors that grow by rows, side by side (scores and their targets).

    What `parts` gives stays as it is for ever: later rows go behind it, in the same memory, and none is
    written over. So a captured state holds parts without a copy, and costs what came since the last one.
    Where one part ends and the next begins depends on the rows alone: a state that was put back goes on to
    the same parts as one that never stopped.

    >>> kept = Appended()
    >>> kept.append(torch.tensor([1.0, 2.0]))
    >>> ((before,),) = kept.parts()
    >>> kept.append(torch.tensor([3.0]))
    >>> before.tolist(), [part.tolist() for part, in kept.parts()]
    ([1.0, 2.0], [[1.0, 2.0, 3.0]])

    Args:
        parts: what is there already, of an earlier `parts` or of a file. It is never written to.
    """

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._closed: list[Part] = list(parts)
        self._block: Part = ()
        self._filled = 0

    def __bool__(self) -> bool:
        return bool(self._closed) or self._filled > 0

    def append(self, *rows: Tensor) -> None:
        """Copy rows behind the others: the same number of each tensor."""
        done, count = 0, len(rows[0])
        while done < count:
            if not self._has_room(rows):
                self._begin(rows)
            taken = min(count - done, len(self._block[0]) - self._filled)
            for block, each in zip(self._block, rows, strict=True):
                block[self._filled : self._filled + taken] = each[done : done + taken]
            self._filled += taken
            done += taken

    def parts(self) -> list[Part]:
        """All rows, in few pieces."""
        if not self._filled:
            return list(self._closed)
        return [*self._closed, tuple([block[: self._filled] for block in self._block])]

    def _has_room(self, rows: Part) -> bool:
        return bool(self._block) and self._filled < len(self._block[0]) and _alike(self._block, rows)

    def _begin(self, rows: Part) -> None:
        """A new block, twice as long as the one before; or one that goes on with a part that was given."""
        self._closed, self._filled = self.parts(), 0
        last = self._closed[-1] if self._closed and not self._block else ()
        if last and _alike(last, rows) and len(last[0]) < _length(rows, len(self._closed) - 1):
            self._closed.pop()
        else:
            last = ()
        length = _length(rows, len(self._closed))
        with torch.inference_mode(False):  # what was made in that mode, later steps could not write to
            self._block = tuple(
                [
                    torch.empty((length, *each.shape[1:]), dtype=each.dtype, device=each.device)
                    for each in rows
                ]
            )
        if last:
            self.append(*last)


def _alike(some: Part, others: Part) -> bool:
    return all(
        [
            one.shape[1:] == other.shape[1:] and one.dtype == other.dtype and one.device == other.device
            for one, other in zip(some, others, strict=True)
        ]
    )


def _length(rows: Part, place: int) -> int:
    """How many rows the block at this place holds."""
    width = sum([each[:1].nbytes for each in rows]) or 1
    return max(1, min(SMALLEST << min(place, 16), LARGEST) // width)
