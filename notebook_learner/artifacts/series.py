"""One metric over the steps of a run, as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..event.values import Floats, Split
from ..logger.history import SPLITS, History
from .clock import Clock

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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.value, dtype=dtype)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        last = f", last {self.value[-1]:.6g}" if len(self) else ""
        return f"Series({self.name!r}, {self.split!r}, {len(self)} steps{last})"


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
