"""When each step ended: a few points in time for every pass, and straight lines between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..event.values import Floats, MetricBlock, Split
from ..logger.history import SPLITS, History
from .claims import LARGEST, Claims

MOST = 64
"""Points of one pass."""

_Pass = tuple[int, Split]
_Knot = tuple[int, float]
_ORDER = {"train": 0, "valid": 1}


class Clock:
    """The wall time of steps, computed from the times at which their metric blocks arrived.

    >>> clock = Clock()
    >>> clock.add(MetricBlock(1, "train", 1, 11, 11, {}, {}, seconds=11.0), now=1011.0)
    >>> clock.times(1, "train", np.array([1, 6, 11, 12]))
    array([1001., 1006., 1011.,   nan])
    """

    def __init__(self) -> None:
        self._knots: dict[_Pass, list[_Knot]] = {}
        self._seconds: dict[_Pass, float] = {}
        """What the steps of a pass took together, without the time between blocks."""
        self._rows: dict[_Pass, list[Any]] = {}
        """The `to_json` of passes that have not changed since: `artifacts.h5` needs all passes each time."""

    def begin(self, epoch: int, split: Split) -> None:
        """A pass starts, or starts over."""
        for known in (self._knots, self._seconds, self._rows):
            known.pop((epoch, split), None)

    def add(self, block: MetricBlock, now: float) -> None:
        """Note a block: its last step ended now, and its first step began when the block's own time began."""
        key: _Pass = (block.epoch, block.split)
        knots = self._knots.setdefault(key, [])
        self._rows.pop(key, None)
        if knots and knots[-1][0] >= block.first:
            self._cut(key, block.first - 1)
        self._seconds[key] = self._seconds.get(key, 0.0) + max(0.0, block.seconds)
        if block.count > 1:
            # A separate point: the time before the block (a pause of an hour) does not belong to its steps.
            since = max(0.0, block.seconds) * (block.count - 1) / block.count
            knots.append((block.first, now - since))
        knots.append((block.last, now))
        while len(knots) > MOST:
            knots[:] = [*knots[:-1:2], knots[-1]]

    def times(self, epoch: int, split: Split, steps: NDArray[Any]) -> Floats:
        """When steps ended, in seconds since 1970; NaN if that is not known."""
        knots = self._knots.get((epoch, split))
        if not knots:
            return np.full(len(steps), np.nan)
        places, times = zip(*knots, strict=True)
        found: Floats = np.interp(steps, places, times, left=np.nan, right=np.nan)
        return found

    def seconds(self, block: MetricBlock) -> float:
        """What the steps of a block took, as their share of their pass; 0 if that is not known."""
        key: _Pass = (block.epoch, block.split)
        knots = self._knots.get(key)
        return self._seconds.get(key, 0.0) * block.count / _length(knots) if knots else 0.0

    def cut(self, epoch: int, split: Split, step: int) -> None:
        """Forget what came after a position."""
        here = (epoch, _ORDER[split])
        for key in list(self._knots):
            place = (key[0], _ORDER[key[1]])
            if place >= here:
                self._rows.pop(key, None)
            if place > here or (place == here and step == 0):
                self.begin(*key)
            elif place == here:
                self._cut(key, step)

    def _cut(self, key: _Pass, step: int) -> None:
        knots = self._knots[key]
        before = _length(knots)
        _cut(knots, step)
        self._seconds[key] = self._seconds.get(key, 0.0) * (_length(knots) / before if before else 0.0)

    def copy(self) -> Clock:
        """A copy that does not change any more."""
        other = Clock()
        other._knots = {key: list(knots) for key, knots in self._knots.items()}
        other._seconds, other._rows = dict(self._seconds), dict(self._rows)
        return other

    def to_json(self, passes: Iterable[tuple[int, Split]] | None = None) -> list[Any]:
        """Plain JSON values: `[epoch, split, start, [steps], [milliseconds after the start], milliseconds of
        all its steps]` for each pass, or only for these passes. The times are whole numbers, because 64,000
        floats as text take longer than all the rest of a file."""
        known = {
            key: knots
            for key in (self._knots if passes is None else passes)
            if (knots := self._knots.get(key))
        }
        for key, knots in known.items():
            if key not in self._rows:
                self._rows[key] = _row(*key, knots, self._seconds.get(key, 0.0))
        return [self._rows[key] for key in known]

    @classmethod
    def from_json(cls, value: object) -> Clock:
        """The clock that `to_json` wrote.

        Raises:
            DamagedError: it cannot have written this.
        """
        clock = cls()
        for each in Claims({"clock": value}, "an artifacts.h5").items("clock"):
            row = each if isinstance(each, list) and len(each) in (5, 6) else [None] * 6
            names = (
                "epoch",
                "split",
                "start",
                "steps",
                "after",
                "spent",
            )  # the last is missing in older files
            told = Claims(dict(zip(names, [*row, 0][:6], strict=True)), "a clock of an artifacts.h5")
            steps, after, start = told.items("steps"), told.items("after"), told.number("start")
            if not 0 < len(steps) == len(after) <= MOST:
                told.refuse("steps", f"a list of 1 to {MOST} numbers, as many as there are times")
            places = [Claims({"step": step}, told.what).whole("step", 1) for step in steps]
            if any(a >= b for a, b in pairwise(places)):
                told.refuse("steps", "a list of ascending numbers")
            times = [start + told.finite("after", time) / 1000 for time in after]
            key = (told.whole("epoch", 1, LARGEST), told.split("split"))
            clock._knots[key] = list(zip(places, times, strict=True))
            clock._seconds[key] = max(0.0, told.number("spent") / 1000)
        return clock

    def update(self, other: Clock) -> None:
        """Add the points of another clock."""
        self._knots.update(other._knots)
        self._seconds.update(other._seconds)


