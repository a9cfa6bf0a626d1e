"""Sets that are evaluated while a run is followed: each is reported once, when all of its logs are there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

from ..event.values import MetricInfo
from ..store.layout import RunLayout, is_inside, log_files
from ..store.run_folder import RunPath
from .evaluations import Evaluation
from .read_evaluations import evaluated_in, marks_of
from .run_status import last_marks
from .timeline import TimelineMark

PATIENCE = 1.0
"""Seconds to wait for the set's line in the application log, and for logs that are being put in place."""
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
