"""The values of a run as they come, also from another process: read again and again from its text logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..errors import DamagedError
from ..event.values import Column, MetricInfo, Split
from ..store.layout import RunLayout, check_metric_name, file_name, is_inside, log_files
from ..store.run_folder import RunPath
from .claims import Claims
from .evaluations import Evaluation
from .index import read_header
from .live_index import FILE
from .log_tail import Tail
from .read_record import evaluated_in, marks_of
from .run_info import RunInfo
from .run_status import RECENT, last_marks
from .timeline import TimelineMark

PATIENCE = 1.0
"""Seconds to wait for what is to come: a set's line in the application log, logs that are being put in place,
the log of a metric that the run has announced."""
_ROUNDED = 0.01
"""Seconds by which a line of the application log may seem older than the logs before it."""

_Files = tuple[tuple[str, int, int, int], ...]


class FollowedSets:
    """The sets of a run that were reported so far."""

    def __init__(self, layout: RunLayout) -> None:
        self._layout = layout
        self._told: dict[str, _Files] = {}
        self._waiting: dict[str, tuple[_Files, float]] = {}

    def look(
        self, infos: Iterable[MetricInfo], marks: Sequence[TimelineMark], hurried: bool
    ) -> Iterator[Evaluation]:
        """What is new since the last look, in the order in which it was measured.

        Args:
            infos: what is known of the run's metrics.
            marks: what is known to have happened without the application log.
            hurried: do not wait, since nothing more comes.
        """
        files = self._files()
        self._told = {name: seen for name, seen in self._told.items() if name in files}
        fresh = {name: seen for name, seen in files.items() if self._told.get(name) != seen}
        if not fresh:
            return
        found = {each.name: each for each in evaluated_in(self._layout.directory, infos, marks, ())}
        after = self._files()
        logged = last_marks(self._layout.directory)
        noted = marks_of(sorted([*marks, *logged], key=lambda mark: mark.when))
        for name, event in found.items():
            if name not in fresh or after.get(name) != fresh[name]:
                continue  # reported before, or changed meanwhile: the next look reads it whole
            if hurried or self._waited(name, fresh[name]) or self._whole(name, fresh[name], noted.get(name)):
                self._told[name] = fresh[name]
                self._waiting.pop(name, None)
                yield Evaluation.of(event)

    def _files(self) -> dict[str, _Files]:
        """The logs in each set's folder, and when they were written."""
        inside = [
            (name, folder)
            for name, folder in self._layout.tests()
            if is_inside(folder, self._layout.directory)
        ]
        return {name: files for name, folder in inside if (files := _logs_of(folder))}

    def _waited(self, name: str, files: _Files) -> bool:
        known, since = self._waiting.get(name, ((), 0.0))
        if known != files:
            self._waiting[name] = (files, time.monotonic())
            return False
        return time.monotonic() - since >= PATIENCE

    def _whole(self, name: str, files: _Files, noted: TimelineMark | None) -> bool:
        """Whether the last log is in its place, and the line about its weights was written after it."""
        folder = self._layout.test_dir(name)
        if noted is None or folder.with_name(f".{folder.name}.tmp").exists():
            return False
        return noted.when >= max(each[1] for each in files) / 1e9 - _ROUNDED


def _logs_of(folder: RunPath) -> _Files:
    found = []
    for path in log_files(folder):
        try:
            there = path.lstat()
        except OSError:
            continue
        found.append((path.name, there.st_mtime_ns, there.st_size, there.st_ino))
    return tuple(found)


MOMENT = 0.05
"""Seconds within which a run that has announced no metrics creates all of its logs."""
AFTERWARDS = 2.0
"""Seconds after the end of a run within which its logs may still be written."""
_ORDER = {"train": 0, "valid": 1}
_OVER = ("finished", "stopped")


@dataclass(frozen=True, eq=False)
class Block:
    """New steps of one pass, with every metric."""

    split: Split
    epoch: int
    first: int
    """The step of the first row, from 1."""
    count: int
    columns: Mapping[str, Column]
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class EpochValues:
    """A pass has ended with these values."""

    split: Split
    epoch: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class TakenBack:
    """Forget every step after this one, and all later passes: the run went back, or started over.

    The new values of these steps come next.
    """

    epoch: int
    split: Split
    step: int


News = Block | EpochValues | TakenBack | Evaluation


