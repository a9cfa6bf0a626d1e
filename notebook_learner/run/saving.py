"""When the state is kept beyond the moment: at the end of an epoch, now and then, and at a pause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from ..checkpoint.info import CheckpointInfo, Kind
from ..errors import LoggerError, MovedError, StateError
from ..event import Record
from ..event.position import Position
from ..state.checkpointer import Checkpointer
from ..state.lineage import Lineage
from ..state.state import State
from .bounds import FAR


class Store(Protocol):
    """A checkpointer that takes states at any step, and writes them while training goes on."""

    def keep(self, state: State, kind: Kind) -> str:
        """Take a state to be written; the label it can be asked for by."""

    logged: Record
    """What the logs in its directory held, where `load` had to read them."""

    lineage: Lineage
    """Which way led to where the run stands."""

    loaded: Lineage
    """Which one led to the checkpoint that was loaded last."""

    @property
    def keeps_all(self) -> bool:
        """Whether no checkpoint is ever deleted."""

    def load(self, which: int | str, /) -> State:
        """A state from its files."""

    def checkpoints(self) -> list[CheckpointInfo]:
        """What there is, complete or damaged."""

    def kept(self) -> Sequence[CheckpointInfo]:
        """What there is as far as this process knows; nothing is waited for, the disk neither."""

    def saved(self) -> tuple[list[CheckpointInfo], str | None]:
        """What is on the disk right now, without waiting for the writer, and the label of the best."""

    def check(self) -> None:
        """At a boundary: raise what could not be written, or that the directory is another one."""

    def ask(self) -> None:
        """Raise where the directory is not the one that was opened."""

    def wait(self) -> None:
        """Until all checkpoints are written; raises what could not be."""

    def close(self) -> None:
        """Until all is written, what is derived from it included."""

    def is_kept(self, position: Position) -> bool:
        """Whether the last state taken is the one at this position."""

    def is_ahead(self, position: Position) -> bool:
        """Whether the newest checkpoint holds steps that come after this position."""

    def moved(self, position: Position) -> None:
        """The run stands elsewhere."""


@dataclass(frozen=True, slots=True)
class Autosave:
    """What `.autosave` was told."""

    steps: int | None = None
    seconds: float | None = None
    on_pause: bool = True


class Saving:
    """Decides at every boundary whether the state is to be kept, and by whom.

    The checkpointer takes the end of every epoch, where there is one. The store takes states at any step:
    what `learner.save()` gives it and, where it is the checkpointer too, what autosave finds due.
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
        """Compared with the store by identity, of another type as it may be."""
        self.autosave = autosave or Autosave(on_pause=self.keeps_epochs_in_files)
        self.saved_epoch = 0
        """Epochs up to this one need no saving any more."""
        self._since = monotonic()

    # At a boundary -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise what could not be written."""
        if self.store is not None:
            self.store.check()

    def cause_of(self, failure: LoggerError) -> LoggerError | MovedError:
        """A log could not be written: that, or where the directory was moved, the reason. One that is gone
        for good is made anew."""
        try:
            if self.store is not None:
                self.store.ask()
        except MovedError as moved:
            return moved
        return failure

    @property
    def keeps_epochs_in_files(self) -> bool:
        """Whether the store is asked for every epoch, too."""
        return self.asked is not None and self.asked is self.store

    @property
    def hurried(self) -> bool:
        """Whether somebody reads a state as soon as it is given one: a checkpointer of the user's own."""
        return self.checkpointer is not None and not self.keeps_epochs_in_files

    def due(self, position: Position) -> bool:
        """Whether the state at this boundary is to be kept."""
        return self._epoch_due(position) or self._auto_due(position)

    def take(self, state: State) -> Kind:
        """Keep a state that was due; as what."""
        position = state.position
        if self.checkpointer is not None and self._epoch_due(position):
            self.checkpointer.save(position.epoch - 1, state)
            self.saved_epoch = position.epoch - 1
            self._since = monotonic()
            return "epoch"
        self.take_auto(state)
        return "auto"

    def take_auto(self, state: State) -> None:
        """Keep a state for as long as it is the newest."""
        if self.store is not None:
            self.store.keep(state, "auto")
        self._since = monotonic()

    def allowance(self, position: Position) -> int:
        """How many steps until a state is due by count."""
        every = self.autosave.steps
        if every is None or position.split != "train":
            return FAR
        return every - position.iteration % every

    # At a stop ---------------------------------------------------------------------------------------

    def due_at_pause(self, position: Position) -> bool:
        """Whether a pause here is to be kept: not where nothing has happened, or it is kept already."""
        return self.autosave.on_pause and self._new_to_store(position)

    def wait(self) -> None:
        """Until all checkpoints are written; raises what could not be."""
        if self.store is not None:
            self.store.wait()

    def close(self) -> None:
        """Until all is written, what is derived from it included."""
        if self.store is not None:
            self.store.close()

    def load(self, which: int | str) -> tuple[State, Record]:
        """A checkpoint's state, and what the run's logs hold where that was read for it. A checkpointer
        of the user's own is asked first, but for places inside an epoch, which only the store knows."""
        of_an_epoch = isinstance(which, int) or which in ("latest", "best")
        if of_an_epoch and self.checkpointer is not None and self.hurried:
            if self.store is not None:
                self.store.loaded = Lineage()
            return self.checkpointer.load(which), ()
        if self.store is None:
            raise StateError("this learner keeps no checkpoints")
        return self.store.load(which), self.store.logged

    def checkpoints(self) -> list[CheckpointInfo]:
        """What the store holds."""
        return [] if self.store is None else self.store.checkpoints()

    def kept(self) -> Sequence[CheckpointInfo]:
        """What the store holds, as far as is known without asking the disk."""
        return () if self.store is None else self.store.kept()

    def saved(self) -> tuple[list[CheckpointInfo], str | None]:
        """What is on the disk right now, and the label of the best."""
        return ([], None) if self.store is None else self.store.saved()

    def is_ahead(self, position: Position) -> bool:
        """Whether the newest checkpoint holds steps that are taken back by standing here: should the
        process die, it would bring them back, without what was measured."""
        asked = self.keeps_epochs_in_files or self.autosave.on_pause
        return asked and self.store is not None and self.store.is_ahead(position)

    @property
    def lineage(self) -> Lineage:
        """Which way led to where the run stands."""
        return Lineage() if self.store is None else self.store.lineage

    @lineage.setter
    def lineage(self, lineage: Lineage) -> None:
        if self.store is not None:
            self.store.lineage = lineage

    @property
    def loaded(self) -> Lineage:
        """Which one led to the checkpoint that was loaded last."""
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
    """Why a run cannot go back to a place, and what to do."""
    before = [info for info in saving.checkpoints() if info.key <= target.key]
    others = [info.label for info in before if info.exact and not info.damage]
    more = "more memory for keyframes (.keyframes(memory=...)) reaches further"
    if not saving.keeps_epochs_in_files:
        more += ", and .with_file_checkpointer() keeps every epoch's end"
    elif saving.store is not None and not saving.store.keeps_all:
        more += ", and .with_checkpointing_strategy(KeepAll()) deletes no checkpoint"
    if others:
        more += (
            f". Checkpoint {others[-1]} is of steps that were taken back, or nothing says that the run came "
            f"by it; learner.restore({others[-1]!r}) goes there"
        )
    return (
        f"no keyframe and no checkpoint at or before {target} is on the way that this run came; the earliest "
        f"place to go back to is {reach}; {more}"
    )
