"""Checkpoints as files: from a captured state to the parts of a checkpoint, and back.

The model, the optimizer and the scheduler have a file each. Everything else that a step can change is in the
commit file. Measured values are not copied into checkpoints: the text logs hold them, and a restored state
reads them from there. Earlier passes are not copied either: `passes.jsonl`, in the checkpoint folder, has
each of them once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

from torch import nn

from ..artifacts.branches import branches_in
from ..artifacts.read_record import read_record
from ..artifacts.weights import Base, with_base
from ..checkpoint.folder import CheckpointFolder
from ..checkpoint.info import CheckpointInfo, Kind, label_of
from ..checkpoint.keeper import Keeper, Void
from ..checkpoint.strategy import KeepAll
from ..errors import CheckpointError, DamagedError, StateError, StoreError
from ..event import MetricInfo, Record, SplitRecord
from ..event.position import Position
from ..event.training_time import timed
from ..store.layout import SPLITS, RunLayout, sync_logs
from .checkpoint_passes import MOST, SavedPass, ToldPasses, Trunk, told_of
from .state import State, written

Key = tuple[int, int, int]
MOST_STRETCHES = 64
"""The number of stretches that a checkpoint lists. Earlier ones are forgotten, and with them their
checkpoints."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The stretches that led to a run's place, each with the place at which it began.

    >>> way = Lineage((("a", (1, 0, 0)), ("b", (3, 0, 2))))
    >>> way.holds("a", (3, 0, 2)), way.holds("a", (3, 0, 3)), way.holds("b", (9, 0, 0))
    (True, False, True)
    >>> [began for _, began in way.branched((2, 0, 0)).stretches]
    [(1, 0, 0), (2, 0, 0)]
    """

    stretches: tuple[tuple[str, Key], ...] = ()

    def branched(self, at: Key) -> Lineage:
        """This way up to a place, and a new stretch from there."""
        before = [stretch for stretch in self.stretches if stretch[1] <= at]
        return Lineage((*before[1 - MOST_STRETCHES :], (uuid4().hex[:16], at)))

    def holds(self, stretch: str, at: Key) -> bool:
        """Whether this way passed a place of a stretch."""
        names = [name for name, _ in self.stretches]
        if stretch not in names:
            return False
        after = names.index(stretch) + 1
        return after == len(names) or at <= self.stretches[after][1]

    def passes(self, info: CheckpointInfo) -> bool:
        """Whether this way passed a checkpoint, and training can go on from that checkpoint."""
        return info.exact and not info.damage and self.holds(info.stretch, info.key)

    @property
    def plain(self) -> list[Any]:
        """The form that a commit file stores."""
        return [[name, list(began)] for name, began in self.stretches]

    @staticmethod
    def of(commit: Mapping[str, Any]) -> Lineage:
        """What a commit file stores; empty if it is of an earlier version, or is not valid."""
        try:
            told = [(name, tuple(began)) for name, began in commit["lineage"]]
        except (KeyError, TypeError, ValueError):
            return Lineage()
        sound = all(type(name) is str and list(map(type, began)) == [int] * 3 for name, began in told)
        rising = all(one[1] <= other[1] for one, other in pairwise(told))
        return Lineage(tuple(told[-MOST_STRETCHES:])) if sound and rising else Lineage()


def place_of(info: CheckpointInfo) -> Position:
    """The position of a checkpoint."""
    if info.ends_epoch:
        return Position(info.epoch + 1, "train", 0, info.iteration)
    return Position(info.epoch, info.split, info.step, info.iteration)


MOST_STARTS = 16
"""Of the states behind changes by hand, the latest so many are kept."""
OWN_FILE = {"model": "model", "optim": "optimizer", "scheduler": "scheduler"}
"""The part of the state in each file; the other parts are in the commit file."""

About = Callable[[Sequence[SplitRecord]], Mapping[str, Any]]
"""What a commit file says about its run, in addition to the state. Step times are given for these passes
only."""


class FileCheckpointer:
    """Keeps states in the run's `checkpoint` folder; a background thread writes them."""

    def __init__(
        self,
        directory: Path,
        keeper: Keeper,
        about: About,
        clock: Callable[[Sequence[SplitRecord]], Sequence[Any]],
        metrics: tuple[MetricInfo, ...],
        known: Callable[[], Record],
        base: Base | None = None,
        model: nn.Module | None = None,
        recipe: Callable[[], str] = str,
    ) -> None:
        self.base = base
        """What checkpoints leave out, if the user has named where that comes from."""
        self.model = model
        """Where a checkpoint that leaves something out finds it."""
        self.recipe = recipe
        """Gives what made the run, as JSON; called by the writer thread."""
        self.recipe_found: str | None = None
        """The recipe in the checkpoint that was loaded last."""
        self.layout = RunLayout(directory)
        self.keeper = keeper
        self.about = about
        self.clock = clock
        """Gives the times of the steps of passes, as plain JSON values."""
        self.metrics = metrics
        self.known = known
        """What the learner has measured so far."""
        self.run_id = uuid4().hex
        """Stays the same in every run that goes on from a checkpoint of this run."""
        self.logged: Record = ()
        """What the logs in the directory held, if `load` had to read them."""
        self.lineage = Lineage().branched(Position().key)
        """The way that led to the run's current place."""
        self.loaded = Lineage()
        """The way that led to the checkpoint that was loaded last."""
        self.left = Lineage()
        """The way of the line that the logs in the directory tell of, when that checkpoint was loaded."""
        self.start = CheckpointFolder(self.layout.start, keeper.folder.recorder)
        """Holds the state that the run began with, and those after changes that the record cannot repeat."""
        self._count = 0
        self.keeps_start = True
        """Whether that state is still to be kept: no longer in a run that goes on."""
        self._stands_at: tuple[int, int, int] | None = None
        self._last: tuple[int, int, int] | None = None
        """The position of the last state handed to the keeper."""
        self._trunk = Trunk()
        """The passes on the way to the last state that was saved or loaded."""
        self._records: dict[str, tuple[Trunk, int, Record]] = {}
        """What had been measured at each checkpoint of this process: a number of passes of a trunk, and the
        open pass. Going back cuts the logs; then the values of a checkpoint that lies ahead are only here."""
        self._stood_by = False
        """Whether another process went on with the run: then only the logs have what it measured."""

    def stand_by(self) -> None:
        """Another process saves checkpoints now, and deletes old ones."""
        self._stood_by = True
        self._stands_at = self._last = None
        self._trunk, self._records = Trunk(), {}

    def forget(self) -> None:
        """The user looked at the run that was found, but does not go on with it: this run is another one."""
        self.run_id, self.logged = uuid4().hex, ()
        self.lineage = Lineage().branched(Position().key)
        self.keeps_start = True
        self._stands_at = None
        self._trunk, self._records = Trunk(), {}
        self.keeper.forget()

    # Save --------------------------------------------------------------------------------------------

    def save(self, epoch: int, state: State, /) -> None:
        """Keep the state at the end of an epoch."""
        self.keep(state, "epoch")

    def keep(self, state: State, kind: Kind) -> str:
        """Hand a state to the background writer, and return the label that it will have."""
        at = state.position
        label = label_of(at.epoch, at.split, at.step)
        parts = {file: state.parts[part] for file, part in OWN_FILE.items()}
        trunk = self._trunk = self._trunk.grown(state.record)
        ended = len(trunk.ended)
        about: dict[str, Any] = {**_place(state, label), "kind": kind, "run_id": self.run_id}
        about["lineage"] = self.lineage.plain
        if ended - trunk.told > MOST:
            trunk.tell(self.clock(trunk.ended[trunk.told :]))
        told = trunk.told
        about |= self.about(state.record[told:])
        about |= {"metrics": trunk.finals[-1] if ended else {}, "passes": told_of(state.record[told:])}
        about["parts"] = _written(state)

        def before() -> None:
            if not state.ready():
                raise Void
            if self.base is not None and "base" not in parts["model"]:  # a write may be tried again
                parts["model"] = self.base.left_out(parts["model"])
            first = trunk.ended[trunk.synced].epoch if trunk.synced < ended else at.epoch
            sync_logs(self.layout, min(first, at.epoch), at.epoch)
            trunk.synced = max(trunk.synced, ended)
            line = trunk.written(self.folder, told)
            about["earlier"] = None if line is None else line.to_json()
            about["recipe"] = self.recipe()

        self.keeper.save(label, parts, about, before)
        self._stands_at = self._last = at.key
        kept = {info.label for info in self.keeper.known}
        self._records = {other: of for other, of in self._records.items() if other in kept}
        self._records[label] = (trunk, ended, state.record[ended:])
        return label

    def keep_start(self, state: State) -> None:
        """Hand the state that the run begins with, or one behind a change by hand, to the writer."""
        self.keeps_start = False
        at = state.position
        label = label_of(at.epoch, at.split, at.step)
        parts = {file: state.parts[part] for file, part in OWN_FILE.items()}
        about: dict[str, Any] = {**_place(state, label), "kind": "manual", "run_id": self.run_id}
        about |= {"lineage": self.lineage.plain, "sequence": self._count, **self.about(state.record)}
        self._count += 1
        about |= {"metrics": {}, "passes": told_of(state.record), "parts": _written(state)}

        def write() -> None:
            self.keeper.ask()
            if not state.ready():
                self.keeper.note(_NO_START)
                return
            if self.base is not None and "base" not in parts["model"]:
                parts["model"] = self.base.left_out(parts["model"])
            try:
                self.start.commit(label, parts, {**about, "earlier": None, "recipe": self.recipe()})
                for info in self.start.list()[1:-MOST_STARTS]:
                    self.start.delete(info)
            except (CheckpointError, OSError) as error:  # the next checkpoint has the same trouble
                self.keeper.note(f"{error}. In a new process the way back ends at the first checkpoint")

        self.keeper.background.submit(f"start {label}", write)

    def check(self) -> None:
        """At a boundary: write again what an earlier error kept back, or raise the error."""
        self.keeper.ask()
        self.keeper.check()

    def ask(self) -> None:
        """Raise if the run's directory is not the one that was opened."""
        self.keeper.ask()

    def wait(self) -> None:
        """Wait until all checkpoints are on the disk; raise if one cannot be written."""
        self.keeper.wait()

    def close(self) -> None:
        """Wait until everything is on the disk."""
        self.keeper.close()

    def is_kept(self, position: Position) -> bool:
        """Whether the last state that was kept is the one at this position."""
        return self._stands_at == position.key

    def is_ahead(self, position: Position) -> bool:
        """Whether the newest checkpoint holds steps that come after this position."""
        if self._last is not None:  # it may not be on the disk yet
            return self._last > position.key
        newest = self.keeper.newest
        return newest is not None and newest.key > position.key

    def moved(self, position: Position) -> None:
        """Training goes on from another place."""
        self._trunk.synced_before(position.epoch)
        if self._stands_at != position.key:
            self._stands_at = None

    # Load --------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[CheckpointInfo]:
        """Return all checkpoints, complete or damaged, after the writer has finished."""
        self.keeper.background.wait()
        return list(self.folder.list())

    def kept(self) -> Sequence[CheckpointInfo]:
        """Return what this process has saved or found, and not deleted since."""
        return self.keeper.known

    def starts(self) -> Sequence[CheckpointInfo]:
        """Return these states, as checkpoints outside of the others."""
        self.keeper.background.wait()
        return [info for info in self.start.list() if info.run == self.run_id]

    def load_start(self, info: CheckpointInfo) -> State:
        """Return one of them."""
        return self._load(info, self.start)

    def saved(self) -> tuple[list[CheckpointInfo], str | None]:
        """Return what is on the disk right now, and the label of the best. This does not wait for a write
        that is under way."""
        known = list(self.folder.list())
        best = self.folder.best(known, self.keeper.best)
        return known, None if best is None else best.label

    def load(self, which: int | str, /) -> State:
        """Return a state from its files, after a check of every byte. If the latest checkpoint is damaged,
        the one before it is loaded, and a line says so."""
        self.keeper.background.wait()
        self.keeper.open()
        if which != "latest":
            return self._load(self.folder.find(which, self.keeper.best))
        known = self.folder.list()
        if all(info.damage for info in known):
            self.folder.find("latest")  # raises, and says what is wrong with each
        for info in reversed(known):
            try:
                return self._load(info, among=known)
            except DamagedError as damage:
                self.keeper.tell(f"{damage}; the checkpoint before it is taken")
        raise StateError(
            f"no checkpoint in {self.folder.path} is whole; `notebook-learner verify` tells more"
        )

    @property
    def keeps_all(self) -> bool:
        """Whether no checkpoint is ever deleted."""
        return isinstance(self.keeper.strategy, KeepAll) and not self.keeper.strategy.strategies

    @property
    def folder(self) -> CheckpointFolder:
        """The folder of the files."""
        return self.keeper.folder

    def _load(
        self,
        info: CheckpointInfo,
        folder: CheckpointFolder | None = None,
        among: Sequence[CheckpointInfo] | None = None,
    ) -> State:
        folder = folder or self.folder
        if info.damage:
            raise DamagedError(info.damage)
        if not info.exact:
            raise StateError(_not_exact(info, self.layout.directory))
        commit = folder.read(info, "state")
        try:
            parts = {**_OF_EARLIER_VERSIONS, **commit["parts"]}
            position = Position(*(commit["position"][key] for key in _POSITION))
            told = ToldPasses(commit, folder)
            if position.split not in ("train", "valid"):
                raise ValueError("no split")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(
                f"the commit file of checkpoint {info.label} is incomplete: {error!r}"
            ) from None
        for file, part in OWN_FILE.items():
            parts[part] = folder.read(info, file)
        if self.model is not None:
            parts["model"] = with_base(parts["model"], info.label, self.model)
        known = self._record(info.label) or (() if self._stood_by else self.known())
        metrics = (*_measured(parts, told.passes), *self.metrics)
        self.logged = () if known else timed(self._logs(metrics), told.clock.seconds)
        self.run_id, self.loaded = commit["run_id"], Lineage.of(commit)
        self.left = self.loaded if known else self._newest_way(info, among) or self.loaded
        self.recipe_found = commit.get("recipe")
        self.keeps_start = False
        self._stands_at = position.key
        others = None if known else self._left_lines(info, metrics)
        record = told.record(known or self.logged, others)
        if told.lost and others is not None:
            self.keeper.tell(
                f"the logs lack the values of {told.lost} steps before checkpoint {info.label}; they show as "
                "nan, and nothing else is missing"
            )
        self._trunk = told.trunk(record, self.logged or self._trunk.ended[: self._trunk.synced])
        return State(position, parts, record)

    def _record(self, label: str) -> Record:
        """What had been measured at a checkpoint of this process; empty for another process's checkpoint."""
        if label not in self._records:
            return ()
        trunk, ended, open_one = self._records[label]
        return (*trunk.ended[:ended], *open_one)

    def _newest_way(self, loaded: CheckpointInfo, among: Sequence[CheckpointInfo] | None) -> Lineage | None:
        """The way that led to the newest checkpoint; None if that is the loaded one, or cannot be read. It is
        the way of the logs, too: going back behind the newest checkpoint keeps a state at once."""
        known = self.folder.list() if among is None else among
        whole = [info for info in known if info.exact and not info.damage]
        with suppress(DamagedError, OSError):
            if whole and whole[-1] != loaded:
                return Lineage.of(self.folder.read(whole[-1], "state"))
        return None

    def _left_lines(self, info: CheckpointInfo, metrics: Sequence[MetricInfo]) -> list[Record] | None:
        """The records of the lines that the run has left, if a checkpoint may lie on one of them."""
        if self.left.passes(info):
            return None
        return [branch.record for branch in branches_in(self.layout.directory, metrics, self.logged)]

    def _logs(self, metrics: Sequence[MetricInfo]) -> Record:
        """What the directory's logs hold; they are about to be cut to it. `metrics` has those of the
        checkpoint, too, which this run may not have."""
        try:
            return read_record(self.layout.directory, metrics, strict=True)
        except OSError as error:
            raise StoreError(
                f"the logs in {self.layout.directory} cannot be read ({error.strerror or error}), and going "
                "on would cut them; nothing was changed. Remove the cause and try again"
            ) from error


