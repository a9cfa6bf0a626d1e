"""Checkpoints as files: from a captured state to the parts of a checkpoint, and back.

The model, the optimizer and the scheduler have a file each; everything else that a step can change is in
the commit file. What was measured is not copied into checkpoints: the text logs hold it, and a restored
state takes it from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from ..artifacts.reading import read_record
from ..checkpoint.folder import CheckpointFolder
from ..checkpoint.info import CheckpointInfo, Kind, label_of
from ..checkpoint.keeper import Keeper
from ..errors import CheckpointError, DamagedError, StateError, StoreError
from ..event import Column, MetricBlock, MetricInfo, Record, SplitRecord, cut
from ..store.layout import RunLayout, check_metric_name
from ..store.log_sync import sync_logs
from .position import Position
from .soundness import check_passes
from .state import State

OWN_FILE = {"model": "model", "optim": "optimizer", "scheduler": "scheduler"}
"""The part of the state in each file; the others are in the commit file."""

About = Callable[[], Mapping[str, Any]]
"""What a commit file tells of its run, beside the state."""


class FileCheckpointer:
    """Keeps states in the run's `checkpoint` folder, written in the background."""

    def __init__(
        self,
        directory: Path,
        keeper: Keeper,
        about: About,
        metrics: tuple[MetricInfo, ...],
        known: Callable[[], Record],
    ) -> None:
        self.layout = RunLayout(directory)
        self.keeper = keeper
        self.about = about
        self.metrics = metrics
        self.known = known
        """What the learner has measured so far."""
        self.run_id = uuid4().hex
        """Goes on in whoever goes on from a checkpoint of this run."""
        self.logged: Record = ()
        """What the logs in the directory held, where `load` had to read them."""
        self._stands_at: tuple[int, int, int] | None = None
        self._last: tuple[int, int, int] | None = None
        """The position of the last state handed to the keeper."""
        self._records: dict[str, Record] = {}
        """What had been measured at each checkpoint of this process: going back cuts the logs, and one that
        then lies ahead finds its values only here."""
        self._logged_from = 1
        """The first epoch whose logs may have changed since the last save."""
        self._stood_by = False
        """Whether another process went on with the run: what it measured is in the logs alone."""

    def stand_by(self) -> None:
        """Another process saves checkpoints now, and lets go of them."""
        self._stood_by = True
        self._stands_at = self._last = None
        self._records = {}

    def forget(self) -> None:
        """The run that was looked at is not gone on with: this one is another."""
        self.run_id, self.logged = uuid4().hex, ()
        self._stands_at = None
        self.keeper.forget()

    # Save --------------------------------------------------------------------------------------------

    def save(self, epoch: int, state: State, /) -> None:
        """Keep what an epoch ended with."""
        self.keep(state, "epoch")

    def keep(self, state: State, kind: Kind) -> str:
        """Hand a state to the background writer; the label it will have."""
        at = state.position
        label = label_of(at.epoch, at.split, at.step)
        parts = {file: state.parts[part] for file, part in OWN_FILE.items()}
        about = {
            **_place(state, label),
            "kind": kind,
            "run_id": self.run_id,
            **self.about(),
            **_measured(state.record),
        }
        about["parts"] = {name: part for name, part in state.parts.items() if name not in OWN_FILE.values()}
        first, self._logged_from = min(self._logged_from, at.epoch), at.epoch

        def before() -> None:
            if not state.ready():
                raise CheckpointError(
                    f"checkpoint {label} was not written: the training step wrote to parameters itself while "
                    "they were copied. Copies are made at once from now on; learner.save() saves this step"
                )
            sync_logs(self.layout, first, at.epoch)

        self.keeper.save(label, parts, about, before)
        self._stands_at = self._last = at.key
        self._records[label] = state.record
        return label

    def check(self) -> None:
        """At a boundary: write again what an earlier error kept back, or raise what went wrong."""
        self.keeper.check()

    def wait(self) -> None:
        """Until all checkpoints are on the disk; raises where one cannot be."""
        self.keeper.wait()

    def close(self) -> None:
        """Until everything is on the disk."""
        self.keeper.close()

    def is_kept(self, position: Position) -> bool:
        """Whether the last state that was kept is the one at this position."""
        return self._stands_at == position.key

    def is_ahead(self, position: Position) -> bool:
        """Whether the newest checkpoint holds steps that come after this position."""
        if self._last is not None:  # it may still be on its way to the disk
            return self._last > position.key
        newest = self.keeper.newest
        return newest is not None and newest.key > position.key

    def moved(self, position: Position) -> None:
        """Training goes on from elsewhere."""
        self._logged_from = min(self._logged_from, position.epoch)
        if self._stands_at != position.key:
            self._stands_at = None

    # Load --------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[CheckpointInfo]:
        """What there is, complete or damaged, once the writer is done."""
        self.keeper.background.wait()
        return list(self.folder.list())

    def kept(self) -> Sequence[CheckpointInfo]:
        """What this process has saved or found, and not deleted since."""
        return self.keeper.known

    def saved(self) -> tuple[list[CheckpointInfo], str | None]:
        """What is on the disk right now, and the label of the best. Whatever is being written meanwhile is
        not waited for."""
        known = list(self.folder.list())
        best = self.folder.best(known, self.keeper.best)
        return known, None if best is None else best.label

    def load(self, which: int | str, /) -> State:
        """A state from its files; every byte is checked before anything of it is used. Where the latest
        one is damaged it is the one before, and a line says so."""
        self.keeper.background.wait()
        self.keeper.open()
        if which != "latest":
            return self._load(self.folder.find(which, self.keeper.best))
        self.folder.find("latest")
        for info in reversed(self.folder.list()):
            try:
                return self._load(info)
            except DamagedError as damage:
                self.keeper.tell(f"{damage}; the checkpoint before it is taken")
        raise StateError(
            f"no checkpoint in {self.folder.path} is whole; `notebook-learner verify` tells more"
        )

    @property
    def folder(self) -> CheckpointFolder:
        """Where the files lie."""
        return self.keeper.folder

    def _load(self, info: CheckpointInfo) -> State:
        if info.damage:
            raise DamagedError(info.damage)
        if not info.exact:
            raise StateError(_not_exact(info, self.layout.directory))
        commit = self.folder.read(info, "state")
        try:
            parts = dict(commit["parts"])
            position = Position(*(commit["position"][key] for key in _POSITION))
            passes = [_Pass(*each) for each in commit["passes"]]
            check_passes(passes)
            if position.split not in ("train", "valid"):
                raise ValueError("no split")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(
                f"the commit file of checkpoint {info.label} is incomplete: {error!r}"
            ) from None
        for file, part in OWN_FILE.items():
            parts[part] = self.folder.read(info, file)
        known = self._records.get(info.label) or (() if self._stood_by else self.known())
        self.logged = () if known else self._logs()
        self.run_id = commit["run_id"]
        self._stands_at = position.key
        return State(position, parts, record_at(passes, known or self.logged))

    def _logs(self) -> Record:
        """What the directory's logs hold; they are about to be cut to it."""
        try:
            return read_record(self.layout.directory, self.metrics, strict=True)
        except OSError as error:
            raise StoreError(
                f"the logs in {self.layout.directory} cannot be read ({error.strerror or error}), and going "
                "on would cut them; nothing was changed. Remove the cause and try again"
            ) from error


