"""The lines that a run has left: what was measured beyond a place to which it went back, in Burn's layout.

    branches/1/branch.json            where it began and ended, from which line it left, when and why
    branches/1/train/epoch-7/...      its passes; the first one is whole, from its own step 1 on

The logs of the line that the run is on stay where Burn has them. A branch that the run then takes again, to
the same values, is none: it goes as soon as the last of its steps was measured again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import DamagedError
from ..event.position import Position
from ..event.record import drift, rows
from ..event.training_time import Knots, TrainingTime, between
from ..event.values import (
    Event,
    Marked,
    MetricBlock,
    Record,
    Rewound,
    Split,
    SplitEnded,
    SplitRecord,
    SplitStarted,
)
from ..store import durable, files
from ..store.json_text import parse, to_text
from ..store.layout import SPLITS, RunLayout, names_if_folder
from ..store.run_folder import RunPath
from .file import FileMetricLogger

ABOUT = "branch.json"
NAME = re.compile(r"[1-9][0-9]{0,8}")
_LARGEST = 1 << 22
_FAR = 1 << 62
MOST_TIMES = 32
Place = tuple[int, Split, int, int]
"""Epoch, split, step, and the number of training steps before it."""
_Way = tuple[files.Folder, files.Folder]
"""From where passes are moved, and to where."""


@dataclass(frozen=True)
class Branch:
    """A line that the run has left.

    >>> branch = Branch("1", "", (3, "train", 5, 25), (4, "train", 8, 38), 1795241581.0, "rewound")
    >>> import json
    >>> print(Branch.from_json("1", json.loads(branch.to_json())).end)
    epoch 4, train, step 8
    """

    name: str
    parent: str
    """The branch from which it leaves; empty if that is the line that the run is on."""
    begins: Place
    ends: Place
    when: float
    why: str = ""
    lineage: Sequence[Any] = ()
    """The stretches of its way, as checkpoints name them."""
    changes: Sequence[str] = field(default=())
    """What was changed by hand on it."""
    shared: Sequence[str] = field(default=())
    """The changes by hand at the very place where it begins that are on its way."""
    seconds: Knots | None = None
    """The run's training time at some of its training steps; None if that is not known."""

    def to_json(self) -> str:
        """The text of its `branch.json`."""
        return to_text({name: value for name, value in asdict(self).items() if name != "name"})

    @staticmethod
    def from_json(name: str, told: Any) -> Branch:
        """Read what `to_json` wrote.

        Raises:
            DamagedError: it cannot have written this.
        """
        try:
            begins, ends = _place(told["begins"]), _place(told["ends"])
            parent, when, why = told["parent"], float(told["when"]), str(told["why"])
            if parent and not NAME.fullmatch(parent):
                raise ValueError("a parent without a number")
            changes, shared = (tuple(str(each) for each in told[name]) for name in ("changes", "shared"))
            lineage = told["lineage"] if isinstance(told["lineage"], list) else []
            seconds = None if told.get("seconds") is None else _knots(told["seconds"])
        except (KeyError, TypeError, ValueError) as wrong:
            raise DamagedError(f"branch {name} of the run is damaged: {wrong!r:.100}") from wrong
        return Branch(name, parent, begins, ends, when, why, lineage, changes, shared, seconds)

    @property
    def begin(self) -> Position:
        """Where it leaves its parent."""
        return _position(self.begins)

    @property
    def end(self) -> Position:
        """Where it was left."""
        return _position(self.ends)


def _place(told: Any) -> Place:
    epoch, split, step, iteration = told
    whole = (epoch, step, iteration)
    if not all(type(each) is int and 0 <= each < _FAR for each in whole) or split not in SPLITS:
        raise ValueError("not a place")
    return epoch, split, step, iteration


def _knots(told: Any) -> Knots:
    steps, times = ([float(each) for each in column] for column in told)
    ascending = all(a < b for a, b in pairwise(steps))
    if (
        not 0 < len(steps) == len(times) <= MOST_TIMES
        or not ascending
        or not np.isfinite([*steps, *times]).all()
    ):
        raise ValueError("no times of steps")
    return steps, times


def _position(place: Place) -> Position:
    return Position(*place)


