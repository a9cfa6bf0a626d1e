"""The table of evaluated sets: a row for each set, a column for each metric."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ..event import Evaluated
from .numbers import count, number
from .summary import text_table
from .text import one_line, place


class SetRow(NamedTuple):
    """A set in words."""

    name: str
    values: Mapping[str, str]
    """By metric."""
    batches: int
    where: str
    """The position in the training whose weights were measured; "" if it is unknown."""


class SetTable(NamedTuple):
    """Headings and cells. Some columns of metrics may be left out if there is little room."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    """Which columns are aligned to the right."""


def set_row(event: Evaluated) -> SetRow:
    """The row of an evaluated set."""
    units = {info.name: one_line(info.unit) for info in event.metrics}
    finals = (event.record.finals or {}).items()
    values = {one_line(name): number(value, units.get(name, "")) for name, value in finals}
    where = place(event.epoch, event.split, event.step, None) if event.epoch else ""
    return SetRow(one_line(event.name), values, event.record.steps, where)


def set_table(rows: Sequence[SetRow]) -> SetTable:
    """The table of these sets.

    >>> row = SetRow("clean", {"Loss": "0.2500", "Accuracy": "91.25 %"}, 20, "epoch 3, train, step 7")
    >>> print("\\n".join(line.rstrip() for line in text_table(*set_table([row]))))
    set      Loss  Accuracy  batches  weights of
    -----  ------  --------  -------  ----------------------
    clean  0.2500   91.25 %       20  epoch 3, train, step 7
    """
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.values))
    cells = [
        (row.name, *(row.values.get(metric, "") for metric in metrics), count(row.batches), row.where)
        for row in rows
    ]
    return SetTable(
        ("set", *metrics, "batches", "weights of"), cells, (False, *(True for _ in metrics), True, False)
    )


def sets_text(events: Iterable[Evaluated]) -> str:
    """The table as aligned text; "" if no set was evaluated."""
    lines = text_table(*set_table([set_row(event) for event in events]))
    return "\n".join(line.rstrip() for line in lines)
