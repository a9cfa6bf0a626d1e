"""Compares what steps measure when they are taken again with what was recorded the first time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..event import Event, MetricBlock, Record, drift, rows
from ..event.position import Position


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value that was not the same the second time."""

    at: str
    """The place of the step, in words."""
    what: str
    """The name of the value, such as `Loss`, `batch[0]` or `model.head.weight`."""
    cause: str
    """Where it comes from, as far as it can be known."""

    def __str__(self) -> str:
        return f"{self.what} differs after {self.at}: {self.cause}"


class Compared:
    """What was recorded, and how far the same steps are from it now.

    Args:
        known: what was measured when the steps were taken for the first time.
    """

    def __init__(self, known: Record) -> None:
        self._known = {(part.epoch, part.split): part.blocks for part in known}
        self.gap = 0.0
        """The largest difference so far."""
        self.values = 0
        """How many values were compared."""
        self.differs_at: Position | None = None
        """The step after which the first different value was measured."""
        self._what = ""

    def take(self, block: MetricBlock) -> None:
        """Compare what a block measured."""
        for old in self._known.get((block.epoch, block.split), ()):
            first, last = max(old.first, block.first), min(old.last, block.last)
            if first <= last:
                mine = rows(block, first - block.first, last - block.first + 1)
                theirs = rows(old, first - old.first, last - old.first + 1)
                self.values += _values_in(mine, theirs)
                gap, row, name = drift(mine, theirs)
                self.gap = max(self.gap, gap)
                if row is not None and self.differs_at is None:
                    self.differs_at, self._what = Position(block.epoch, block.split, first + row), name

    def difference(self, left: Sequence[str], changed: Sequence[str] = ()) -> Difference | None:
        """The first difference, in the words of `verify`.

        Args:
            left: the names of what steps reach and is not in the state.
            changed: what is other than when the steps were taken for the first time.
        """
        if self.differs_at is None:
            return None
        if changed:
            return Difference(str(self.differs_at), self._what, f"likely from {'; '.join(changed)}")
        cause = "a step uses a value that is not in the state"
        if left:
            cause += f" ({', '.join(left)})"
        else:
            cause += ", or an operation is not deterministic; learner.verify() looks for it"
        return Difference(str(self.differs_at), self._what, cause)


def _values_in(mine: MetricBlock, theirs: MetricBlock) -> int:
    """How many values both have; a step without one has no weight."""
    weights = [column.weights for name, column in mine.columns.items() if name in theirs.columns]
    return sum(int(np.count_nonzero(each)) for each in weights if each is not None)


class Beyond(NamedTuple):
    """What was measured of steps to come, and the optimizer's options before them."""

    known: Record
    options: str


def options_of(optimizer: Any) -> str:
    """The optimizer's options, as text."""
    return repr([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])


class ComparedWithLog:
    """After a resume: the steps that an earlier process has taken beyond the checkpoint, and logged. They are
    taken again now, and should measure the same."""

    def __init__(self, logged: Record, start: Position) -> None:
        self._compared: Compared | None = None
        self._end = Position(logged[-1].epoch, logged[-1].split, logged[-1].steps) if logged else start
        if self._end > start:
            self._compared = Compared(logged)

    def heard(self, event: Event, left: Callable[[], Sequence[str]]) -> str:
        """Take an event; return what to tell the user, once."""
        if self._compared is None or not isinstance(event, MetricBlock):
            return ""
        self._compared.take(event)
        found = self._compared.difference(left())
        if found is not None or Position(event.epoch, event.split, event.last) >= self._end:
            self._compared = None
        if found is None:
            return ""
        return f"not what the log holds of these steps, unless code or settings are others now: {found}"
