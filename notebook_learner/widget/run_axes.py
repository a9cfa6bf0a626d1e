"""Where the training steps of a run lie in its epochs and its training time, for the axis of the curves."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..event import MetricBlock, Record
from ..event.training_time import Knots, TrainingTime
from .wire import Json

MOST = 256
"""Known places, at most; epochs of the same length take two."""
GROWTH = 1.02
"""The places are told again when the run is so many times as long: between them the page draws a line to the
newest step, which every message tells."""


class RunAxes:
    """The training time of a run, and when the pages were told of it.

    >>> axes = RunAxes()
    >>> axes.add(MetricBlock(1, "train", 1, 10, 10, {}, {}, seconds=2.0))
    >>> axes.moving(10), axes.moving(10)
    ({'spent': 2.0, 'seconds': [[0.0, 10.0], [0.0, 2.0]]}, {'spent': 2.0})
    """

    def __init__(self, record: Record = ()) -> None:
        self._time = TrainingTime.of(record)
        self._told = 0.0

    def add(self, block: MetricBlock) -> None:
        """Add the next steps."""
        self._time.add(block)

    def moving(self, trained: int) -> Json:
        """What changes from step to step."""
        now = self._time.now
        told: Json = {"spent": None if now is None else round(now, 3)}
        return told | self.seconds(trained) if trained > GROWTH * self._told else told

    def seconds(self, trained: int) -> Json:
        """All that the page has to know of the time."""
        self._told = float(trained)
        return {"seconds": as_lists(self._time.knots())}


def as_lists(knots: Knots | None) -> list[list[float]] | None:
    """Knots as plain JSON values."""
    return None if knots is None else [*knots]


def epoch_knots(starts: Mapping[int, int], trained: int, length: int | None) -> Knots | None:
    """How many epochs lie before training steps: 2.5 in the middle of the third one.

    Args:
        starts: for each epoch, the number of training steps before it.
        trained: the steps so far.
        length: the steps of the last of these epochs; None: as many as the one before it has.

    >>> epoch_knots({1: 0, 2: 10, 3: 20}, 24, 8)
    ([0.0, 20.0, 28.0], [0.0, 2.0, 3.0])
    """
    if not starts:
        return None
    epochs, steps = np.array([*starts], dtype=float), np.array([*starts.values()], dtype=float)
    if length is None and len(steps) > 1:
        length = int(steps[-1] - steps[-2])
    if length is None:
        return None
    end = steps[-1] + max(float(length), trained - steps[-1], 1.0)
    x, y = np.append(steps, end), np.append(epochs - 1, epochs[-1])
    rising = np.append(True, np.diff(x) > 0)  # an epoch of a broken log may have no step
    x, y = x[rising], y[rising]
    slopes = np.diff(y) / np.diff(x)
    bends = np.flatnonzero(np.abs(np.diff(slopes)) > 1e-12) + 1
    kept = np.concatenate([[0], bends, [len(x) - 1]])
    kept = np.unique(np.append(kept[:: -(-len(kept) // MOST)], kept[-1]))
    return x[kept].tolist(), y[kept].tolist()


def axes_of(record: Record, length: int | None = None) -> Json:
    """The same of what was measured of another line.

    Args:
        record: its passes; the first one is whole.
        length: the steps of its last epoch, if that has not ended.
    """
    starts: dict[int, int] = {}
    trained = 0
    for part in record:
        if part.split == "train" and part.blocks:
            first = part.blocks[0]
            trained = part.blocks[-1].iteration
            starts[part.epoch] = first.iteration - first.last
            ended = part.finals is not None
    if starts and ended:
        length = trained - [*starts.values()][-1]
    seconds = TrainingTime.of(record).knots()
    return {"epochs": as_lists(epoch_knots(starts, trained, length)), "seconds": as_lists(seconds)}
