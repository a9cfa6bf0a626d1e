"""The running pass: it gets ten blocks a second (or one per step), and joins them into few."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..event.record import joinable, joined
from ..event.values import Column, MetricBlock, Split, SplitRecord

LOOSE = 64


class OpenPass:
    """Takes blocks, and joins them as their number grows.

    Every 64 blocks become one, and a block joins the one before it if that is at most twice its
    size. So a pass of n steps is O(log n) blocks for any sequence of blocks, each row is copied O(log n)
    times, and a snapshot is a short tuple of references.
    """

    def __init__(self, epoch: int, split: Split, blocks: tuple[MetricBlock, ...] = ()) -> None:
        self.epoch = epoch
        self.split: Split = split
        self.blocks = list(blocks)
        self._loose = 0
        self._sums: dict[str, _Sum] = {}

    @property
    def last(self) -> int:
        """The last step in it."""
        return self.blocks[-1].last if self.blocks else 0

    def add(self, block: MetricBlock) -> None:
        """Add the next steps."""
        self.blocks.append(block)
        self._loose += 1
        if self._loose >= LOOSE:
            self._tidy()

    def record(self, finals: Mapping[str, float] | None = None) -> SplitRecord:
        """What was measured so far, as an immutable value."""
        return SplitRecord(self.epoch, self.split, tuple(self.blocks), finals)

    def ended(self, finals: Mapping[str, float] | None) -> SplitRecord:
        """The whole pass, in one block if its metrics stayed the same."""
        return SplitRecord(self.epoch, self.split, tuple(joined(self.blocks)), finals)

    def running(self, name: str) -> float | None:
        """The weighted mean of a metric so far; None before its first value."""
        total = self._sums.setdefault(name, _Sum())
        for block in self.blocks:
            if block.last > total.upto and name in block.columns:
                total.add(block.columns[name], max(0, total.upto + 1 - block.first))
        total.upto = self.last
        return total.mean()

    def _tidy(self) -> None:
        self.blocks[-self._loose :] = joined(self.blocks[-self._loose :])
        self._loose = 0
        while len(self.blocks) > 1 and self._belong_together(*self.blocks[-2:]):
            self.blocks[-2:] = joined(self.blocks[-2:])

    @staticmethod
    def _belong_together(block: MetricBlock, following: MetricBlock) -> bool:
        return block.count <= 2 * following.count and joinable(block, following)


class _Sum:
    """A running weighted mean that reads each row once."""

    def __init__(self) -> None:
        self.upto = 0
        self.total = 0.0
        self.weight = 0.0

    def add(self, column: Column, skip: int) -> None:
        values = column.values[skip:]
        weights = ~np.isnan(values) * 1.0 if column.weights is None else column.weights[skip:]
        counts = weights > 0
        self.total += float(values[counts] @ weights[counts])
        self.weight += float(weights[counts].sum())

    def mean(self) -> float | None:
        return self.total / self.weight if self.weight else None
