"""Training time: the seconds that the steps of a run took, without its pauses, up to each training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .values import MetricBlock, Record

MOST = 128
"""Known places, at most; between two of them, steps count as equally long."""

Knots = tuple[list[float], list[float]]
"""Training steps, and a value for each; between them the value grows evenly."""


_Row = tuple[float, float, float]
"""Training steps, the seconds known up to there, and the steps up to there of unknown duration."""


class TrainingTime:
    """The training time of a run's line. Validation counts in the training steps after it.

    Steps whose duration is not known (their run kept no times) count as long as the others on average.

    >>> time = TrainingTime()
    >>> time.add(MetricBlock(1, "train", 1, 10, 10, {}, {}, seconds=2.0))
    >>> time.add(MetricBlock(1, "valid", 1, 5, 10, {}, {}, seconds=0.5))
    >>> time.add(MetricBlock(2, "train", 1, 10, 20, {}, {}, seconds=2.0))
    >>> time.knots()
    ([0.0, 10.0, 20.0], [0.0, 2.0, 4.5])
    """

    def __init__(self) -> None:
        self._rows: list[_Row] = [(0.0, 0.0, 0.0)]
        self._apart = 0.0
        """Steps between two places that are kept, at least; the newest place is always there."""
        self._spent, self._unknown = 0.0, 0
        self._seconds, self._steps = 0.0, 0
        """Training alone, as far as its duration is known."""

    @classmethod
    def of(cls, record: Record) -> TrainingTime:
        """The training time of what was measured."""
        time = cls()
        for part in record:
            for block in part.blocks:
                time.add(block)
        return time

    def add(self, block: MetricBlock) -> None:
        """Add the next steps."""
        seconds = max(0.0, block.seconds)
        self._spent += seconds
        if block.split != "train":
            return
        if seconds:
            self._seconds, self._steps = self._seconds + seconds, self._steps + block.count
        else:
            self._unknown += block.count
        self._put((float(block.iteration), self._spent, float(self._unknown)))
        if len(self._rows) > MOST:
            rows, self._rows = self._rows, []
            self._apart = 2 * rows[-1][0] / MOST
            for row in rows:
                self._put(row)

    def _put(self, row: _Row) -> None:
        if len(self._rows) > 1 and row[0] - self._rows[-2][0] < self._apart:
            self._rows[-1] = row
        else:
            self._rows.append(row)

    @property
    def now(self) -> float | None:
        """The time at the last training step; None if no step's duration is known."""
        _, spent, unknown = self._rows[-1]
        return spent + unknown * self._seconds / self._steps if self._steps else None

    def knots(self) -> Knots | None:
        """The time at some of the training steps, the last one among them; None if it is not known."""
        if not self._steps:
            return None
        steps, spent, unknown = zip(*self._rows, strict=True)
        pace = self._seconds / self._steps
        times = [one + more * pace for one, more in zip(spent, unknown, strict=True)]
        return list(steps), [round(each, 3) for each in times]


def between(knots: Knots, first: float, last: float, most: int) -> Knots:
    """The part of some knots between two steps, as at most so many.

    >>> between(([0.0, 10.0, 20.0], [0.0, 2.0, 4.5]), 5.0, 20.0, 32)
    ([5.0, 10.0, 20.0], [1.0, 2.0, 4.5])
    """
    steps = [first, *(each for each in knots[0] if first < each < last), last]
    while len(steps) > most:
        steps = [*steps[:-1:2], steps[-1]]
    return steps, [round(float(each), 3) for each in np.interp(steps, *knots)]


def timed(record: Record, seconds: Callable[[MetricBlock], float]) -> Record:
    """What was measured, as logs tell it, with the duration of its steps."""
    return tuple(
        replace(part, blocks=tuple(replace(block, seconds=seconds(block)) for block in part.blocks))
        for part in record
    )
