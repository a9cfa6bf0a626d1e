"""In what two runs, or branches, differ: what made them, and the first step that measured something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..event.position import Position
from ..event.record import drift, rows
from ..event.values import Record
from .recorded_recipe import RecordedRecipe
from .tables import Table
from .varied import varied


@dataclass(frozen=True, repr=False)
class RunDifference:
    """What `Artifacts.diff` found.

    `made_by` has what differs in the recipes, by name, as pairs. `first` is the first step whose value
    differs, `metric` the value's name, and `values` the pair; all are None if no value differs of the steps
    that both have. `steps` is how many training steps are the same.
    """

    names: tuple[str, str]
    made_by: Mapping[str, tuple[Any, Any]]
    first: Position | None
    metric: str | None
    values: tuple[float, float] | None
    steps: int

    @property
    def same(self) -> bool:
        """Whether nothing differs: neither what made them nor what they measured."""
        return self.first is None and not self.made_by

    def _table(self) -> Table:
        from ..renderer.text import number

        rows = [(name, *(_short(value) for value in pair)) for name, pair in self.made_by.items()]
        if self.first is not None and self.values is not None:
            rows.append((f"{self.metric} after {self.first}", *(number(value) for value in self.values)))
        told = f"the first {self.steps:,} training steps measured the same"
        if self.first is None:
            told = f"all {self.steps:,} training steps that both have measured the same"
        return Table(told, ("what differs", *self.names), rows, (False, False, False), "nothing else differs")

    def __repr__(self) -> str:
        return self._table().text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self._table().html()


def _short(value: Any) -> str:
    return "-" if value is None else f"{value!s:.60}"


class Side(NamedTuple):
    """One of the two: its name, its recipe, if that is to be compared, and its whole record."""

    name: str
    recipe: RecordedRecipe | None
    record: Record


def difference(one: Side, other: Side) -> RunDifference:
    """Compare two runs or branches."""
    names, steps = (one.name, other.name), 0
    recipes = [each.recipe for each in (one, other) if each.recipe is not None]
    pairs = varied(recipes) if len(recipes) == 2 else {}
    made_by = {name: (mine, its) for name, (mine, its) in pairs.items()}
    for first, metric, values, same in _compared(one.record, other.record):
        steps += same
        if first is not None:
            return RunDifference(names, made_by, first, metric, values, steps)
    return RunDifference(names, made_by, None, None, None, steps)


Found = tuple[Position | None, str | None, tuple[float, float] | None, int]


def _compared(one: Record, other: Record) -> Iterator[Found]:
    """For each pass of both: the first step that differs, if one does, and how many training steps do not."""
    theirs = {(part.epoch, part.split): part for part in other}
    for part in one:
        twin = theirs.get((part.epoch, part.split))
        found: list[tuple[int, str, tuple[float, float]]] = []
        both = 0 if twin is None else min(part.steps, twin.steps)
        for mine in part.blocks if twin is not None else ():
            for its in twin.blocks if twin is not None else ():
                first, last = max(mine.first, its.first), min(mine.last, its.last)
                if first > last:
                    continue
                pair = [rows(each, first - each.first, last - each.first + 1) for each in (mine, its)]
                _, row, name = drift(*pair)
                if row is not None:
                    values = (
                        float(pair[0].columns[name].values[row]),
                        float(pair[1].columns[name].values[row]),
                    )
                    found.append((first + row, name, values))
        if found:
            step, name, values = min(found)
            at = Position(part.epoch, part.split, step)
            yield at, name, values, step - 1 if part.split == "train" else 0
            return
        yield None, None, None, both if part.split == "train" else 0