def follow(
    directory: Path,
    poll: float = 0.1,
    timeout: float | None = None,
    since: Literal["start", "now"] = "start",
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[News]:
    """See `Artifacts.follow`; it also ends if `enough` returns true and nothing new has come."""
    if since not in ("start", "now"):
        raise ValueError(f"follow(since={since!r}): it must be 'start' or 'now'")
    if poll <= 0:
        raise ValueError(f"follow(poll={poll}): seconds between two looks, more than 0")
    return _follow(_Follower(directory), poll, timeout, since, enough)


def _follow(
    follower: _Follower, poll: float, timeout: float | None, since: str, enough: Callable[[], bool]
) -> Iterator[News]:
    if since == "now":
        for _ in range(3):  # more than once: a look ends early if logs change meanwhile
            for _ in follower.look(hurried=True):
                pass
    heard = time.monotonic()
    while True:
        over = follower.over()  # asked first: after the end, one last look reads everything
        news = False
        for each in follower.look(hurried=over):
            news = True
            yield each
        if news:
            heard = time.monotonic()
        elif over or enough() or (timeout is not None and time.monotonic() - heard >= timeout):
            return
        else:
            time.sleep(poll)


class _Pass:
    """One pass of one epoch."""

    def __init__(self, epoch: int, split: Split, folder: RunPath) -> None:
        self.epoch, self.split, self.folder = epoch, split, folder
        self.tails: dict[str, Tail] = {}
        self.told = 0
        """Rows that were handed out."""
        self.ended = False
        self._full: list[Tail] = []
        """Logs that have more rows than fit into memory until some are handed out."""
        self._settled = False
        self._names: frozenset[str] = frozenset()
        self._since = 0.0

    @property
    def has_more(self) -> bool:
        """Whether more rows can be read once the rows in memory were handed out."""
        return bool(self._full)

    @property
    def key(self) -> tuple[int, int]:
        return self.epoch, _ORDER[self.split]

    @property
    def anything_told(self) -> bool:
        return self.told > 0 or self.ended

    def restart(self, step: int) -> None:
        """Read everything again, and hand out what comes after a step."""
        self.tails, self.told, self.ended, self._settled = {}, step, False, False
        self._names = frozenset()

    def read(self, infos: Mapping[str, MetricInfo]) -> bool:
        """Read what was written; False if the logs changed meanwhile, so that they do not fit together."""
        self._read_all(infos)
        if any(tail.final is not None for tail in self.tails.values()):
            # Perhaps the pass ended after some log was read. By now all of its lines are there.
            self._read_all(infos)
        # Each log is still as it was when the last of them was read, so they belong together.
        return not any(tail.changed() for tail in self.tails.values())

    def _read_all(self, infos: Mapping[str, MetricInfo]) -> None:
        for path in log_files(self.folder):
            if path.name not in self.tails:
                tail = Tail(path, infos.get(path.name))
                if tail.usable:
                    self.tails[path.name] = tail
        self._full = [tail for tail in self.tails.values() if not tail.fill(self.told)]

    def news(self, infos: Mapping[str, MetricInfo], closed: bool, hurried: bool) -> Iterator[News]:
        """What is new in all of the pass's logs."""
        if not (closed or hurried or self._is_settled(infos)):
            return
        logs = [tail for tail in self.tails.values() if tail.rows or tail.final is not None]
        weighted = [tail for tail in logs if tail.weighted or tail.final is not None]
        ended = bool(weighted) and all(tail.final is not None for tail in weighted)
        ended &= not self._full
        if self._full and closed:  # logs that were read to their end have no more rows
            last = min(tail.rows for tail in self._full)
        else:
            rows = [tail.rows for tail in logs if tail.rows]
            last = (max if ended or closed else min)(rows, default=0)
        if last > self.told:
            first, self.told = self.told + 1, last
            yield self._block([tail for tail in logs if tail.rows], first, last)
        if ended and not self.ended:
            self.ended = True
            for tail in logs:
                tail.settle()
            finals = {tail.name: tail.final for tail in logs if tail.final is not None}
            yield EpochValues(self.split, self.epoch, finals)

    def _block(self, logs: list[Tail], first: int, last: int) -> Block:
        columns = {tail.name: tail.column(first, last) for tail in logs if not tail.is_text}
        texts = {tail.name: tail.text(first, last) for tail in logs if tail.is_text}
        return Block(self.split, self.epoch, first, last - first + 1, columns, texts)

    def _is_settled(self, infos: Mapping[str, MetricInfo]) -> bool:
        """Whether the logs of all metrics are there: all that were announced, or no new log for a while."""
        if self._settled:
            return True
        # A file exists a moment before its first line.
        names = frozenset(name for name, tail in self.tails.items() if tail.rows or tail.final is not None)
        same, self._names = names == self._names and bool(names), names
        if not same:
            self._since = time.monotonic()
        still = time.monotonic() - self._since
        self._settled = same and still >= (PATIENCE if infos else MOMENT)
        if infos and infos.keys() <= names:
            self._settled = True
        return self._settled


class _Follower:
    """All passes of a run, as far as they were handed out."""

    def __init__(self, directory: Path) -> None:
        self.layout = RunLayout(directory)
        self._passes: list[_Pass] = []
        self._infos: dict[Split, dict[str, MetricInfo]] = {"train": {}, "valid": {}}
        self._marks: list[TimelineMark] = []
        self._header_seen: tuple[int, int] | None = None
        self._sets = FollowedSets(self.layout)

    def over(self) -> bool:
        """Whether the run says that it has ended."""
        self._look_at_header()
        marks = sorted([*self._marks, *last_marks(self.layout.directory)], key=lambda mark: mark.when)
        told = [mark for mark in marks if mark.kind not in ("checkpoint", "evaluated")]
        return bool(told) and told[-1].kind in _OVER and not self._goes_on(told[-1].when)

    def _goes_on(self, ended: float) -> bool:
        """Whether logs grow although the run has ended: then another process goes on with it."""
        written = max(
            (tail.written_at for past in self._passes[-1:] for tail in past.tails.values()), default=0.0
        )
        return written > ended + AFTERWARDS and time.time() - written < RECENT

    def look(self, hurried: bool) -> Iterator[News]:
        """What is new since the last look."""
        self._look_at_header()
        back = self._taken_back()
        if back is not None:
            yield back
        self._find_passes()
        for place, past in enumerate(self._passes):
            if past.ended:
                continue
            infos = self._infos[past.split]
            closed = place + 1 < len(self._passes)
            told = -1
            while told < past.told and (told < 0 or past.has_more):
                told = past.told
                if not past.read(infos):
                    return  # the next look says what was taken back
                yield from past.news(infos, closed, hurried)
        yield from self._sets.look(self._infos["valid"].values(), self._marks, hurried)

    def _find_passes(self) -> None:
        known = {past.key for past in self._passes}
        last = max(known, default=(0, 0))
        found = [_Pass(epoch, split, folder) for split, epoch, folder in self.layout.passes()]
        fresh = [past for past in found if past.key > last]
        # The latest pass first: if it has logs, the earlier passes have theirs when we look at them next.
        for past in sorted(fresh, key=lambda past: past.key, reverse=True):
            if is_inside(past.folder, self.layout.directory) and log_files(past.folder):
                self._passes.append(past)
        self._passes.sort(key=lambda past: past.key)

    def _taken_back(self) -> TakenBack | None:
        for place, past in enumerate(self._passes):
            changed = [tail for tail in past.tails.values() if tail.changed()]
            if not changed:
                continue
            right = [tail.still_right() for tail in changed]
            if all(whole for _, whole in right):  # another file with the same beginning
                for tail in changed:
                    tail.adopt()
                continue
            told = past.anything_told or any(each.anything_told for each in self._passes[place + 1 :])
            step = min(past.told, *(rows for rows, _ in right))
            past.restart(step)
            del self._passes[place + (step > 0) :]
            if told:
                return TakenBack(past.epoch, past.split, step)
            return None
        return None

    def _look_at_header(self) -> None:
        path = self.layout.directory / FILE
        try:
            there = path.stat()
            seen = (there.st_mtime_ns, there.st_ino)
            if seen == self._header_seen:
                return
            header = Claims(read_header(path), "an artifacts.h5")
            run = RunInfo.from_json(header.member("run"))
            self._marks = [TimelineMark.from_json(mark) for mark in header.items("timeline")]
        except (OSError, DamagedError):
            return
        self._header_seen = seen
        self._infos = {"train": {}, "valid": {}}
        for info in run.metrics:
            if check_metric_name(info.name) is None:
                self._infos[info.split][file_name(info.name)] = info
