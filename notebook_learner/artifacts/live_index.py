"""Keeps `artifacts.h5` up to date while a run trains."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..checkpoint.info import CheckpointInfo
from ..errors import DamagedError
from ..event.values import (
    EpochEnded,
    Evaluated,
    Event,
    MetricAdded,
    MetricBlock,
    Record,
    Rewound,
    RunOpened,
    SplitRecord,
    SplitStarted,
    StatusChanged,
)
from ..store import durable, files
from ..store.layout import RunLayout
from .branches import passes_of_branches
from .claims import Claims
from .clock import Clock
from .index import encode_index, read_header
from .read_record import evaluated_in
from .run_info import RunInfo
from .timeline import TimelineMark, mark_of, mark_of_checkpoint

FILE = "artifacts.h5"
REST = 100
"""The end of an epoch writes no file before this many times the duration of the last write: one percent of
the time."""
LARGE = 1 << 16
"""Bytes. A file of this size or more waits in the same way after a rewind, a restored checkpoint or a save at
rest, and an earlier process's stays: nothing was trained then, and with hundreds of checkpoints (0.1 ms and
0.8 kB each) the file is most of the cost."""

_ENDED = ("failed", "stopped", "finished")


class LiveIndex:
    """A sink that keeps `artifacts.h5` up to date: at an epoch's end, a pause and the end.

    On the training thread it only takes notes. Jobs that it gives to `submit` make the file. `submit` runs
    them one after the other in another thread, and handles their errors (an OSError if the disk is full).
    The jobs call `record`, `checkpoints` and `recipe` (a JSON text), so these must be safe to call there.

    A process that goes on with a run reads its start, the times of its steps and its timeline from the
    earlier file. A new run in the directory starts with an empty file, as its logs do.

    >>> import tempfile
    >>> from notebook_learner.event import RunOpened
    >>> run = tempfile.TemporaryDirectory()
    >>> index = LiveIndex(run.name, record=tuple, checkpoints=tuple, submit=lambda job: job())
    >>> index.handle(RunOpened(run.name, "Net", 1290, 10, ()))
    >>> read_header(index.path)["run"]["model"]
    'Net'
    >>> run.cleanup()
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        record: Callable[[], Record],
        checkpoints: Callable[[], Sequence[CheckpointInfo]],
        submit: Callable[[Callable[[], None]], None],
        *,
        recipe: Callable[[], str] = str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.path = RunLayout(directory).directory / FILE
        self._record, self._checkpoints, self._submit, self._now = record, checkpoints, submit, now
        self._recipe = recipe
        self._notes = threading.Lock()
        self._run: RunInfo | None = None
        self._opened = 0.0
        self._clock = Clock()
        self._timeline: list[TimelineMark] = []
        self._fresh = True
        """Nothing was trained or restored yet: if the first pass is also the run's first, the run is new."""
        self._moved = False
        """Training was moved to another place, and has not run since."""
        self._running = False
        self._evaluated: dict[str, Evaluated] = {}
        self._waiting = 0
        self._building = threading.Lock()
        self._directory_made = False
        self._size = 0
        self._cost = 0.0
        self._built_at = 0.0
        """When this process wrote the file; 0 before that."""

    def handle(self, event: Event, /) -> None:
        """Take one event."""
        with self._notes:
            wanted = self._take(event, self._now()) and self._run is not None
            self._waiting += wanted
        if wanted:
            try:
                self._submit(self._job)
            except BaseException:
                with self._notes:
                    self._waiting -= 1
                raise

    def refresh(self) -> None:
        """Have the file written again after a checkpoint was saved. From any thread."""
        with self._notes:
            waits = self._running or self._size >= LARGE
            due = self._rested if waits else not self._waiting  # at rest no later event writes it
            wanted = self._run is not None and due
            self._waiting += wanted
        if wanted:
            self._submit(self._job)

    def about(self) -> dict[str, Any]:
        """What is known of the run, as plain JSON values; each checkpoint keeps it, too."""
        with self._notes:
            if self._run is None:
                return {}
            return self._run.to_json()

    def clock(self, passes: Sequence[SplitRecord]) -> list[Any]:
        """When the steps of these passes were taken, as plain JSON values."""
        with self._notes:
            return self._clock.to_json((part.epoch, part.split) for part in passes)

    def __repr__(self) -> str:
        return f"LiveIndex({os.fspath(self.path)!r})"

    @property
    def _rested(self) -> bool:
        return not self._waiting and time.monotonic() >= self._built_at + REST * self._cost

    # ------------------------------------------------------------------------------- taking notes

    def _take(self, event: Event, now: float) -> bool:
        """Note an event, and return whether the file should be written for it."""
        if isinstance(event, MetricBlock):
            self._clock.add(event, now)
            self._fresh = False
            return False
        if isinstance(event, SplitStarted):
            return self._begin(event)
        if isinstance(event, EpochEnded):
            return self._rested
        if isinstance(event, RunOpened):
            return self._open(event, now)
        if isinstance(event, MetricAdded):
            self._add_metric(event)
        if isinstance(event, Rewound):
            self._clock.cut(event.epoch, event.split, event.step)
            self._fresh, self._moved = False, True
        elif isinstance(event, StatusChanged):
            self._note_status(event, now)
        elif isinstance(event, Evaluated):
            self._evaluated[event.name] = event
        mark = mark_of(event, now)
        if mark is not None:
            self._timeline.append(mark)
        if isinstance(event, StatusChanged) and self._moved and self._size >= LARGE:
            return mark is not None and self._rested and bool(self._built_at)
        return mark is not None and not isinstance(event, Rewound)  # a status event follows it

    def _open(self, event: RunOpened, now: float) -> bool:
        """Whether there is nothing of an earlier run. An existing file stays until something happens: a
        learner that was only built has measured nothing, and must not empty the file."""
        self._run, self._opened = RunInfo.of(event, now), now
        mark = TimelineMark("opened", 1, "train", 0, now, event.model)
        self._timeline.append(mark)
        with suppress(OSError, DamagedError):  # it is only an index: a file that cannot be read is made again
            header = Claims(read_header(self.path), "an artifacts.h5")
            before = RunInfo.from_json(header.member("run"))
            clock = Clock.from_json(header.member("clock"))
            timeline = [TimelineMark.from_json(mark) for mark in header.items("timeline")]
            self._size = self.path.stat().st_size
            self._run = replace(self._run, started=before.started)
            self._clock, self._timeline = clock, [*timeline, mark]
            return False
        return True

    def _begin(self, event: SplitStarted) -> bool:
        """Whether the file of an earlier run must be deleted now."""
        afresh = False
        if self._fresh and event.epoch == 1 and event.split == "train":
            afresh = any(mark.when < self._opened for mark in self._timeline)
            self._clock = Clock()
            self._timeline = [mark for mark in self._timeline if mark.when >= self._opened]
            if self._run is not None:
                self._run = replace(self._run, started=self._opened)
        self._clock.begin(event.epoch, event.split)
        self._fresh = False
        return afresh

    def _add_metric(self, event: MetricAdded) -> None:
        if self._run is not None:
            self._run = replace(self._run, metrics=(*self._run.metrics, event.info))

    def _note_status(self, event: StatusChanged, now: float) -> None:
        self._running = event.status == "running"
        self._moved = self._moved and not self._running
        if self._run is not None:
            self._run = replace(self._run, ended=now if event.status in _ENDED else None)

    # -------------------------------------------------------------------------- writing, elsewhere

    def _job(self) -> None:
        with self._notes:
            self._waiting = 0  # an epoch that ends from here on may be too late for this file
        with self._building:
            began = time.monotonic()
            try:
                self._write()
            finally:
                with self._notes:
                    self._built_at = time.monotonic()
                    self._cost = self._built_at - began

    def _write(self) -> None:
        checkpoints = self._checkpoints()
        with self._notes:
            self._note_checkpoints(checkpoints)
            run, clock, timeline = self._run, self._clock.copy(), tuple(self._timeline)
            evaluated = dict(self._evaluated)
        assert run is not None, "no job is submitted before the run was opened"
        record = self._record()
        # The logs come first: another process may have evaluated since.
        logged = evaluated_in(self.path.parent, run.metrics, timeline, record)
        evaluated.update({each.name: each for each in logged})
        sets = tuple(evaluated.values())
        left, recipe = passes_of_branches(self.path.parent, run.metrics), self._recipe()
        data = encode_index(
            run, record, clock, timeline, checkpoints, evaluated=sets, recipe=recipe, branches=left
        )
        if not self._directory_made:  # later on, a directory that has gone is an error
            files.make_directory(self.path.parent)
            self._directory_made = True
            self._clear_away()
        durable.replace(self.path, [data], len(data))
        self._size = len(data)

    def _clear_away(self) -> None:
        """Delete the temporary files of a process that was killed while it wrote this file."""
        for name in files.names_in(self.path.parent):
            if name.startswith(f".{self.path.name}.") and name.endswith(".tmp"):
                files.unlink(self.path.with_name(name))

    def _note_checkpoints(self, checkpoints: Sequence[CheckpointInfo]) -> None:
        """Checkpoints come and go; that they were saved stays on the timeline."""
        marks = map(mark_of_checkpoint, checkpoints)
        noted = {(mark.text, mark.when) for mark in self._timeline if mark.kind == "checkpoint"}
        self._timeline += [mark for mark in marks if (mark.text, mark.when) not in noted]
        self._timeline.sort(key=lambda mark: mark.when)
