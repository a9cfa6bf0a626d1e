"""Decides when the state is saved: at the end of an epoch, at intervals, and at a pause."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol

from ..checkpoint.info import CheckpointInfo, Kind
from ..errors import LoggerError, MovedError, StateError
from ..event import Record
from ..event.position import Position
from ..state.checkpoint_files import Checkpointer, Lineage
from ..state.state import State
from .bounds import FAR

_UNITS = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+?)s?\s*")


def autosave_of(given: tuple[Any, bool] | None) -> Autosave:
    """Parse the arguments of `.autosave`; by default a pause is saved."""
    if given is None:
        return Autosave()
    every, on_pause = given
    if every is None or isinstance(every, int):
        return Autosave(steps=every, on_pause=on_pause)
    return Autosave(seconds=seconds_of(every), on_pause=on_pause)


def seconds_of(every: str | timedelta) -> float:
    """Parse a time as people write it.

    >>> seconds_of("10 min"), seconds_of("1.5h"), seconds_of("30 seconds")
    (600.0, 5400.0, 30.0)
    """
    if isinstance(every, timedelta):
        return every.total_seconds()
    match = _TIME.fullmatch(every.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{every!r} is not a time; write '30 s', '10 min' or '2 h'")
    return float(match[1]) * _UNITS[match[2]]


class Store(Protocol):
    """A checkpointer that takes states at any step, and writes them while training goes on."""

    def keep(self, state: State, kind: Kind) -> str:
        """Take a state to write, and return the label that loads it."""

    logged: Record
    """What the logs in its directory held, if `load` had to read them."""

    lineage: Lineage
    """The lineage of the present position: which rewinds and restores led to it."""

    loaded: Lineage
    """The lineage of the checkpoint that was loaded last."""

    @property
    def keeps_all(self) -> bool:
        """Whether no checkpoint is ever deleted."""

    def load(self, which: int | str, /) -> State:
        """Read a state from its files."""

    def checkpoints(self) -> list[CheckpointInfo]:
        """All checkpoints, complete or damaged."""

    def kept(self) -> Sequence[CheckpointInfo]:
        """The checkpoints that this process knows of; it waits neither for the writer nor for the disk."""

    keeps_start: bool
    """Whether the state that the run begins with is still to be kept."""

    def keep_start(self, state: State) -> None:
        """Keep the state that the run begins with, or one behind a change by hand."""

    def starts(self) -> Sequence[CheckpointInfo]:
        """Those states, as checkpoints outside of the others."""

    def load_start(self, info: CheckpointInfo, /) -> State:
        """Read one of them from its files."""

    def saved(self) -> tuple[list[CheckpointInfo], str | None]:
        """What is on the disk right now, without waiting for the writer, and the label of the best."""

    def check(self) -> None:
        """At a boundary: raise if a checkpoint could not be written or the directory was replaced."""

    def ask(self) -> None:
        """Raise if the directory is not the one that was opened."""

    def wait(self) -> None:
        """Wait until all checkpoints are written; raise the error of one that could not be."""

    def close(self) -> None:
        """Wait until all checkpoints, and the files made from them, are written."""

    def is_kept(self, position: Position) -> bool:
        """Whether the last state taken is the one at this position."""

    def is_ahead(self, position: Position) -> bool:
        """Whether the newest checkpoint holds steps after this position."""

    def moved(self, position: Position) -> None:
        """The run went to another position."""


@dataclass(frozen=True, slots=True)
class Autosave:
    """The arguments of `.autosave`."""

    steps: int | None = None
    seconds: float | None = None
    on_pause: bool = True


class Saving:
    """Decides at each boundary whether the state is saved, and by which object.

    The checkpointer, if there is one, takes the end of every epoch. The store takes states at any step:
    those of `learner.save()` and, if it is also the checkpointer, those that autosave asks for.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | None = None,
        store: Store | None = None,
        autosave: Autosave | None = None,
    ) -> None:
        self.checkpointer = checkpointer
        self.store = store
        self.asked: object = checkpointer
        """Compared with the store by identity, because it may have another type."""
        self.autosave = autosave or Autosave(on_pause=self.keeps_epochs_in_files)
        self.saved_epoch = 0
        """Epochs up to this one are saved already."""
        self._since = monotonic()

    # At a boundary -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written."""
        if self.store is not None:
            self.store.check()

    def cause_of(self, failure: LoggerError) -> LoggerError | MovedError:
        """The reason why a log could not be written: the failure, or that the directory was moved. A
        directory that was deleted is created again."""
        try:
            if self.store is not None:
                self.store.ask()
        except MovedError as moved:
            return moved
        return failure

    @property
    def keeps_epochs_in_files(self) -> bool:
        """Whether the store also takes every epoch."""
        return self.asked is not None and self.asked is self.store

    @property
    def hurried(self) -> bool:
        """Whether a state is read as soon as it is taken, which a checkpointer of the user may do."""
        return self.checkpointer is not None and not self.keeps_epochs_in_files

    def due(self, position: Position) -> bool:
        """Whether the state at this boundary must be saved."""
        return self._epoch_due(position) or self._auto_due(position)

    def take(self, state: State) -> Kind:
        """Save a state that was due, and return its kind."""
        position = state.position
        if self.checkpointer is not None and self._epoch_due(position):
            self.checkpointer.save(position.epoch - 1, state)
            self.saved_epoch = position.epoch - 1
            self._since = monotonic()
            return "epoch"
        self.take_auto(state)
        return "auto"

    def take_auto(self, state: State) -> None:
        """Save a state that is kept only while it is the newest."""
        if self.store is not None:
            self.store.keep(state, "auto")
        self._since = monotonic()

    def allowance(self, position: Position) -> int:
        """How many steps until autosave by steps is due."""
        every = self.autosave.steps
        if every is None or position.split != "train":
            return FAR
        return every - position.iteration % every

    # At a stop ---------------------------------------------------------------------------------------

    def due_at_pause(self, position: Position) -> bool:
        """Whether a pause here must be saved: not if nothing has changed, or it is saved already."""
        return self.autosave.on_pause and self._new_to_store(position)

    def wait(self) -> None:
        """Wait until all checkpoints are written; raise the error of one that could not be."""
        if self.store is not None:
            self.store.wait()

    def close(self) -> None:
        """Wait until all checkpoints, and the files made from them, are written."""
        if self.store is not None:
            self.store.close()

    def load(self, which: int | str) -> tuple[State, Record]:
        """A checkpoint's state, and the record from the run's logs if they were read for it. A checkpointer
        of the user is asked first, except for places inside an epoch, which only the store knows."""
        of_an_epoch = isinstance(which, int) or which in ("latest", "best")
        if of_an_epoch and self.checkpointer is not None and self.hurried:
            if self.store is not None:
                self.store.loaded = Lineage()
            return self.checkpointer.load(which), ()
        if self.store is None:
            raise StateError("this learner keeps no checkpoints")
        return self.store.load(which), self.store.logged

    def checkpoints(self) -> list[CheckpointInfo]:
        """The checkpoints of the store."""
        return [] if self.store is None else self.store.checkpoints()

    def kept(self) -> Sequence[CheckpointInfo]:
        """The checkpoints of the store that this process knows of, without reading the disk."""
        return () if self.store is None else self.store.kept()

    def keep_change(self, state: State) -> None:
        """Keep the state behind a change by hand that the record cannot repeat, so that no way back to later
        steps leads over it."""
        if self.keeps_epochs_in_files and self.store is not None and not self.store.keeps_start:
            self.store.keep_start(state)

    @property
    def keeps_start(self) -> bool:
        """Whether the state that the run begins with is still to be kept."""
        return self.keeps_epochs_in_files and self.store is not None and self.store.keeps_start

    def keep_start(self, state: State) -> None:
        """Keep the state that the run begins with, from which each later step can be reached."""
        assert self.store is not None
        self.store.keep_start(state)

    def on_the_way(self) -> list[CheckpointInfo]:
        """The checkpoints that the run has passed on its way here, and the state that it began with."""
        if self.store is None:
            return []
        return [*filter(self.lineage.passes, [*self.store.starts(), *self.store.checkpoints()])]

    def kept_on_the_way(self) -> list[CheckpointInfo]:
        """The same, as far as this process knows, without reading the disk."""
        return [*filter(self.lineage.passes, self.kept())]

    def load_on_the_way(self, info: CheckpointInfo) -> State:
        """The state of one of them."""
        assert self.store is not None
        return self.store.load_start(info) if info in self.store.starts() else self.store.load(info.label)

    def saved(self) -> tuple[list[CheckpointInfo], str | None]:
        """What is on the disk right now, and the label of the best."""
        return ([], None) if self.store is None else self.store.saved()

    def is_ahead(self, position: Position) -> bool:
        """Whether the newest checkpoint holds steps that the run has taken back by going here. If the process
        died now, that checkpoint would bring the steps back, without their measured values."""
        asked = self.keeps_epochs_in_files or self.autosave.on_pause
        return asked and self.store is not None and self.store.is_ahead(position)

    @property
    def lineage(self) -> Lineage:
        """The lineage of the present position."""
        return Lineage() if self.store is None else self.store.lineage

    @lineage.setter
    def lineage(self, lineage: Lineage) -> None:
        if self.store is not None:
            self.store.lineage = lineage

    @property
    def loaded(self) -> Lineage:
        """The lineage of the checkpoint that was loaded last."""
        return Lineage() if self.store is None else self.store.loaded

    def stands_at(self, position: Position) -> None:
        """The run went back, or was restored."""
        self.saved_epoch = position.epoch - 1
        if self.store is not None:
            self.store.moved(position)

    def _epoch_due(self, position: Position) -> bool:
        at_start = position.split == "train" and position.step == 0
        return self.checkpointer is not None and at_start and position.epoch - 1 > self.saved_epoch

    def _auto_due(self, position: Position) -> bool:
        return self._is_time(position) and self._new_to_store(position)

    def _is_time(self, position: Position) -> bool:
        steps, seconds = self.autosave.steps, self.autosave.seconds
        by_count = steps is not None and position.split == "train" and position.iteration % steps == 0
        return by_count or (seconds is not None and monotonic() - self._since >= seconds)

    def _new_to_store(self, position: Position) -> bool:
        if self.store is None or position.key == Position().key:
            return False
        return not self.store.is_kept(position)


def no_way(target: Position, reach: Position, saving: Saving) -> str:
    """Why a run cannot go back to a position, and what to do."""
    before = [info for info in saving.checkpoints() if info.key <= target.key]
    others = [info.label for info in before if info.exact and not info.damage]
    more = "more memory for keyframes (.keyframes(memory=...)) reaches further"
    if not saving.keeps_epochs_in_files:
        more += ", and .with_file_checkpointer() keeps every epoch's end"
    elif saving.store is not None and not saving.store.keeps_all:
        more += ", and .with_checkpointing_strategy(KeepAll()) deletes no checkpoint"
    if others:
        more += (
            f". Checkpoint {others[-1]} is of steps that were taken back, or no file says that this run "
            f"passed it; learner.restore({others[-1]!r}) goes there"
        )
    return (
        f"no keyframe and no checkpoint at or before {target} is on the way that this run came; the earliest "
        f"place to go back to is {reach}; {more}"
    )
