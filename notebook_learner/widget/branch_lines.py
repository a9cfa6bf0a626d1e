"""The lines that the page draws behind the curves: those that the run has left, and other runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..event import Record, Split, rows
from ..logger.branches import Branch
from ..renderer.text import count, one_line, place
from .curves import Curves, CurveSeries
from .run_axes import as_lists, axes_of
from .wire import Json

MOST = 8
"""The latest so many are drawn: more thin lines cannot be told apart."""
BUCKETS = 256
"""Buckets of a thin line, at most: eight of them take as many bytes as the curve in front of them."""


class OtherRun(NamedTuple):
    """A run that is laid over the curves, as its files were when the user asked for it."""

    name: str
    steps: int
    curves: Curves
    axes: Json
    """Where its steps lie in its epochs and its training time."""

    @classmethod
    def of(cls, name: str, record: Record, names: dict[Split, set[str]]) -> OtherRun:
        """Make the curves of these metrics from what the run has measured."""
        curves = Curves(BUCKETS)
        curves.rebuild(record, names)
        steps = sum(part.steps for part in record if part.split == "train")
        return cls(one_line(name), steps, curves, axes_of(record))


class LeftBranches(NamedTuple):
    """The branches of a run and what is known of each, and the other runs beside it."""

    found: Sequence[Branch]
    passes: Callable[[Branch], Record]
    """Returns the passes in a branch's own files; the first one is whole."""
    again: Callable[[Branch], int]
    """Returns how many training steps are taken again on the way to its end."""
    others: Sequence[OtherRun] = ()
    """The runs that are laid over this one."""
    offered: Sequence[str] = ()
    """The names of the runs in the same folder, which the page offers."""


@dataclass
class BranchLines:
    """The latest branches. The files of a branch do not change after it was left. They are read twice,
    because the first time some of them may still be on their way."""

    told: Json = field(default_factory=lambda: {"lines": [], "more": 0, "offered": []})
    """What the page is told about them."""
    curves: dict[str, Curves] = field(default_factory=dict)
    _epochs: dict[str, Any] = field(default_factory=dict)
    """Where the steps of each branch lie in its epochs."""
    _known: dict[str, Branch] = field(default_factory=dict)
    _whole: frozenset[str] = frozenset()
    """Those that were read twice."""

    def read(
        self, left: LeftBranches, names: dict[Split, set[str]], length: int | None = None
    ) -> BranchLines:
        """The branches as they are now, in the order in which they were left.

        Args:
            left: what is known of them.
            names: the metrics that have a curve.
            length: the training steps of an epoch, for one that a branch has not ended.
        """
        latest = left.found[-MOST:]
        read = {each.name: self._read(each, left, names, length) for each in latest}
        curves, epochs = ({name: each[at] for name, each in read.items()} for at in (0, 1))
        lines = [_told(each, left.again(each), epochs[each.name]) for each in latest]
        for other in left.others:
            lines.append(_told_other(other))
            curves[lines[-1]["name"]] = other.curves
        told = {
            "lines": lines,
            "more": len(left.found) - len(latest),
            "offered": [one_line(name) for name in left.offered],
        }
        whole = frozenset(each.name for each in latest if self._has(each))
        return BranchLines(told, curves, epochs, {each.name: each for each in latest}, whole)

    def series(self) -> Mapping[tuple[str, str, Split], CurveSeries]:
        """The curves by branch, metric and split."""
        return {(name, *key): each for name, of in self.curves.items() for key, each in of.series.items()}

    def left_since(self, before: BranchLines, when: float) -> list[str]:
        """A line for the log about each branch that was left after a time, and is not in `before`."""
        new = [name for name, each in self._known.items() if name not in before._known and each.when >= when]
        return [f"left {each['text']}" for each in self.told["lines"] if each["name"] in new]

    def _has(self, branch: Branch) -> bool:
        known = self._known.get(branch.name, branch)
        same = (known.begins, known.ends, known.when) == (branch.begins, branch.ends, branch.when)
        return same and branch.name in self._known

    def _read(
        self, branch: Branch, left: LeftBranches, names: dict[Split, set[str]], length: int | None
    ) -> tuple[Curves, Any]:
        if branch.name in self._whole and self._has(branch):
            return self.curves[branch.name], self._epochs[branch.name]
        curves, passes = Curves(BUCKETS), left.passes(branch)
        curves.rebuild(_beyond(passes, branch), names, branch.begin.iteration)
        return curves, axes_of(passes, length)["epochs"]


def _beyond(own: Record, branch: Branch) -> Record:
    """A branch's passes from the last step on that it shares with the line that it left: the thin line
    begins on the curve."""
    epoch, split, step, _ = branch.begins
    cut = []
    for part in own:
        if (part.epoch, part.split) == (epoch, split):
            kept = [block for block in part.blocks if block.last >= step]
            blocks = (rows(block, max(0, step - block.first), block.count) for block in kept)
            part = replace(part, blocks=tuple(blocks))
        cut.append(part)
    return tuple(cut)


def _told(branch: Branch, again: int, epochs: Any) -> Json:
    begin, end = (place(*each[:3], None) for each in (branch.begins, branch.ends))
    changes = one_line("; ".join(branch.changes))
    return {
        "name": branch.name,
        "changes": changes,
        "text": f"branch {branch.name}: from {begin} to {end}" + f" ({changes})" * bool(changes),
        "from": branch.begin.iteration,
        "to": branch.end.iteration,
        "again": again,
        "epochs": epochs,
        "seconds": as_lists(branch.seconds),
    }


def _told_other(run: OtherRun) -> Json:
    return {
        "name": f"run {run.name}",
        "run": run.name,
        "changes": "",
        "text": f"run {run.name}: {count(run.steps)} training steps",
        "from": 0,
        "to": run.steps,
        "again": 0,
        **run.axes,
    }