def _row(epoch: int, split: Split, knots: list[_Knot], seconds: float) -> list[Any]:
    start = knots[0][1]
    steps, after = [step for step, _ in knots], [round(1000 * (time - start)) for _, time in knots]
    return [epoch, split, start, steps, after, round(1000 * seconds)]


def _length(knots: list[_Knot]) -> int:
    """The number of steps whose times are known."""
    return knots[-1][0] - knots[0][0] + 1 if knots else 0


def _cut(knots: list[_Knot], step: int) -> None:
    """Drop the points after a step; if the step lay between two points, add a point at the step."""
    behind = next((i for i, knot in enumerate(knots) if knot[0] > step), None)
    if behind is None:
        return
    after = knots[behind]
    del knots[behind:]
    if knots and knots[-1][0] < step:
        before = knots[-1]
        share = (step - before[0]) / (after[0] - before[0])
        knots.append((step, before[1] + share * (after[1] - before[1])))


Whole = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Series:
    """A metric's values, one for each step, with the place and time of each measurement.

    >>> one = Series("Loss", "train", *(np.array([0.5, 0.25]) for _ in range(2)),
    ...     *(np.array([1, 2]) for _ in range(3)), np.array([np.nan, np.nan]))
    >>> one
    Series('Loss', 'train', 2 steps, last 0.25)
    >>> np.asarray(one)
    array([0.5 , 0.25])
    """

    name: str
    split: Split | str
    value: Floats
    """NaN at steps without a value."""
    weight: Floats
    """The number of samples, tokens, ... of each value; 1 for unweighted readings."""
    epoch: Whole
    step: Whole
    """Within its pass, from 1."""
    iteration: Whole
    """Training steps of the whole run so far."""
    time: Floats
    """When the step ended, in seconds since 1970; NaN if that is not known."""
    asked: bool = False
    """Whether `learner.ask` measured it afterwards."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.value, dtype=dtype)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        last = f", last {self.value[-1]:.6g}" if len(self) else ""
        asked = ", asked" if self.asked else ""
        return f"Series({self.name!r}, {self.split!r}, {len(self)} steps{last}{asked})"


def series_of(
    history: History, clock: Clock, name: str, split: Split | str, epoch: int | None = None
) -> Series:
    """A metric's series; an unknown name, split or epoch is a KeyError that lists what exists."""
    value = history.values(name, split, epoch)
    steps = history.steps(split, epoch)
    epochs, places = steps["epoch"].copy(), steps["step"].copy()
    time = np.full(len(steps), np.nan)
    begins = np.flatnonzero(np.diff(epochs, prepend=0))
    for begin, end in zip(begins, [*begins[1:], len(epochs)], strict=False):  # without rows there is no end
        if split in SPLITS:  # an evaluation's steps have no clock
            time[begin:end] = clock.times(int(epochs[begin]), split, places[begin:end])
    return Series(
        name,
        split,
        value,
        history.weights(name, split, epoch),
        epochs,
        places,
        history.iterations(split, epoch),
        time,
    )
