"""The curves of a panel: the whole history of each metric in a limited number of buckets.

A run of a million steps then takes as few bytes as one of a thousand, and a spike of one step stays visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..event import Column, MetricBlock, Record, Split
from ..event.values import Floats

LIMIT = 2048
"""Buckets of a series at most: a screen has fewer pixels across."""
MOST_NEW = 4096
"""Points of a series in one message, at most; of more points, only the lowest and highest are sent."""
AT_ONCE = 16_384
"""Points that wait to be put into buckets, at most, until the buckets are read. Grouping takes tens of
microseconds even for a few points, and messages carry points, not buckets."""

Key = tuple[str, Split]


class CurveSeries:
    """One metric of one split, in buckets with the same number of points. More points make larger buckets.

    >>> series = CurveSeries(limit=4)
    >>> series.add(np.arange(1.0, 10.0), np.array([0, 0, 9, 0, 0, 0, 0, 0, 1.0]))
    >>> series.columns()[2]
    array([9., 0., 1.])
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._size = 1
        self._length = 0
        self._table = np.empty((len(_COLUMNS), 256))
        self._waiting: list[tuple[Floats, Floats]] = []
        self._points_waiting = 0

    def __len__(self) -> int:
        self._settle()
        return self._length

    @property
    def size(self) -> int:
        """The number of points in a full bucket."""
        self._settle()
        return self._size

    def add(self, x: Floats, values: Floats) -> None:
        """Append points, in order. The caller must not change the arrays afterwards."""
        if not len(x):
            return
        self._waiting.append((x, values))
        self._points_waiting += len(x)
        if self._points_waiting >= AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        """Put the waiting points into buckets."""
        if not self._waiting:
            return
        x, values = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting, self._points_waiting = [], 0
        self._join(np.stack([x, values, values, values, np.ones(len(x))]))
        while self._length > self.limit:
            self._size *= 2
            self._write(0, _grouped(self._table[:, : self._length], self._size))

    def put(self, x: float, value: float) -> None:
        """Append a point, or replace the last one if it has the same x."""
        self._settle()
        last = self._table[:, self._length - 1]
        if self._length and last[_X] == x and last[_COUNT] == 1:
            last[_LOW : _MEAN + 1] = value
        else:
            self.add(np.array([x]), np.array([value]))

    @property
    def last(self) -> float:
        """The x of the last bucket; without buckets, an x before all others."""
        self._settle()
        return float(self._table[_X, self._length - 1]) if self._length else -1.0

    def columns(self) -> tuple[Floats, Floats, Floats, Floats]:
        """x, low, high and mean of every bucket; NaN for a bucket without numbers."""
        self._settle()
        x, low, high, mean, _ = self._table[:, : self._length]
        return x, low, high, mean

    def tobytes(self) -> bytes:
        """The columns one after the other."""
        self._settle()
        return self._table[: _MEAN + 1, : self._length].astype("<f8").tobytes()

    def _join(self, added: Floats) -> None:
        """Fill up the last bucket, then append the others: only the last bucket may be partly filled."""
        start = self._length
        if start and self._table[_COUNT, start - 1] < self._size:
            start -= 1
            added = np.concatenate([self._table[:, start : self._length], added], axis=1)
        self._write(start, added if self._size == 1 else _grouped(added, self._size))

    def _write(self, start: int, buckets: Floats) -> None:
        end = start + buckets.shape[1]
        if end > self._table.shape[1]:
            room = np.empty((len(_COLUMNS), 2 * end))
            room[:, :start] = self._table[:, :start]
            self._table = room
        self._table[:, start:end] = buckets
        self._length = end


_COLUMNS = ("x", "low", "high", "mean", "count")
_X, _LOW, _HIGH, _MEAN, _COUNT = range(len(_COLUMNS))


