"""The curves of a panel: the whole history of each metric in a bounded number of buckets, so that a run of a
million steps is sent like one of a thousand, and a spike of one step is still there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..event import Column, MetricBlock, Record, Split
from ..event.values import Floats

LIMIT = 2048
"""Buckets of a series at most: a screen has fewer pixels across."""
MOST_NEW = 4096
"""Points of a series that one message adds at most; of more, the lowest and highest are told."""
AT_ONCE = 16_384
"""Points that wait to be put into buckets, at most, until somebody asks for these: grouping takes tens of
microseconds, however few they are, and messages tell of points."""

Key = tuple[str, Split]


class CurveSeries:
    """One metric of one split: buckets of equally many points, which grow as the points do.

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
        """Points of a full bucket."""
        self._settle()
        return self._size

    def add(self, x: Floats, values: Floats) -> None:
        """Append points, in order. The arrays must not change any more."""
        if not len(x):
            return
        self._waiting.append((x, values))
        self._points_waiting += len(x)
        if self._points_waiting >= AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        """Put what waits into buckets."""
        if not self._waiting:
            return
        x, values = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting, self._points_waiting = [], 0
        self._join(np.stack([x, values, values, values, np.ones(len(x))]))
        while self._length > self.limit:
            self._size *= 2
            self._write(0, _grouped(self._table[:, : self._length], self._size))

    def put(self, x: float, value: float) -> None:
        """Append a point, or replace the last one, if it stands at the same x."""
        self._settle()
        last = self._table[:, self._length - 1]
        if self._length and last[_X] == x and last[_COUNT] == 1:
            last[_LOW : _MEAN + 1] = value
        else:
            self.add(np.array([x]), np.array([value]))

    @property
    def last(self) -> float:
        """The x of the last bucket; before all others where there is none."""
        self._settle()
        return float(self._table[_X, self._length - 1]) if self._length else -1.0

    def columns(self) -> tuple[Floats, Floats, Floats, Floats]:
        """x, low, high and mean of every bucket; NaN where no value of it is a number."""
        self._settle()
        x, low, high, mean, _ = self._table[:, : self._length]
        return x, low, high, mean

    def tobytes(self) -> bytes:
        """The columns one after the other."""
        self._settle()
        return self._table[: _MEAN + 1, : self._length].astype("<f8").tobytes()

    def _join(self, added: Floats) -> None:
        """Append buckets, after the last one was filled up: only that may be less than full."""
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
    """Neighbours joined to buckets of `size` points; the last may have fewer."""
    x, low, high, mean, count = buckets
    starts = np.flatnonzero(np.diff((np.cumsum(count) - 1) // size, prepend=-1.0))
    known = np.where(np.isnan(mean), 0.0, count)
    with np.errstate(invalid="ignore"):  # a bucket without any number stays without
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
    """Points that pages have not been told of."""

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
    return np.repeat(x[::size], 2), np.column_stack([low[:told], high[:told]]).ravel()


class Curves:
    """The plotted metrics of a run, by the run's training steps: training step by step, validation as one
    point a pass, where it took place."""

    def __init__(self) -> None:
        self.series: dict[Key, CurveSeries] = {}
        self._fresh: dict[Key, _Fresh] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.series.clear()
        self._fresh.clear()

    def block(self, block: MetricBlock, names: set[str]) -> None:
        """The values of training steps."""
        if block.split != "train":
            return
        x = np.arange(block.iteration - block.count + 1, block.iteration + 1, dtype=np.float64)
        for name in names & set(block.columns):
            at, values = _present(x, block.columns[name])
            if len(at):
                self._of((name, "train")).add(at, values)
                self._note((name, "train"), at, values)

    def point(self, name: str, split: Split, x: float, value: float) -> None:
        """The value of a pass so far, or its final one."""
        self._of((name, split)).put(x, value)
        self._note((name, split), np.array([x]), np.array([value]))

    def passed(self, finals: Mapping[str, float], names: set[str], start: float, end: float) -> None:
        """A training pass is over. A metric that has a value of a pass only (AUROC) gets its point here."""
        for name in names & set(finals):
            series = self.series.get((name, "train"))
            if series is None or series.last <= start:
                self.point(name, "train", end, finals[name])

    def rebuild(self, record: Record, names: dict[Split, set[str]]) -> None:
        """Begin anew with what was measured."""
        self.clear()
        trained = 0
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
        """The points since this was last asked, which are then known."""
        told = [(key, *fresh.take()) for key, fresh in self._fresh.items() if fresh.x]
        self._fresh.clear()
        return told

    def forget(self) -> None:
        """Whoever looks is told everything: no point is new."""
        self._fresh.clear()

    def _of(self, key: Key) -> CurveSeries:
        return self.series.setdefault(key, CurveSeries())

    def _note(self, key: Key, x: Floats, values: Floats) -> None:
        fresh = self._fresh.setdefault(key, _Fresh())
        fresh.x.append(x)
        fresh.values.append(values)


def _present(x: Floats, column: Column) -> tuple[Floats, Floats]:
    """The rows with a value: a weight of 0, or a reading that is NaN, means that there is none."""
    missing = np.isnan(column.values) if column.weights is None else column.weights == 0
    if not missing.any():
        return x, column.values
    return x[~missing], column.values[~missing]
