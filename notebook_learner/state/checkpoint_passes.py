"""The passes before a checkpoint: what it says of them, where, and the record made of it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import is_
from typing import Any, Literal

import numpy as np

from ..checkpoint.folder import CheckpointFolder
from ..checkpoint.passes import Line
from ..event import Column, MetricBlock, Record, SplitRecord, cut
from ..store.layout import check_metric_name
from .validation import check_passes

MOST = 8
"""So many passes a checkpoint holds itself: fewer are no reason to wait for the disk once more."""

Finals = Mapping[str, Mapping[str, float]]


@dataclass
class _Stretch:
    """Passes up to one of them, that are a line of `passes.jsonl`, or will be with the next checkpoint."""

    upto: int
    clock: Sequence[Any] = ()
    line: Line | None = None


class Trunk:
    """The passes that have ended on the way to where a run stands, in order. It grows while the run goes on;
    a run that went back grows another one out of it."""

    def __init__(
        self, ended: Sequence[SplitRecord] = (), stretches: Sequence[_Stretch] = (), synced: int = 0
    ) -> None:
        self.ended: list[SplitRecord] = []
        self.finals: list[Finals] = []
        """After each pass: the last final values of each split."""
        self.synced = synced
        """How many of them have their logs on the disk."""
        self._stretches = list(stretches)
        self._grow(ended)

    def grown(self, record: Record) -> Trunk:
        """This one with all that has ended in a record; another one where the record is of another branch."""
        ended = ended_of(record)
        shared = min(len(self.ended), len(ended))
        # No pass ever changes, and records only grow and are cut: what comes before a shared pass is shared.
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
        """Have all passes in `passes.jsonl`; of those that were not yet, the times of their steps, too."""
        self._stretches.append(_Stretch(len(self.ended), clock))

    def written(self, folder: CheckpointFolder, upto: int) -> Line | None:
        """The line with which the first so many passes end. What of them is not there yet is written: one
        line, unless a save has failed, or somebody has removed the file or cut it."""
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
    """The passes of a record that have ended: all, or all but the last."""
    return record[:-1] if record and record[-1].finals is None else record


def told_of(passes: Sequence[SplitRecord]) -> list[Any]:
    """Passes with their lengths and final values; the values of the steps are in the logs."""
    return [
        [part.epoch, part.split, part.steps, None if part.finals is None else dict(part.finals)]
        for part in passes
    ]


class ToldPasses:
    """What a commit file and `passes.jsonl` tell of the passes before a checkpoint.

    Raises:
        DamagedError: `passes.jsonl` is not what it was.
        KeyError, TypeError, ValueError: what they tell is no passes.
    """

    def __init__(self, commit: Mapping[str, Any], folder: CheckpointFolder) -> None:
        lines = []
        for line, told in folder.earlier(commit):
            lines.append((line, _passes_of(told["passes"])))
        self.passes: list[SavedPass] = []
        self._stretches: list[_Stretch] = []
        for line, passes in reversed(lines):
            self.passes += passes
            self._stretches.append(_Stretch(len(self.passes), (), line))
        self.passes += _passes_of(commit["passes"])

    def record(self, known: Record) -> Record:
        """What had been measured: the passes that are told of, with the values that are still known. Steps
        whose values are lost (somebody deleted a log) stay, without a value."""
        at_hand = {(part.epoch, part.split): part for part in known}
        record, trained = [], 0
        for each in self.passes:
            part = at_hand.get((each.epoch, each.split))
            if each.split == "train":
                trained += each.steps
            record.append(_filled(each, part, trained))
        return tuple(record)

    def trunk(self, record: Record, synced: Sequence[SplitRecord]) -> Trunk:
        """Where a run that goes on from the record has its passes. Those that are synced have their logs on
        the disk, as far as the record begins with the same."""
        ended = ended_of(record)
        same = map(is_, ended, synced)
        count = next((at for at, each in enumerate(same) if not each), min(len(ended), len(synced)))
        return Trunk(ended, self._stretches, count)


def _passes_of(told: Any) -> list[SavedPass]:
    passes = [SavedPass(*each) for each in told]
    check_passes(passes)
    return passes


@lru_cache(maxsize=1000)  # the same few in each of thousands of passes
def _is_no_name(name: Any) -> bool:
    return check_metric_name(name) is not None


class SavedPass:
    """One pass as a commit file tells it."""

    def __init__(self, epoch: Any, split: Any, steps: Any, finals: Any) -> None:
        if type(epoch) is not int or split not in ("train", "valid") or type(steps) is not int or steps < 0:
            raise ValueError("a pass that is none")
        if isinstance(finals, dict) and any(_is_no_name(name) for name in finals):
            raise ValueError("a metric whose log would leave the directory")
        self.epoch: int = epoch
        self.split: Literal["train", "valid"] = split
        self.steps: int = steps
        self.finals: Mapping[str, float] | None = finals


def _filled(each: SavedPass, part: SplitRecord | None, trained: int) -> SplitRecord:
    """A pass of exactly so many steps: cut, or filled up with steps of which nothing is known."""
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
