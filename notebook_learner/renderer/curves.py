"""Compute the points to draw from the recorded values, in pure NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..event import Split


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One split of one metric: its steps, and the final values at the ends of epochs."""

    split: Split
    raw: Curve
    smooth: Curve | None
    final_x: Floats
    finals: Floats

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not len(self.raw) and not np.isfinite(self.finals).any()


@dataclass(frozen=True, slots=True)
class Chart:
    """One metric with its splits, ready to be drawn."""

    name: str
    unit: str
    higher_is_better: bool | None
    series: tuple[ChartSeries, ...]


Floats = NDArray[np.float64]

POINTS = 2000
"""A curve has no more points than this: a screen has fewer pixels across."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The run's training steps, and the step at which each epoch ends."""

    steps: Floats
    ends: dict[int, float]
    lengths: dict[int, float]


def training_axis(epochs: NDArray[np.generic], steps: NDArray[np.generic]) -> Axis:
    """Number the steps of all epochs consecutively."""
    if not len(epochs):
        return Axis(np.empty(0), {}, {})
    numbers, inverse = np.unique(np.asarray(epochs, dtype=np.int64), return_inverse=True)
    within = np.asarray(steps, dtype=np.float64)
    lengths = np.zeros(len(numbers))
    np.maximum.at(lengths, inverse, within)
    ends = np.cumsum(lengths)
    return Axis(
        (ends - lengths)[inverse] + within,
        dict(zip(numbers.tolist(), ends.tolist(), strict=True)),
        dict(zip(numbers.tolist(), lengths.tolist(), strict=True)),
    )


@dataclass(frozen=True, slots=True)
class Curve:
    """The finite values of a metric. `part` grows by one at each gap."""

    x: Floats
    y: Floats
    part: NDArray[np.int64]

    @staticmethod
    def of(x: Floats, values: NDArray[np.generic]) -> Curve:
        """Return the curve of the finite values.

        A gap is a stretch without the values that the metric usually has. A metric with a value at every
        fourth step has no gaps; a loss that is NaN for a while has one.
        """
        y = np.asarray(values, dtype=np.float64)
        size = min(len(x), len(y))
        finite = np.isfinite(y[:size])
        rows = np.flatnonzero(finite)
        distance = np.diff(rows)
        usual = float(np.median(distance)) if len(distance) else 1.0
        part = np.concatenate([[0], np.cumsum(distance > 1.5 * usual)]) if len(rows) else np.empty(0)
        return Curve(x[:size][rows], y[:size][rows], part.astype(np.int64))

    def __len__(self) -> int:
        return len(self.x)

    def thin(self, limit: int = POINTS) -> Curve:
        """Keep at most `limit` points: the lowest and highest of each stretch, so each spike stays."""
        if len(self) <= limit:
            return self
        size = -(-len(self) // (limit // 2))
        buckets = -(-len(self) // size)
        padded = np.full(buckets * size, self.y[-1])
        padded[: len(self)] = self.y
        grid = padded.reshape(buckets, size)
        start = np.arange(buckets) * size
        picked = np.union1d(start + grid.argmin(axis=1), start + grid.argmax(axis=1))
        return self._at(np.union1d(picked[picked < len(self)], [0, len(self) - 1]))

    def smooth(self, share: float) -> Curve:
        """Return the running mean over `share` of the whole curve, centred, so that it does not lag."""
        reach = int(share * len(self) / 2)
        if reach < 1:
            return self
        sums = np.concatenate([[0.0], np.cumsum(self.y)])
        rows = np.arange(len(self))
        # Towards both ends the window shrinks to a third. A whole window would bend the curve there; without
        # any window, the line would end in the noise.
        near = np.clip(np.minimum(rows, len(self) - 1 - rows), -(-reach // 3), reach)
        low, high = np.maximum(rows - near, 0), np.minimum(rows + near + 1, len(self))
        return Curve(self.x, (sums[high] - sums[low]) / (high - low), self.part)

    @property
    def travel(self) -> float:
        """The sum of all changes up and down: large for noise, small for a trend."""
        return float(np.abs(np.diff(self.y)).sum())

    def broken(self) -> tuple[Floats, Floats]:
        """Both coordinates with a NaN at each gap, which interrupts the drawn line."""
        gaps = np.flatnonzero(np.diff(self.part)) + 1
        return np.insert(self.x, gaps, np.nan), np.insert(self.y, gaps, np.nan)

    def _at(self, rows: NDArray[np.int64]) -> Curve:
        return Curve(self.x[rows], self.y[rows], self.part[rows])


def limits(y: Floats) -> tuple[float, float] | None:
    """Return the range to show if a few values lie far outside the others; else None.

    One step at 1e6 would flatten the rest of the curve. Such a step is marked at the edge instead.
    """
    if len(y) < 50:
        return None
    low, middle, high = np.percentile(y, [0.5, 50, 99.5])
    span = max(high - low, 1e-3 * abs(middle), 1e-12)
    far_up, far_down = bool(y.max() > high + 8 * span), bool(y.min() < low - 8 * span)
    if not far_up and not far_down:
        return None
    top = high + 0.35 * span if far_up else y.max() + 0.05 * span
    bottom = low - 0.35 * span if far_down else y.min() - 0.05 * span
    return float(bottom), float(top)


def spread_ticks(ends: dict[int, float], most: int) -> list[tuple[int, float]]:
    """Choose the epochs to label: round multiples, evenly spread, at most `most`.

    >>> spread_ticks({1: 30.0, 2: 60.0, 3: 90.0, 4: 95.0}, most=7)  # the fourth has only begun
    [(1, 30.0), (2, 60.0), (3, 90.0)]
    """
    numbers = sorted(ends)
    for stride in _strides(len(numbers)):
        chosen = [number for number in numbers if number % stride == 0]
        if len(chosen) <= most:
            ticks = [(number, ends[number]) for number in chosen or numbers[-1:]]
            return ticks[:-1] if _touch(ticks, most) else ticks
    return []


def _touch(ticks: list[tuple[int, float]], most: int) -> bool:
    """Whether the last label would overlap the one before: an epoch that has only begun is short."""
    return len(ticks) > 1 and ticks[-1][1] - ticks[-2][1] < 0.9 * ticks[-1][1] / most


def _strides(up_to: int) -> list[int]:
    decades = [10**power for power in range(len(str(up_to)) + 1)]
    return [factor * decade for decade in decades for factor in (1, 2, 5)]
