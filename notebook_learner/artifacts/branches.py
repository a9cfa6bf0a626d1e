"""The lines that a run has left, read back: each with its whole record, as a table and as a tree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import DamagedError, StoreError
from ..event import cut
from ..event.position import Position
from ..event.training_time import Knots, timed
from ..event.values import Floats, MetricBlock, MetricInfo, Record, Split
from ..logger.branches import Branch, chain_to, read_branches
from ..logger.history import History
from ..store.layout import SPLITS, RunLayout
from .clock import Clock, Series, series_of
from .read_record import read_record
from .tables import Table


class RecordedBranch:
    """A line that the run has left: where it began, how far it went, and what was measured on the way to its
    end.

    `begin` and `end` are positions; `parent` is the branch from which it leaves, and empty if that is the
    run's own line; `changes` says what was changed by hand on it, and `why` why it was left.
    """

    def __init__(
        self,
        branch: Branch,
        record: Record,
        infos: Sequence[MetricInfo],
        directory: str | os.PathLike[str],
    ) -> None:
        self.branch, self._record, self._infos = branch, record, infos
        self.directory = Path(directory)
        """The run's."""
        self.name, self.parent, self.why = branch.name, branch.parent, branch.why
        self.begin, self.end, self.changes = branch.begin, branch.end, tuple(branch.changes)

    @cached_property
    def history(self) -> History:
        """All that was measured on the way to its end, also before it left its parent."""
        history = History()
        history.restore(self._record)
        return history

    @property
    def record(self) -> Record:
        """The same, pass by pass."""
        return self._record

    def series(self, name: str, split: Split | str = "train", epoch: int | None = None) -> Series:
        """A metric step by step, of the whole way to its end."""
        return series_of(self.history, Clock(), name, split, epoch)

    def epochs(self, name: str, split: Split | str = "valid") -> Floats:
        """A metric's value for every epoch that has ended, of the whole way to its end."""
        return self.history.epochs(name, split)

    @property
    def when(self) -> datetime:
        """When it was left."""
        return datetime.fromtimestamp(self.branch.when)

    def __repr__(self) -> str:
        return f"RecordedBranch({self.name}: from {self.begin} to {self.end})"


ORIGIN = "forked from"
"""The setting that says from which run, and where, a run was forked."""


class RecordedFork(NamedTuple):
    """Another run that began with a state of this one."""

    directory: str
    begin: Position
    parent: str
    """The branch on which it began; empty for the run's own line."""


def forks_in(changes: Any) -> list[RecordedFork]:
    """The forks among the changes that a recipe tells, which may be a stranger's."""
    found = []
    for each in changes if isinstance(changes, list) else ():
        if isinstance(each, dict) and isinstance(each.get("fork"), str):
            epoch, split, step = (each.get(name) for name in ("epoch", "split", "step"))
            if isinstance(epoch, int) and isinstance(step, int) and split in SPLITS:
                place = Position(epoch, split, step)
                found.append(RecordedFork(each["fork"], place, str(each.get("branch") or "")))
    return found