def _not_exact(info: CheckpointInfo, directory: Path) -> str:
    return (
        f"checkpoint {info.label} was saved in half precision, so training cannot go on from it exactly; "
        f"take its weights with Artifacts({str(directory)!r}).load_model(model, {info.label!r}) and train "
        "anew"
    )


_POSITION = ("epoch", "split", "step", "iteration", "total")


def _place(state: State, label: str) -> dict[str, Any]:
    at = state.position
    ended = "-" not in label
    last = state.record[-1] if state.record else None
    steps = next((part.steps for part in reversed(state.record) if part.split == "train"), 0)
    return {
        "epoch": at.epoch - 1 if ended else at.epoch,
        "split": "train" if ended else at.split,
        "step": (steps if last else 0) if ended else at.step,
        "iteration": at.iteration,
        "position": {key: getattr(at, key) for key in _POSITION},
    }


def _measured(record: Record) -> dict[str, Any]:
    """Every pass with its length and final values; the values of the steps are in the logs."""
    passes = [
        [part.epoch, part.split, part.steps, None if part.finals is None else dict(part.finals)]
        for part in record
    ]
    metrics: dict[str, dict[str, float]] = {}
    for part in record:
        if part.finals is not None:
            metrics[part.split] = dict(part.finals)
    return {"passes": passes, "metrics": metrics}


class _Pass:
    """One pass as a commit file tells it."""

    def __init__(self, epoch: Any, split: Any, steps: Any, finals: Any) -> None:
        if type(epoch) is not int or split not in ("train", "valid") or type(steps) is not int or steps < 0:
            raise ValueError("a pass that is none")
        if isinstance(finals, dict) and any(check_metric_name(name) is not None for name in finals):
            raise ValueError("a metric whose log would leave the directory")
        self.epoch: int = epoch
        self.split: Literal["train", "valid"] = split
        self.steps: int = steps
        self.finals: Mapping[str, float] | None = finals


def record_at(passes: list[_Pass], known: Record) -> Record:
    """What had been measured at a position: the passes that its commit file lists, with the values that
    are still known. Steps whose values are lost (somebody deleted a log) stay, without a value."""
    at_hand = {(part.epoch, part.split): part for part in known}
    record, trained = [], 0
    for each in passes:
        part = at_hand.get((each.epoch, each.split))
        if each.split == "train":
            trained += each.steps
        record.append(_filled(each, part, trained))
    return tuple(record)


def _filled(each: _Pass, part: SplitRecord | None, trained: int) -> SplitRecord:
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


def _unknown(each: _Pass, first: int, count: int, trained: int, like: tuple[MetricBlock, ...]) -> MetricBlock:
    nothing = np.full(count, np.nan)
    columns = {
        name: Column(nothing, None if column.weights is None else np.zeros(count))
        for block in like
        for name, column in block.columns.items()
    }
    texts = {name: "" for block in like for name in block.texts}
    return MetricBlock(each.epoch, each.split, first, count, trained, columns, texts, 0.0)
