"""What steps reach, as a table for users: `learner.carried`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any, overload

from .classify import OWN_MODULE, OWN_OPTIMIZER
from .heap import Heap, ReachedObject
from .hooks import FlagsKind, HooksKind
from .kinds import BatchesKind, CellKind, ClassKind, GlobalKind, alike
from .memory import ArrayKind, TensorKind

_HEAD = re.compile(r"[^\[=#]*")
"""The part of a path that names a variable or an attribute; what is in its value comes after it."""
BY_VALUE = "by value"
_LARGE = "large: taken to be read only, and compared"
_NUMBER = 8
"""Bytes of a number, as the table counts."""


@dataclass(frozen=True, slots=True)
class CarriedObject:
    """One row: something that a step reaches outside of model, optimizer and loaders."""

    name: str
    found: str
    """Where it was found, such as "closure of train_step"."""
    kind: str
    nbytes: int
    kept: str
    """How it is kept; or, after "not kept: ", why it is not."""


class CarriedTable(Sequence[CarriedObject]):
    """What the steps of a training change outside of it, and what of that cannot be kept.

    >>> table = CarriedTable([CarriedObject("count", "closure of step", "int", 8, "by value")], 3)
    >>> table
    name   found            kind  bytes  kept
    count  closure of step  int       8  by value
    3 more objects are reached, and no step has changed them
    >>> table["count"].kind
    'int'
    """

    def __init__(self, rows: Sequence[CarriedObject], others: int = 0) -> None:
        self._rows, self.others = tuple(rows), others
        """The number of objects that are reached, and that no step has changed."""

    @overload
    def __getitem__(self, index: int | str) -> CarriedObject: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CarriedObject]: ...
    def __getitem__(self, index: int | str | slice) -> CarriedObject | Sequence[CarriedObject]:
        if isinstance(index, str):
            for row in self._rows:
                if index in (row.name, f"{row.found}: {row.name}"):
                    return row
            raise KeyError(f"{index!r}; there are: {', '.join(row.name for row in self._rows) or 'none'}")
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[CarriedObject]:
        return iter(self._rows)

    def __repr__(self) -> str:
        lines = [_HEADINGS, *map(_cells, self._rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
        shown = [
            "  ".join(
                cell.rjust(width) if heading == "bytes" else cell.ljust(width)
                for cell, width, heading in zip(line, widths, _HEADINGS, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*(shown if self._rows else ()), self._more()])

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return (
                "<tr>"
                + "".join(f"<{tag} style='text-align:left'>{escape(c)}</{tag}>" for c in cells)
                + "</tr>"
            )

        body = "".join(row(_cells(each), "td") for each in self._rows)
        table = (
            f"<table><thead>{row(_HEADINGS, 'th')}</thead><tbody>{body}</tbody></table>" if self._rows else ""
        )
        return f"{table}<p>{escape(self._more())}</p>"

    def _more(self) -> str:
        if not self._rows and not self.others:
            return "steps reach nothing outside of model, optimizer and loaders"
        count = f"{self.others:,} more object{'s are' if self.others != 1 else ' is'} reached"
        return f"{count}, and no step has changed {'them' if self.others != 1 else 'it'}"


_HEADINGS = ("name", "found", "kind", "bytes", "kept")


def _cells(row: CarriedObject) -> Sequence[str]:
    return (row.name, row.found, row.kind, f"{row.nbytes:,}", row.kept)


# From the objects themselves -------------------------------------------------------------------------


def table_of(heap: Heap) -> CarriedTable:
    """The table of all objects that are reached."""
    rows: dict[str, CarriedObject] = {}
    kinds = {entry.path: type(entry.live).__name__ for entry in heap.entries.values()}
    others = 0
    for entry in heap.entries.values():
        large = isinstance(entry.kind, (TensorKind, ArrayKind)) and entry.taken.copy is None
        if large:
            _add(
                rows,
                entry.path,
                entry.kind.name,
                entry.live.nbytes,
                "large: taken to be read only, and compared",
            )
        elif isinstance(entry.kind, (BatchesKind, FlagsKind)):
            continue  # it is there by its batches, or by its hooks
        elif not entry.moves:
            others += 1
        else:
            for head, kind, nbytes in _named(entry):
                _add(rows, head, kind, nbytes, BY_VALUE)
    for left in heap.left.values():
        if "read only" not in left.why:
            _add(rows, left.path, left.kind, 0, f"not kept: {left.why}")
    return CarriedTable([_of_kind(row, kinds.get(f"{head}=")) for head, row in rows.items()], others)


def _of_kind(row: CarriedObject, kind: str | None) -> CarriedObject:
    """The row of a variable says of what kind the variable's value is, and not what in it has changed."""
    return row if kind is None else replace(row, kind=kind)


def _add(rows: dict[str, CarriedObject], path: str, kind: str, nbytes: int, kept: str) -> None:
    head = (_HEAD.match(path) or [""])[0]
    before = rows.get(head)
    if before is not None:
        kind, nbytes = before.kind, nbytes + before.nbytes
    name, found = _place_of(head)
    rows[head] = CarriedObject(name, found, kind, nbytes, kept)


def _named(entry: ReachedObject) -> Iterator[tuple[str, str, int]]:
    """What of an object steps have changed: of a module and a class, single attributes."""
    if entry.kind in (OWN_MODULE, OWN_OPTIMIZER) or isinstance(entry.kind, ClassKind):
        before = dict(zip(*entry.base, strict=True)) if isinstance(entry.base, tuple) else {}
        for name, value in zip(*entry.taken, strict=True):
            if not alike(before.get(name, entry), value):
                yield f"{entry.path}.{name}", type(value).__name__, _NUMBER
    elif isinstance(entry.kind, (CellKind, GlobalKind)):
        yield entry.path, type(entry.taken).__name__, _NUMBER
    else:
        held = sum(tensor.nbytes for tensor in entry.kind.tensors(entry.taken))
        yield entry.path, _kind_of(entry), held or _NUMBER * _length(entry.live)


def _kind_of(entry: ReachedObject) -> str:
    return entry.kind.name if isinstance(entry.kind, HooksKind) else type(entry.live).__name__


def _length(live: Any) -> int:
    return len(live) if isinstance(live, (list, dict, set)) else 1


def _place_of(head: str) -> tuple[str, str]:
    """A variable's name, and where it is."""
    if ": " in head:
        function, name = head.rsplit(": ", 1)
        return name, f"closure of {function}"
    start = head.split(".")[0]
    if start.partition("[")[0] in ("model", "ema_model", "optimizer") or start.endswith(" data"):
        return head, start
    if head.startswith(("carry(", "class ")):
        return head, "named by carry" if head.startswith("carry(") else "class"
    return head, "global"
