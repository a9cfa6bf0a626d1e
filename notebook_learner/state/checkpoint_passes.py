"""The passes before a checkpoint: what it stores of them, and how to rebuild the record from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import is_
from typing import Any, Literal

import numpy as np

from ..artifacts.clock import Clock
from ..checkpoint.folder import CheckpointFolder
from ..checkpoint.passes import Line
from ..errors import DamagedError
from ..event import Column, MetricBlock, Record, SplitRecord, cut
from ..store.layout import check_metric_name
from .validation import check_passes

MOST = 8
"""A checkpoint itself holds up to this many passes: a second wait for the disk is not worth it for fewer."""

Finals = Mapping[str, Mapping[str, float]]


@dataclass
class _Stretch:
    """The passes up to one of them: a line of `passes.jsonl`, or one with the next checkpoint."""

    upto: int
    clock: Sequence[Any] = ()
    line: Line | None = None


class Trunk:
    """The finished passes on the way to a run's place, in order. It grows while the run goes on. A run that
    went back grows a new one out of it."""

    def __init__(
        self, ended: Sequence[SplitRecord] = (), stretches: Sequence[_Stretch] = (), synced: int = 0
    ) -> None:
        self.ended: list[SplitRecord] = []
        self.finals: list[Finals] = []
        """For each pass: the last final values of each split after it."""
        self.synced = synced
        """How many of the passes have their logs on the disk."""
        self._stretches = list(stretches)
        self._grow(ended)

    def grown(self, record: Record) -> Trunk:
        """This trunk with all finished passes of a record; a new one if the record is of another branch."""
        ended = ended_of(record)
        shared = min(len(self.ended), len(ended))
        # A pass never changes, and records only grow or are cut: what comes before a shared pass is shared.
        while shared and self.ended[shared - 1] is not ended[shared - 1]:
            shared -= 1
        trunk = self if shared == len(self.ended) else self._branch(shared)
        trunk._grow(ended[shared:])
        return trunk

    def _branch(self, shared: int) -> Trunk:
        kept = [stretch for stretch in self._stretches if stretch.upto <= shared]
        return Trunk(self.ended[:shared], kept, min(self.synced, shared))

    @property
    def told(self) -> int:
        """How many passes are in `passes.jsonl`, or will be with the next checkpoint."""
        return self._stretches[-1].upto if self._stretches else 0

    def tell(self, clock: Sequence[Any]) -> None:
        """Put all passes into `passes.jsonl`; add the step times of those that were not in it yet."""
        self._stretches.append(_Stretch(len(self.ended), clock))

    def written(self, folder: CheckpointFolder, upto: int) -> Line | None:
        """Return the line at which the first `upto` passes end. Passes that are not in the file yet are
        written
        first: one line, unless a save has failed, or someone has removed or cut the file."""
        last = next((stretch for stretch in reversed(self._stretches) if stretch.upto <= upto), None)
        if last is None:
            return None
        if last.line is None or not folder.has_passes(last.line):
            self._write(folder, [stretch for stretch in self._stretches if stretch.upto <= upto])
        return last.line

    def _write(self, folder: CheckpointFolder, stretches: Sequence[_Stretch]) -> None:
        lines = [stretch.line for stretch in stretches if stretch.line is not None]
        after = lines[-1] if lines and folder.has_passes(lines[-1]) else None
        missing = stretches if after is None else stretches[len(lines) :]
        begin = [0, *(stretch.upto for stretch in stretches)][len(stretches) - len(missing) :]
        told = [
            {"passes": told_of(self.ended[start : stretch.upto]), "clock": list(stretch.clock)}
            for start, stretch in zip(begin, missing, strict=False)
        ]
        for stretch, line in zip(missing, folder.tell_passes(told, after), strict=True):
            stretch.line = line

    def synced_before(self, epoch: int) -> None:
        """The logs of this epoch, and of later ones, may have changed since they were synced."""
        while self.synced and self.ended[self.synced - 1].epoch >= epoch:
            self.synced -= 1

    def _grow(self, ended: Sequence[SplitRecord]) -> None:
        for part in ended:
            before = self.finals[-1] if self.finals else {}
            self.finals.append(before if part.finals is None else {**before, part.split: dict(part.finals)})
        self.ended.extend(ended)


def ended_of(record: Record) -> Record:
    """The finished passes of a record: all, or all but the last."""
    return record[:-1] if record and record[-1].finals is None else record


def told_of(passes: Sequence[SplitRecord]) -> list[Any]:
    """Passes with their lengths and final values; the values of the steps are in the logs. The last values of
    a pass that is not over tell from which line's logs to take it."""
    return [
        [part.epoch, part.split, part.steps, None, _values_at(part, part.steps)]
        if part.finals is None
        else [part.epoch, part.split, part.steps, dict(part.finals)]
        for part in passes
    ]


def _values_at(part: SplitRecord, step: int) -> dict[str, float]:
    for block in part.blocks:
        if block.first <= step < block.first + block.count:
            return {
                name: float(column.values[step - block.first])
                for name, column in block.columns.items()
                if column.weights is not None
            }
    return {}