def _place_of(position: Position) -> Place:
    return position.epoch, position.split, position.step, position.iteration


@dataclass(frozen=True, slots=True)
class _Retaken:
    """A branch whose steps the run may be taking again, with what was measured on it."""

    branch: Branch
    passes: dict[tuple[int, Split], SplitRecord]


def chain_to(name: str, known: Mapping[str, Branch]) -> list[Branch]:
    """The branches on the way from the run's line to this one, the first one first.

    Raises:
        DamagedError: one of them is not there, or they go in a circle.
    """
    chain: list[Branch] = []
    while name:
        if name not in known or any(each.name == name for each in chain):
            raise DamagedError(f"branch {name} of the run is not there, or hangs on itself")
        chain.insert(0, known[name])
        name = chain[0].parent
    return chain


def read_branches(directory: str | os.PathLike[str], problems: list[str] | None = None) -> list[Branch]:
    """All branches of a run, in the order in which they were left. A damaged one is reported and left out."""
    folder = RunLayout(directory).branches
    found = []
    for name in sorted(filter(NAME.fullmatch, names_if_folder(folder)), key=int):
        try:
            with durable.opened(folder / name / ABOUT) as file:
                text = file.read(0, min(file.size, _LARGEST))
            found.append(Branch.from_json(name, parse(text, len(text))))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, DamagedError) as error:
            if problems is not None:
                problems.append(f"{folder / name / ABOUT}: {error}")
    return found