def _grouped(buckets: Floats, size: int) -> Floats:
    """Join neighbours to buckets of `size` points; the last bucket may have fewer."""
    x, low, high, mean, count = buckets
    starts = np.flatnonzero(np.diff((np.cumsum(count) - 1) // size, prepend=-1.0))
    known = np.where(np.isnan(mean), 0.0, count)
    with np.errstate(invalid="ignore"):  # a bucket without numbers stays NaN
        total = np.add.reduceat(np.where(known > 0, mean * known, 0.0), starts) / np.add.reduceat(
            known, starts
        )
    return np.stack(
        [
            x[starts],
            np.fmin.reduceat(low, starts),
            np.fmax.reduceat(high, starts),
            total,
            np.add.reduceat(count, starts),
        ]
    )


@dataclass
class _Fresh:
    """Points that were not sent to the pages yet."""

    x: list[Floats] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)

    def take(self) -> tuple[Floats, Floats]:
        x, values = np.concatenate(self.x), np.concatenate(self.values)
        self.x, self.values = [], []
        return _thinned(x, values)


def _thinned(x: Floats, values: Floats) -> tuple[Floats, Floats]:
    if len(x) <= MOST_NEW:
        return x, values
    size = -(-len(x) // (MOST_NEW // 2))
    whole = len(x) // size * size
    low, high = (
        np.append(
            join.reduce(values[:whole].reshape(-1, size), axis=1), join.reduce(values[whole:], initial=np.nan)
        )
        for join in (np.fmin, np.fmax)
    )
    told = -(-len(x) // size)
    # The second value has an x of its own: a page replaces a point that comes again at the same x.
    second = np.minimum(x[::size] + size // 2, x[-1])
    return np.column_stack([x[::size], second]).ravel(), np.column_stack([low[:told], high[:told]]).ravel()


class Curves:
    """The plotted metrics of a run over its training steps.

    Training has a point for each step, validation one for each pass, at the step where the pass took place.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.series: dict[Key, CurveSeries] = {}
        self._fresh: dict[Key, _Fresh] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.series.clear()
        self._fresh.clear()

    def block(self, block: MetricBlock, names: set[str]) -> None:
        """Add the values of training steps."""
        if block.split != "train":
            return
        x = np.arange(block.iteration - block.count + 1, block.iteration + 1, dtype=np.float64)
        for name in names & set(block.columns):
            at, values = _present(x, block.columns[name])
            if len(at):
                self._of((name, "train")).add(at, values)
                self._note((name, "train"), at, values)

    def point(self, name: str, split: Split, x: float, value: float) -> None:
        """Set the value of a pass so far, or its final one."""
        self._of((name, split)).put(x, value)
        self._note((name, split), np.array([x]), np.array([value]))

    def passed(self, finals: Mapping[str, float], names: set[str], start: float, end: float) -> None:
        """End a training pass. A metric with one value per pass (AUROC) gets its point here."""
        for name in names & set(finals):
            series = self.series.get((name, "train"))
            if series is None or series.last <= start:
                self.point(name, "train", end, finals[name])

    def rebuild(self, record: Record, names: dict[Split, set[str]], trained: int = 0) -> None:
        """Start again from the recorded values, which so many training steps precede."""
        self.clear()
        for past in record:
            start = trained
            for block in past.blocks:
                self.block(block, names["train"])
                trained = block.iteration
            if past.split == "train":
                self.passed(past.finals or {}, names["train"], float(start), float(trained))
            if past.split == "valid":
                for name in names["valid"] & set(past.finals or {}):
                    self.point(name, "valid", float(trained), (past.finals or {})[name])
        self.forget()

    def fresh(self) -> list[tuple[Key, Floats, Floats]]:
        """Return the points since the last call, and count them as sent."""
        told = [(key, *fresh.take()) for key, fresh in self._fresh.items() if fresh.x]
        self._fresh.clear()
        return told

    def forget(self) -> None:
        """Drop the unsent points: the next message sends all points anyway."""
        self._fresh.clear()

    def _of(self, key: Key) -> CurveSeries:
        return self.series.setdefault(key, CurveSeries(self.limit))

    def _note(self, key: Key, x: Floats, values: Floats) -> None:
        fresh = self._fresh.setdefault(key, _Fresh())
        fresh.x.append(x)
        fresh.values.append(values)


def _present(x: Floats, column: Column) -> tuple[Floats, Floats]:
    """The rows with a value: a weight of 0, or a NaN reading, marks a row without one."""
    missing = np.isnan(column.values) if column.weights is None else column.weights == 0
    if not missing.any():
        return x, column.values
    return x[~missing], column.values[~missing]