class Branches(list[RecordedBranch]):
    """The lines that a run has left. Prints as a table, with a tree above it, which has the run's forks, too;
    `branches["1"]` is one of them."""

    def __init__(
        self,
        branches: Iterable[RecordedBranch] = (),
        here: Position | None = None,
        forks: Sequence[RecordedFork] = (),
        origin: str = "",
    ) -> None:
        super().__init__(branches)
        self.here = here
        """Where the run's own line ends."""
        self.forks = tuple(forks)
        """The runs that began with a state of this one."""
        self.origin = origin
        """From which run, and where, this one was forked; empty if it was not."""

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, str):
            found = next((each for each in self if each.name == which), None)
            if found is None:
                raise KeyError(f"there is no branch {which!r}; there are: {', '.join(e.name for e in self)}")
            return found
        return super().__getitem__(which)

    def tree(self) -> str:
        """The tree as text: the run's own line, and what has left it."""
        end = f" to {_short(self.here)}" if self.here is not None else ""
        origin = f", forked from {self.origin}" if self.origin else ""
        return "\n".join([f"this run{end}{origin}", *self._below("", "")])

    def _below(self, parent: str, margin: str) -> list[str]:
        children: list[RecordedBranch | RecordedFork] = [each for each in self if each.parent == parent]
        names = {each.name for each in self}
        children += [each for each in self.forks if parent == (each.parent if each.parent in names else "")]
        children.sort(key=lambda each: each.begin.key)
        lines = []
        for number, each in enumerate(children, 1):
            last = number == len(children)
            lines.append(f"{margin}{'└─' if last else '├─'} {_line(each)}")
            if isinstance(each, RecordedBranch):
                lines += self._below(each.name, f"{margin}{'   ' if last else '│  '}")
        return lines

    def _table(self) -> Table:
        from ..renderer.text import number

        rows = []
        for each in self:
            values = each.history.last_values()
            metrics = "" if values is None else ", ".join(f"{k} {number(v)}" for k, v in values[1].items())
            steps = each.end.iteration - each.begin.iteration
            left = f"{each.when:%Y-%m-%d %H:%M:%S}"
            parent = each.parent or "this run"
            rows.append((each.name, parent, str(each.begin), str(each.end), str(steps), metrics, left))
        headings = ("branch", "leaves", "at", "to", "training steps", "last values", "left")
        empty = "no branches: this run has never gone on in another way than before"
        return Table("", headings, rows, (False, False, False, False, True, False, False), empty)

    def __repr__(self) -> str:
        return f"{self.tree()}\n\n{self._table().text()}" if self._has_tree else self._table().text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from html import escape

        tree = f"<pre>{escape(self.tree())}</pre>" if self._has_tree else ""
        return tree + self._table().html()

    @property
    def _has_tree(self) -> bool:
        return bool(self or self.forks or self.origin)


def _line(each: RecordedBranch | RecordedFork) -> str:
    if isinstance(each, RecordedFork):
        return f"fork {each.directory}: {_short(each.begin)}"
    changes = f" ({'; '.join(each.changes)})" if each.changes else ""
    return f"{each.name}: {_short(each.begin)} to {_short(each.end)}{changes}"


def _short(position: Position) -> str:
    valid = "valid " if position.split == "valid" else ""
    return f"epoch {position.epoch}, {valid}step {position.step}"


def branches_in(
    directory: str | os.PathLike[str],
    infos: Sequence[MetricInfo],
    line: Record,
    here: Position | None = None,
    forks: Sequence[RecordedFork] = (),
    origin: str = "",
) -> Branches:
    """The branches of a run, given the record of the line that it is on."""
    known = {each.name: each for each in read_branches(directory)}
    records: dict[str, Record] = {"": line}
    found = []
    for name in known:
        try:
            chain = chain_to(name, known)
        except DamagedError:  # its parent was deleted, or cannot be read
            continue
        for each in chain:
            if each.name not in records:
                records[each.name] = _whole(directory, each, records[each.parent], infos)
        found.append(RecordedBranch(known[name], records[name], infos, directory))
    return Branches(found, here, forks, origin)


def own_passes(
    directory: str | os.PathLike[str],
    branch: Branch,
    infos: Sequence[MetricInfo],
    problems: list[str] | None = None,
) -> Record:
    """The passes in a branch's own files; the first one is whole."""
    begin = branch.begin
    inside = begin.step if begin.split == "train" else 0
    folder = Path(RunLayout(directory).branches / branch.name)
    record = read_record(folder, infos, problems, trained=begin.iteration - inside)
    return record if branch.seconds is None else timed(record, partial(_seconds, branch.seconds))


def _seconds(knots: Knots, block: MetricBlock) -> float:
    """What the steps of a block took; those of validation count in the training steps after them."""
    if block.split != "train":
        return 0.0
    before, after = np.interp([block.iteration - block.count, block.iteration], *knots)
    return float(after - before)


def passes_of_branches(
    directory: str | os.PathLike[str], infos: Sequence[MetricInfo]
) -> list[tuple[Branch, Record]]:
    """The branches of a run with the passes in their own files. One whose files are being moved is left
    out."""
    found = []
    for branch in read_branches(directory):
        with suppress(OSError, StoreError):
            found.append((branch, own_passes(directory, branch, infos)))
    return found


def _whole(
    directory: str | os.PathLike[str], branch: Branch, parent: Record, infos: Sequence[MetricInfo]
) -> Record:
    """All passes on the way to a branch's end: those of its parent up to where it leaves, and its own."""
    begin, own = branch.begin, own_passes(directory, branch, infos)
    passes = {(part.epoch, part.split) for part in own}
    before = cut(parent, begin.epoch, begin.split, begin.step)
    return (*(part for part in before if (part.epoch, part.split) not in passes), *own)