class BranchLogger:
    """Keeps what the run leaves behind when it goes back. It comes before the logger that cuts the logs.

    Args:
        directory: the run's.
        way: returns the stretches that led to the run's present place; with True, those of the line that an
            earlier process had measured.
        changes: takes a place, the name of a branch, and the changes by hand at that very place that stay on
            the run's line (None: those in force); returns the others from there on, and notes that they are
            on that branch now.
        shared: takes a place; returns the changes by hand at that place that are on the run's line, and with
            True those behind it, too. With the name of a branch, those on that branch.
        read: takes the folder of a branch, and returns its passes.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        way: Callable[[bool], Sequence[Any]] = lambda resumes: (),
        changes: Callable[[Position, str, Any], Sequence[str]] = lambda position, name, shared: (),
        shared: Callable[..., Sequence[str]] = lambda position, later, name="": (),
        read: Callable[[RunPath], Record] = lambda folder: (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self.layout = RunLayout(directory)
        self._way, self._changes, self._shared = way, changes, shared
        self._read, self._now = read, now
        self._lineage: Sequence[Any] | None = None
        self._fresh = True
        self._resumes = False
        """Whether the way back is to where an earlier process stood, before any step of this one."""
        self._retaken: dict[str, _Retaken] = {}
        """The branches whose steps the run may be taking again: it has come to no other value so far."""
        self._last = 0
        """The last number that was given: one that is free again would stand for two branches."""
        self._going: Branch | None = None
        """The branch through which the run goes to another line, while it does."""
        self._waiting: list[Callable[[], None]] = []
        self.changes = 0
        """Grows after each change of the branches; who shows them looks at it, and reads no file in vain."""

    def handle(self, event: Event, /) -> None:
        """Take one event. What a full disk refuses is tried again with the next one."""
        while self._waiting:
            self._waiting[0]()
            self._waiting.pop(0)
        if isinstance(event, Rewound):
            self._resumes, self._fresh = self._fresh, False
            if self._resumes:
                self._clear_away()
            beyond = _beyond(event) if self._going is None else _behind(event.former, self._going.begin)
            if sum(part.steps for _, part in beyond):
                self._waiting.append(partial(self._leave, event, beyond, self._going))
                self._waiting[0]()
                self._waiting.pop(0)
            elif not self._retaken and self._going is None:
                self._look_for_retaken(Position(event.epoch, event.split, event.step), event.record)
            self._lineage = self._way(False)  # the run is on its way by now
        elif isinstance(event, MetricBlock):
            self._fresh = False
            self._lineage = self._way(False)
            if self._retaken:
                self._compare(event)
        elif isinstance(event, Marked) and event.kind == "edited":
            self._retaken = {}  # the run goes on in another way, even if the next values are the same
        elif isinstance(event, SplitStarted) and self._fresh:
            self._fresh = False
            if (event.epoch, event.split) == (1, "train"):
                self._delete_all()  # of an earlier run in this directory

    # Leaving -----------------------------------------------------------------------------------------

    def _leave(self, event: Rewound, beyond: Sequence[tuple[int, SplitRecord]], going: Branch | None) -> None:
        former, (kept, first) = event.former, beyond[0]
        before = _trained([part for part in former if _key(part) < _key(first)])
        here = (first.epoch, first.split, kept, before + (kept if first.split == "train" else 0))
        last = former[-1]
        ends = (last.epoch, last.split, last.steps, _trained(former))
        if self._resumes and going is None:
            self._look_for_retaken(_position(here), former)
        known = self._retaken_from(here, ends) if going is None else None
        if known is None:
            way = self._lineage or self._way(self._resumes)
            branch = Branch(self._free_name(), "", here, ends, self._now(), event.reason, way)
            branch = self._with_changes(branch, None if going is None else going.shared)
        else:
            branch = known.branch
            if _position(here) < branch.begin:
                branch = self._with_changes(replace(branch, begins=here), None)
            if _position(ends) > branch.end:
                branch = replace(branch, ends=ends)
        if known is None or branch != known.branch:
            branch = replace(branch, seconds=_seconds_of(former, branch))
            files.make_directory(self.layout.branches / branch.name)
            self._write(branch)
        passes = {} if known is None else known.passes
        stays = {_key(part) for part in former[: event.kept_splits + (event.kept_steps > 0)]}
        with ExitStack() as opened:
            ways: dict[Split, _Way] = {}
            for _, part in beyond:
                key = _key(part)
                # A power cut may have taken from the branch's logs what the run's own logs still have.
                if key in passes and passes[key].steps >= part.steps:
                    continue
                if part.split not in ways:
                    ways[part.split] = self._opened_way(opened, branch.name, part.split)
                self._take(ways[part.split], part, whole=key not in stays)
                passes[key] = part
        self._hang_on(branch, _position(here))
        if self._is_as_it_came(branch):
            self._retaken[branch.name] = _Retaken(branch, passes)
        else:
            self._retaken.pop(branch.name, None)
        self.changes += 1

    def _with_changes(self, branch: Branch, stay: Sequence[str] | None) -> Branch:
        """The branch with what was changed by hand behind its beginning, which is on it now."""
        changes = tuple(self._changes(branch.begin, branch.name, stay))
        return replace(branch, changes=changes, shared=tuple(self._shared(branch.begin, False)))

    def _retaken_from(self, here: Place, ends: Place) -> _Retaken | None:
        """The branch of which the steps from here to there are a part, or which they lead to or go on."""
        found = None
        for each in self._retaken.values():
            begin, end = each.branch.begin, each.branch.end
            if begin <= _position(here) and _position(ends) <= end:
                return each
            leads_to = begin <= _position(ends) or (begin.step, begin.iteration) == (0, ends[3])
            if _position(here) <= end and leads_to:
                found = found or each
        return found

    def _look_for_retaken(
        self, here: Position, line: Iterable[SplitRecord], among: Collection[str] | None = None
    ) -> None:
        """Find the branches whose steps the run takes again, or will when it comes there: an earlier process
        that did so was killed, or they hung on a branch that has gone.

        Args:
            here: where the run stands.
            line: what was measured on its line, as far as it is known.
            among: the names of the branches that may be meant; by default all.
        """
        at_hand = {_key(part): part for part in line}
        for branch in read_branches(self.layout.directory):
            is_meant = not branch.parent and branch.name not in self._retaken
            is_meant = is_meant and (among is None or branch.name in among)
            if not is_meant or not self._is_as_it_came(branch):
                continue
            passes = {_key(part): part for part in self._read(self.layout.branches / branch.name)}
            both = passes.keys() & at_hand.keys()
            if not all(_all_agree(passes[k], at_hand[k]) for k in both):
                continue
            if here < branch.end:
                self._retaken[branch.name] = _Retaken(branch, passes)
            elif passes and all(k in both and at_hand[k].steps >= passes[k].steps for k in passes):
                self._look_for_retaken(here, at_hand.values(), self._drop(branch))  # it is on the line

    def _is_as_it_came(self, branch: Branch) -> bool:
        """Whether nothing was changed by hand on the branch, nor on the run's line since the branch began. A
        changed rate shows in the weights a step before it shows in a loss: values alone do not tell."""
        line = self._shared(branch.begin, True, "")
        own = self._shared(branch.begin, True, branch.name)
        # The recipe of an older checkpoint does not know of changes that were made after it.
        return {*line} <= {*branch.shared} and not own and len(branch.changes) <= len(branch.shared)

    def _opened_way(self, opened: ExitStack, name: str, split: Split) -> _Way:
        """The folder of a split on the run's line, and on a branch."""
        here, there = self.layout.directory / split, self.layout.branches / name / split
        files.make_directory(there)
        source, target = (opened.enter_context(files.opened_folder(each)) for each in (here, there))
        return source, target

    def _take(self, way: _Way, part: SplitRecord, whole: bool) -> None:
        """Move a pass to the branch, or write it there if the run's line keeps a part of it."""
        here, there = way
        name = self.layout.split_dir(part.split, part.epoch).name
        if whole and files.move_folder(name, here, there):
            return
        copy = FileMetricLogger(there.path.parent)
        for block in part.blocks:
            copy.handle(block)
        if part.finals is not None:
            copy.handle(SplitEnded(part.epoch, part.split, part.steps, part.finals))
        copy.close()

    def _hang_on(self, branch: Branch, here: Position) -> None:
        """Branches that left the line behind the place where this one left it hang on this one now; at that
        very place those whose way has a change by hand that is on this one now."""
        for other in read_branches(self.layout.directory):
            beside = other.begin.key == here.key and {*other.shared} - {*branch.shared}
            if other.name != branch.name and not other.parent and (other.begin > here or beside):
                self._write(replace(other, parent=branch.name))
                self._retaken.pop(other.name, None)

    def _write(self, branch: Branch) -> None:
        data = branch.to_json().encode()
        durable.replace(self.layout.branches / branch.name / ABOUT, [data], len(data))

    def _free_name(self) -> str:
        names = filter(NAME.fullmatch, names_if_folder(self.layout.branches))
        self._last = 1 + max([self._last, *map(int, names)])
        return str(self._last)

    # Going on ----------------------------------------------------------------------------------------

    def _compare(self, block: MetricBlock) -> None:
        """A branch whose steps all come out the same again is no branch. What a power cut has lost of its
        logs is no difference."""
        here = Position(block.epoch, block.split, block.last)
        waiting = [*self._retaken]
        while waiting:
            each = self._retaken[waiting.pop(0)]
            known = each.passes.get((block.epoch, block.split))
            if known is not None and not _agree(known.blocks, block):
                del self._retaken[each.branch.name]
            elif here >= each.branch.end:
                del self._retaken[each.branch.name]
                had = {*self._retaken}
                self._look_for_retaken(here, each.passes.values(), self._drop(each.branch))
                waiting += [name for name in self._retaken if name not in had]

    @contextmanager
    def going_through(self, branch: Branch) -> Iterator[None]:
        """Inside, the run goes to another line, which left this one with a branch."""
        self._going = branch
        try:
            yield
        finally:
            self._going = None

    def adopt(self, chain: Sequence[str], reached: Position, record: Record) -> None:
        """The run has gone on to a place of a branch: what comes behind it stays a branch.

        Args:
            chain: the names of the branches that led there, the last one being that branch.
            reached: the place.
            record: what was measured on the whole way to the branch's end.
        """
        known = {each.name: each for each in read_branches(self.layout.directory)}
        ways = [known[name] for name in chain]
        ends = [*((each.begins, each.shared) for each in ways[1:]), (_place_of(reached), None)]
        self._retaken = {}
        for branch, (end, shared) in zip(ways, ends, strict=True):
            there = self._shared(reached, False) if shared is None else shared
            for other in known.values():
                before = other.begin < _position(end)
                beside = other.begin.key == _position(end).key and {*other.shared} <= {*there}
                if other.parent == branch.name and (before or beside):
                    self._write(replace(other, parent=""))
            if _position(end) >= branch.end:
                self._drop(branch)
                continue
            rest = replace(branch, parent="", begins=end, shared=tuple(there))
            self._write(rest)
            if branch is ways[-1] and self._is_as_it_came(rest):
                behind = [part for part in record if Position(part.epoch, part.split, part.steps) > reached]
                self._retaken = {rest.name: _Retaken(rest, {_key(part): part for part in behind})}
        self.changes += 1

    def _drop(self, branch: Branch) -> list[str]:
        """Delete a branch. Return the names of those that hung on it."""
        known = {each.name: each for each in read_branches(self.layout.directory)}
        above = known[branch.name].parent if branch.name in known else ""
        hung = [each for each in known.values() if each.parent == branch.name]
        for other in hung:
            self._write(replace(other, parent=above))
        _delete(self.layout.branches / branch.name)
        _remove_if_empty(self.layout.branches)
        self.changes += 1
        return [each.name for each in hung]

    def _clear_away(self) -> None:
        """Delete what is left of a branch that an earlier process was deleting when the power failed."""
        for name in names_if_folder(self.layout.branches):
            folder = self.layout.branches / name
            if NAME.fullmatch(name) and ABOUT not in names_if_folder(folder):
                _delete(folder)
        _remove_if_empty(self.layout.branches)

    def _delete_all(self) -> None:
        for name in names_if_folder(self.layout.branches):
            if NAME.fullmatch(name):
                _delete(self.layout.branches / name)
        _remove_if_empty(self.layout.branches)
        self.changes += 1


