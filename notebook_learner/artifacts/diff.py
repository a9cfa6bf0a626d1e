"""In what two runs, or branches, differ: what made them, and the first step that measured something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..event.position import Position
from ..event.record import drift, rows
from ..event.values import MetricBlock, Record
from .recorded_recipe import RecordedRecipe
from .tables import Table
from .varied import BY_HAND, varied


@dataclass(frozen=True)
class FirstCause:
    """What made two runs differ: the first thing that is not the same at the first step that left other
    weights.

    `step` is that training step. `kind` is "order of the data", "a batch's content", "weights before",
    "the optimizer", "rate", "an option of the optimizer", "random state", "state before", "a module's
    output", "the loss", "a gradient" or "the optimizer's step"; "validation" if only that measured something
    else, with the same weights; and "changed by hand" of a branch whose steps were not taken again. `name`
    says which one, and `values` has both: of tensors, their checksums. `also` names the kinds that differ at
    this step, too.
    """

    step: Position
    kind: str
    name: str = ""
    values: tuple[str, str] = ("", "")
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}" if self.name else self.kind


@dataclass(frozen=True, repr=False)
class RunDifference:
    """What `Artifacts.diff` found.

    `made_by` has what differs in the recipes, by name, as pairs. `first` is the first step whose value
    differs, `metric` the value's name, and `values` the pair; all are None if no value differs of the steps
    that both have. `steps` is how many training steps are the same. `cause` is why, if `diff` could take the
    steps again, and `notes` says what limits that.
    """

    names: tuple[str, str]
    made_by: Mapping[str, tuple[Any, Any]]
    first: Position | None
    metric: str | None
    values: tuple[float, float] | None
    steps: int
    cause: FirstCause | None = None
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether nothing differs: neither what made them, nor what they measured, nor weights."""
        return self.first is None and not self.made_by and self.cause is None

    def _table(self) -> Table:
        from ..renderer.text import number

        rows = [(name, *(_short(value) for value in pair)) for name, pair in self.made_by.items()]
        if self.first is not None and self.values is not None:
            rows.append((f"{self.metric} after {self.first}", *(number(value) for value in self.values)))
        if self.cause is not None:
            rows.append((f"first cause, {self.cause.step}: {self.cause}", *map(_short, self.cause.values)))
        told = f"the first {self.steps:,} training steps measured the same"
        if self.first is None:
            told = f"all {self.steps:,} training steps that both have measured the same"
        told = "; ".join([told, *self.notes])
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
    edits: str = ""
    """What was changed by hand since the branch began that is compared."""


def difference(one: Side, other: Side) -> RunDifference:
    """Compare two runs or branches."""
    names, steps, edits = (one.name, other.name), 0, (one.edits, other.edits)
    recipes = [each.recipe for each in (one, other) if each.recipe is not None]
    pairs = varied(recipes) if len(recipes) == 2 else {}
    made_by: dict[str, tuple[Any, Any]] = {name: (mine, its) for name, (mine, its) in pairs.items()}
    if edits[0] != edits[1]:
        made_by[BY_HAND] = edits
    for first, metric, values, same in _compared(one.record, other.record):
        steps += same
        if first is not None:
            cause = FirstCause(first, BY_HAND, "", edits) if edits[0] != edits[1] else None
            return RunDifference(names, made_by, first, metric, values, steps, cause)
    return RunDifference(names, made_by, None, None, None, steps)


Found = tuple[Position | None, str | None, tuple[float, float] | None, int]


def _compared(one: Record, other: Record) -> Iterator[Found]:
    """For each pass of both: the first step that differs, if one does, and how many training steps do not."""
    theirs = {(part.epoch, part.split): part for part in other}
    for part in one:
        twin = theirs.get((part.epoch, part.split))
        both = 0 if twin is None else min(part.steps, twin.steps)
        for mine, its in () if twin is None else _overlapping(part.blocks, twin.blocks):
            _, row, name = drift(mine, its)
            if row is not None:
                values = (float(mine.columns[name].values[row]), float(its.columns[name].values[row]))
                at = Position(part.epoch, part.split, mine.first + row)
                yield at, name, values, at.step - 1 if part.split == "train" else 0
                return
        yield None, None, None, both if part.split == "train" else 0


def _between(block: MetricBlock, first: int, last: int) -> MetricBlock:
    return rows(block, first - block.first, last - block.first + 1)


def _overlapping(
    one: Sequence[MetricBlock], other: Sequence[MetricBlock]
) -> Iterator[tuple[MetricBlock, MetricBlock]]:
    """The steps that both have, in their order, cut where either has another block."""
    behind, left = iter(other), None
    for mine in one:
        while left is None or left.first <= mine.last:
            if left is not None and left.last >= mine.first:
                first, last = max(mine.first, left.first), min(mine.last, left.last)
                yield _between(mine, first, last), _between(left, first, last)
                if left.last > mine.last:
                    break
            if (left := next(behind, None)) is None:
                return