def _measured(parts: Mapping[str, Any], passes: Iterable[SavedPass]) -> Iterator[MetricInfo]:
    """The metrics of a checkpoint: a log's name has `_` for a space, so the logs do not tell their names."""
    for each in passes:
        yield from (MetricInfo(name, each.split) for name in each.finals or ())
    for split in SPLITS:
        state = parts.get(f"metrics {split}")
        sums = state.get("sums") if isinstance(state, dict) else None  # it is not checked yet
        yield from (MetricInfo(str(name), split) for name in (sums if isinstance(sums, dict) else ()))


def _not_exact(info: CheckpointInfo, directory: Path) -> str:
    return (
        f"checkpoint {info.label} was saved in half precision, so training cannot go on from it exactly; "
        f"take its weights with Artifacts({str(directory)!r}).load_model(model, {info.label!r}) and train "
        "anew"
    )


_OF_EARLIER_VERSIONS: Mapping[str, Any] = {"carried": {"objects": []}}
"""The parts that their commit files lack."""
_POSITION = ("epoch", "split", "step", "iteration", "total")


_NO_START = (
    "the state that the run began with was not kept, as the first step wrote to it while it was copied; in a "
    "new process the way back ends at the first checkpoint"
)


def _written(state: State) -> dict[str, Any]:
    """The parts that have no file of their own."""
    return {name: written(part) for name, part in state.parts.items() if name not in OWN_FILE.values()}


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


Which = int | str
"""An epoch, "latest", "best", or the label of a place inside an epoch, such as "3-117"."""


@runtime_checkable
class Checkpointer(Protocol):
    """Keeps states for later. Given to `LearnerBuilder.with_checkpointer`."""

    def save(self, epoch: int, state: State, /) -> None:
        """Keep the state at the end of epoch `epoch`."""

    def load(self, which: Which, /) -> State:
        """Return a kept state; an error lists the ones there are."""


class MemoryCheckpointer:
    """Keeps every epoch's state in memory, without a file: for a session or a test.

    >>> MemoryCheckpointer().load(3)
    Traceback (most recent call last):
        ...
    notebook_learner.errors.StateError: there is no checkpoint 3; kept are: none
    """

    def __init__(self) -> None:
        self.states: dict[int, State] = {}

    def save(self, epoch: int, state: State, /) -> None:
        self.states[epoch] = state

    def load(self, which: Which, /) -> State:
        if which == "latest" and self.states:
            return self.states[max(self.states)]
        if isinstance(which, int) and which in self.states:
            return self.states[which]
        raise StateError(
            f"there is no checkpoint {which}; kept are: {', '.join(map(str, sorted(self.states))) or 'none'}"
        )
