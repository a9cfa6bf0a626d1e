"""The result of a what-if: two courses from one step, next to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifacts.tables import Table
from ..errors import names_descriptors
from ..event.position import Position
from ..event.values import Floats
from ..renderer.text import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Course:
    """What a walk measured: one value for each training step."""

    places: tuple[tuple[int, int], ...]
    """(epoch, step) of every step."""
    values: Mapping[str, Floats]
    """By name: "loss", as the steps returned it, and the training metrics."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The same steps twice: as the run would take them, and with a change. Prints as a table.

    `baseline` and `changed` hold the values of every step by name: "loss", and the training metrics.
    """

    start: Position
    """Where both courses began, and where the learner is."""
    changes: Mapping[str, str]
    """What was changed, in words."""
    courses: tuple[Course, Course]

    @property
    def baseline(self) -> Mapping[str, Floats]:
        """The values of every step as the run would take it."""
        return self.courses[0].values

    @property
    def changed(self) -> Mapping[str, Floats]:
        """The values of every step with the change."""
        return self.courses[1].values

    @property
    def first_difference(self) -> tuple[int, int] | None:
        """The (epoch, step) of the first step with different values; None if all bits are the same."""
        one, other = self.courses
        steps = min(len(one.places), len(other.places))
        for at in range(steps):
            if any(not _same(one.values[name][at], other.values[name][at]) for name in self._names()):
                return one.places[at]
        return None if len(one.places) == len(other.places) else self._longer[steps]

    def table(self) -> list[dict[str, Any]]:
        """Return a list with one dict for each step: epoch, step, and each value's baseline and change."""
        one, other = self.courses
        rows: list[dict[str, Any]] = []
        for at, (epoch, step) in enumerate(self._longer):
            row: dict[str, Any] = {"epoch": epoch, "step": step}
            for name in self._names():
                row[name], row[f"{name} changed"] = _at(one.values[name], at), _at(other.values[name], at)
            rows.append(row)
        return rows

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        from importlib import import_module

        return import_module("pandas").DataFrame(self.table())

    @names_descriptors
    def plot(self, name: str = "loss") -> Figure:
        """Plot one value of both courses, step by step."""
        if name not in self._names():
            raise KeyError(f"both courses have no {name!r}; they have {', '.join(self._names())}")
        from ..renderer.drawing import LIGHT, lines

        first = self.start.iteration + 1
        curves = [
            (label, np.arange(first, first + len(values)), values)
            for label, values in (("as it is", self.baseline[name]), (self._said, self.changed[name]))
        ]
        return lines(curves, "training step", name, LIGHT)

    @property
    def _longer(self) -> tuple[tuple[int, int], ...]:
        one, other = (course.places for course in self.courses)
        return one if len(one) >= len(other) else other

    @property
    def _said(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.changes.items())

    def _names(self) -> list[str]:
        one, other = self.courses
        return [name for name in one.values if name in other.values]

    def _shown(self) -> Table:
        names = [name for name in self._names() if name != "Loss" or "loss" not in self._names()]
        headings = ["epoch", "step", *(part for name in names for part in (name, "changed"))]
        rows = [
            [str(row["epoch"]), str(row["step"])]
            + [number(row[key]) for name in names for key in (name, f"{name} changed")]
            for row in self.table()
        ]
        if len(rows) > _MOST_ROWS:
            rows = [*rows[: _MOST_ROWS - 1], ["…"] * len(headings), rows[-1]]
        where = self.first_difference
        differs = (
            "every bit is the same"
            if where is None
            else f"first difference at epoch {where[0]}, step {where[1]}"
        )
        return Table(
            f"what if {self._said}, from {self.start}: {differs}", headings, rows, [True] * len(headings)
        )

    def __repr__(self) -> str:
        return self._shown().text()

    def _repr_html_(self) -> str:
        return self._shown().html()


def _same(one: float, other: float) -> bool:
    return bool(one == other) or (one != one and other != other)


def _at(values: Floats, index: int) -> float:
    return float(values[index]) if index < len(values) else float("nan")