class ToldPasses:
    """What a commit file and `passes.jsonl` say about the passes before a checkpoint.

    Raises:
        DamagedError: `passes.jsonl` has changed.
        KeyError, TypeError, ValueError: the data are not valid passes.
    """

    def __init__(self, commit: Mapping[str, Any], folder: CheckpointFolder) -> None:
        lines = []
        self.clock = Clock()
        """When the steps of the passes were taken, as far as it was kept."""
        clocks = [(commit.get("run") or {}).get("clock")]
        for line, told in folder.earlier(commit):
            lines.append((line, _passes_of(told["passes"])))
            clocks.append(told.get("clock"))
        with suppress(DamagedError):  # it only says how long they took
            for clock in clocks:
                self.clock.update(Clock.from_json(clock or []))
        self.passes: list[SavedPass] = []
        self._stretches: list[_Stretch] = []
        for line, passes in reversed(lines):
            self.passes += passes
            self._stretches.append(_Stretch(len(self.passes), (), line))
        self.passes += _passes_of(commit["passes"])
        self.lost = 0
        """The number of steps of the last record that have no values."""

    def record(self, known: Record, others: Sequence[Record] | None = None) -> Record:
        """What had been measured: the listed passes, with the values that are still known. Steps whose values
        are lost (the user deleted a log) stay, without a value.

        Args:
            known: what the logs hold.
            others: what was measured on other lines, if the logs may be of another one than these passes.
        """
        lines = [{(part.epoch, part.split): part for part in line} for line in (known, *(others or ()))]
        record, trained, self.lost = [], 0, 0
        for each in self.passes:
            here = [line.get((each.epoch, each.split)) for line in lines]
            part = here[0] if others is None else next(filter(each.is_of, here), None)
            self.lost += max(0, each.steps - (0 if part is None else part.steps))
            if each.split == "train":
                trained += each.steps
            record.append(_filled(each, part, trained))
        return tuple(record)

    def trunk(self, record: Record, synced: Sequence[SplitRecord]) -> Trunk:
        """The trunk of a run that goes on from the record. The synced passes have their logs on the disk, as
        far as they agree with the beginning of the record."""
        ended = ended_of(record)
        same = map(is_, ended, synced)
        count = next((at for at, each in enumerate(same) if not each), min(len(ended), len(synced)))
        return Trunk(ended, self._stretches, count)


def _passes_of(told: Any) -> list[SavedPass]:
    passes = [SavedPass(*each) for each in told]
    check_passes(passes)
    return passes


@lru_cache(maxsize=1000)  # thousands of passes have the same few names
def _is_no_name(name: Any) -> bool:
    return check_metric_name(name) is not None


class SavedPass:
    """One pass, as a commit file stores it."""

    def __init__(self, epoch: Any, split: Any, steps: Any, finals: Any, last: Any = None) -> None:
        if type(epoch) is not int or split not in ("train", "valid") or type(steps) is not int or steps < 0:
            raise ValueError("not a valid pass")
        if isinstance(finals, dict) and any(_is_no_name(name) for name in finals):
            raise ValueError("a metric whose log would leave the directory")
        self.epoch: int = epoch
        self.split: Literal["train", "valid"] = split
        self.steps: int = steps
        self.finals: Mapping[str, float] | None = finals
        self._last: Mapping[str, float] = last if isinstance(last, dict) else {}

    def is_of(self, part: SplitRecord | None) -> bool:
        """Whether this is a recorded pass: it has ended with these values, or had them at its last step."""
        if part is None or part.steps < self.steps:
            return False
        if self.finals is None:
            return _agree(self._last, _values_at(part, self.steps))
        return part.steps == self.steps and _agree(self.finals, part.finals or {})


def _agree(saved: Mapping[str, float], found: Mapping[str, float]) -> bool:
    """Whether values of the same names are the same, NaN among them. A log may have been deleted."""
    both = [(saved[name], found[name]) for name in saved.keys() & found.keys()]
    return all(one == other or (one != one and other != other) for one, other in both)


def _filled(each: SavedPass, part: SplitRecord | None, trained: int) -> SplitRecord:
    """A pass of exactly the saved number of steps: cut, or filled up with steps without values."""
    if part is not None and part.steps >= each.steps and part.steps > 0:
        if part.steps == each.steps and part.finals == each.finals:
            return part
        (kept,) = cut((part,), part.epoch, part.split, each.steps) or (
            SplitRecord(each.epoch, each.split, ()),
        )
        return replace(kept, finals=each.finals)
    blocks = part.blocks if part is not None else ()
    missing = each.steps - (part.steps if part is not None else 0)
    if missing:
        blocks = (*blocks, _unknown(each, each.steps - missing + 1, missing, trained, blocks[-1:]))
    return SplitRecord(each.epoch, each.split, blocks, each.finals)


def _unknown(
    each: SavedPass, first: int, count: int, trained: int, like: tuple[MetricBlock, ...]
) -> MetricBlock:
    nothing = np.full(count, np.nan)
    columns = {
        name: Column(nothing, None if column.weights is None else np.zeros(count))
        for block in like
        for name, column in block.columns.items()
    }
    texts = {name: "" for block in like for name in block.texts}
    return MetricBlock(each.epoch, each.split, first, count, trained, columns, texts, 0.0)
