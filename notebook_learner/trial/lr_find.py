"""Finds a learning rate: it trains with a growing rate, looks at the loss, and undoes the steps."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from ..errors import a_kind, names_descriptors
from ..event.position import Position
from ..event.values import Floats
from ..renderer.text import number
from ..run.bounds import Trained
from ..run.replica import Replica
from ..step.schedule import set_rate
from .changes import Changes
from .excursion import EndOfWalk, excursion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FEWEST = 10


@dataclass(frozen=True, eq=False, repr=False)
class RateSearch:
    """The loss over a growing learning rate, and the rate that it suggests.

    `rates` and `losses` are those of every step; `smoothed` are the losses that the suggestion is based on.
    """

    start: Position
    """Where the search began, and where the learner is."""
    rates: Floats
    losses: Floats
    smoothed: Floats
    diverged: bool
    """Whether the search ended because the loss grew too far."""

    @property
    def suggestion(self) -> float | None:
        """The rate at which the loss falls most steeply (over the rate's logarithm); None if it never
        falls."""
        if len(self.rates) < _FEWEST:
            return None
        lowest = self._at_lowest
        if lowest < 2:
            return None
        slopes = np.gradient(self.smoothed[: lowest + 1], np.log(self.rates[: lowest + 1]))
        return float(self.rates[int(slopes.argmin())])

    @property
    def lowest(self) -> float:
        """The rate at which the smoothed loss is lowest. Too high to train with: the loss diverges soon after
        it."""
        return float(self.rates[self._at_lowest])

    @property
    def _at_lowest(self) -> int:
        # For NumPy a NaN is the least of all values; here it is the end of a search whose rate was far too
        # high.
        return int(np.where(np.isfinite(self.smoothed), self.smoothed, np.inf).argmin())

    @names_descriptors
    def plot(self) -> Figure:
        """Plot the loss over the rate, with the suggestion."""
        from ..renderer.drawing import LIGHT, lines

        curves = [("loss", self.rates, self.losses), ("smoothed", self.rates, self.smoothed)]
        return lines(curves, "learning rate", "loss", LIGHT, log=True, mark=self.suggestion)

    def __repr__(self) -> str:
        tried = f"{number(self.rates[0])} to {number(self.rates[-1])}" if len(self.rates) else "none"
        suggested = "none: the loss never fell" if self.suggestion is None else number(self.suggestion)
        ended = "; the loss grew out of hand there" if self.diverged else ""
        return f"suggested learning rate: {suggested} (tried {len(self.rates)} rates, {tried}{ended})"


def lr_find(
    replica: Replica, start: float, end: float, steps: int, growth: float, smoothing: float
) -> RateSearch:
    """Try rates from `start` to `end`, one for each training step, and undo all steps."""
    _check(start, end, steps, growth, smoothing)
    rates = np.geomspace(start, end, steps)
    with excursion(replica, what="lr_find()") as trip:
        end_of_walk = _Growth(growth, smoothing)

        def next_rate(taken: int, loss: float) -> None:
            if taken < steps:
                set_rate(replica.loop.update.optimizer, float(rates[taken]))
            if end_of_walk.reached(loss):
                raise EndOfWalk

        until = Trained(trip.start.position.iteration + steps)
        course = trip.walk(until, next_rate, Changes({"lr": start}, train_only=True))
    losses = course.values["loss"]
    return RateSearch(
        trip.start.position, rates[: len(losses)], losses, _smooth(losses, smoothing), end_of_walk.diverged
    )


def _check(start: float, end: float, steps: int, growth: float, smoothing: float) -> None:
    given = {"start": start, "end": end, "growth": growth, "smoothing": smoothing}
    for name, value in given.items():
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ValueError(f"lr_find({name}={value!r:.60}): give a number, and not {a_kind(value)}")
    if not 0 < start < end < inf:
        raise ValueError(f"lr_find(start={start!r}, end={end!r}): 0 < start < end")
    if not isinstance(steps, int) or steps < _FEWEST:
        raise ValueError(f"lr_find(steps={steps!r}): try at least {_FEWEST} rates")
    if not growth > 1:
        raise ValueError(f"lr_find(growth={growth!r}): give a multiple above 1, such as 4")
    if not 0 <= smoothing < 1:
        raise ValueError(f"lr_find(smoothing={smoothing!r}): give a share from 0 to below 1, such as 0.9")


class _Growth:
    """Whether the loss has grown to a given multiple of its least value."""

    def __init__(self, most: float, smoothing: float) -> None:
        self.most, self.smoothing = most, smoothing
        self.diverged = False
        self._seen: list[float] = []
        self._least = float("inf")

    def reached(self, loss: float) -> bool:
        self._seen.append(loss)
        now = float(_smooth(np.array(self._seen[-200:]), self.smoothing)[-1])
        if len(self._seen) >= _FEWEST:
            self._least = min(self._least, now)
        self.diverged = not isfinite(loss) or now > self.most * self._least > 0
        return self.diverged


def _smooth(losses: Floats, share: float) -> Floats:
    """An exponential mean, corrected for its start. From the first NaN on it is NaN."""
    smoothed, mean = np.empty(len(losses)), 0.0
    for index, loss in enumerate(losses):
        mean = share * mean + (1 - share) * loss
        smoothed[index] = mean / (1 - share ** (index + 1))
    return smoothed