def _agree(known: Sequence[MetricBlock], new: MetricBlock) -> bool:
    """Whether a block has the values that its steps had before."""
    for old in known:
        first, last = max(old.first, new.first), min(old.last, new.last)
        if first <= last:
            one, other = (rows(each, first - each.first, last - each.first + 1) for each in (old, new))
            if drift(one, other)[1] is not None:
                return False
    return True


def _seconds_of(line: Record, branch: Branch) -> Knots | None:
    """The training time at steps of a branch, from the beginning of its first pass on."""
    knots, begin = TrainingTime.of(line).knots(), branch.begin
    inside = begin.step if begin.split == "train" else 0
    first, last = float(begin.iteration - inside), float(branch.end.iteration)
    return None if knots is None or first >= last else between(knots, first, last, MOST_TIMES)


def _all_agree(known: SplitRecord, part: SplitRecord) -> bool:
    return all(_agree(known.blocks, block) for block in part.blocks)


def _beyond(event: Rewound) -> list[tuple[int, SplitRecord]]:
    """The passes that the run leaves, each with the number of its steps that stay."""
    left = event.former[event.kept_splits :]
    kept = [event.kept_steps, *[0] * len(left)]
    return [(steps, part) for steps, part in zip(kept, left, strict=False) if part.steps > steps]


