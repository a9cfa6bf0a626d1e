"""Rows that an epoch adds one after another, for metrics that keep them all."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

LARGEST = 16 << 20
"""Bytes of a block at most: what is set aside at a time, and not filled yet."""

Part = tuple[Tensor, ...]


class Appended:
    """Tensors that grow by rows, side by side (scores and their targets).

    What `parts` gives stays as it is for ever: later rows go behind it, in the same memory, and none is
    written over. So a captured state holds parts without a copy, and costs what came since the last one.

    >>> kept = Appended()
    >>> kept.append(torch.tensor([1.0, 2.0]))
    >>> ((before,),) = kept.parts()
    >>> kept.append(torch.tensor([3.0]))
    >>> before.tolist(), [part.tolist() for part, in kept.parts()]
    ([1.0, 2.0], [[1.0, 2.0], [3.0]])

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
        count = len(rows[0])
        if not self._has_room(rows, count):
            self._begin(rows, count)
        end = self._filled + count
        for block, each in zip(self._block, rows, strict=True):
            block[self._filled : end] = each
        self._filled = end

    def parts(self) -> list[Part]:
        """All rows, in few pieces."""
        if not self._filled:
            return list(self._closed)
        return [*self._closed, tuple([block[: self._filled] for block in self._block])]

    def _has_room(self, rows: Part, count: int) -> bool:
        if not self._block or self._filled + count > len(self._block[0]):
            return False
        return all(
            [
                block.shape[1:] == each.shape[1:]
                and block.dtype == each.dtype
                and block.device == each.device
                for block, each in zip(self._block, rows, strict=True)
            ]
        )

    def _begin(self, rows: Part, count: int) -> None:
        """A new block, twice as long as the one before."""
        before = len(self._block[0]) if self._block else 0
        self._closed, self._filled = self.parts(), 0
        width = sum([each[:1].nbytes for each in rows]) or 1
        length = max(count, min(2 * before, LARGEST // width))
        with torch.inference_mode(False):  # what was made in that mode, later steps could not write to
            self._block = tuple(
                [
                    torch.empty((length, *each.shape[1:]), dtype=each.dtype, device=each.device)
                    for each in rows
                ]
            )