def _behind(record: Record, begin: Position) -> list[tuple[int, SplitRecord]]:
    """The passes behind a place, each with the number of its steps before it."""
    found = []
    for part in record:
        kept = begin.step if _key(part) == (begin.epoch, begin.split) else 0
        if Position(part.epoch, part.split, part.steps) > begin and part.steps > kept:
            found.append((kept, part))
    return found


def _key(part: SplitRecord) -> tuple[int, Split]:
    """It orders passes: "train" comes before "valid"."""
    return part.epoch, part.split


def _trained(record: Sequence[SplitRecord]) -> int:
    return sum(part.steps for part in record if part.split == "train")


def _delete(folder: RunPath) -> None:
    """Delete a branch's own files, its description first."""
    names = names_if_folder(folder)
    if ABOUT in names:
        files.unlink(folder / ABOUT)
    for split in ("train", "valid"):
        for epoch in names_if_folder(folder / split):
            logs = [name for name in names_if_folder(folder / split / epoch) if name.endswith(".log")]
            files.delete_all(folder / split / epoch, logs)
            _remove_if_empty(folder / split / epoch)
        _remove_if_empty(folder / split)
    _remove_if_empty(folder)


def _remove_if_empty(folder: RunPath) -> None:
    if folder.is_dir() and not names_if_folder(folder):
        files.remove_directory(folder)
