"""Burn's log files: `train/epoch-1/Loss.log`, one line per step. They are the reference for metrics."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..event.record import last_step, text_runs
from ..event.values import (
    Column,
    Evaluated,
    Event,
    MetricBlock,
    Rewound,
    Split,
    SplitEnded,
    SplitRecord,
    SplitStarted,
)
from ..store import durable, files
from ..store.appender import LineAppender
from ..store.layout import SPLITS, RunLayout, file_name, log_files, names_if_folder
from ..store.log_lines import format_final, format_number, format_rows, format_text
from ..store.run_folder import RunPath


def write_evaluation(layout: RunLayout, event: Evaluated) -> None:
    """Replace the logs of an earlier evaluation of the same name.

    The new logs are on the disk before the earlier ones are deleted, so a full disk leaves the earlier ones.
    A process that is killed during the replacement leaves fewer logs, never a mixture of both.

    >>> import tempfile
    >>> import numpy as np
    >>> from notebook_learner.event import Column, SplitRecord
    >>> run = tempfile.TemporaryDirectory()
    >>> loss = Column(np.array([0.75, 0.25]), np.array([32.0, 32.0]))
    >>> block = MetricBlock(3, "valid", 1, 2, 40, {"Loss": loss}, {}, 0.1)
    >>> record = SplitRecord(3, "valid", (block,), {"Loss": 0.5})
    >>> write_evaluation(RunLayout(run.name), Evaluated("clean", 3, "train", 7, record))
    >>> print((RunLayout(run.name).test_dir("clean") / "Loss.log").read_text(), end="")
    0.75,32
    0.25,32
    0.5,final
    >>> run.cleanup()
    """
    folder = layout.test_dir(event.name)
    ready = folder.with_name(f".{folder.name}.tmp")
    _remove_logs(ready)  # left by a process that was killed
    files.make_directory(ready)
    for name, text in _logs(event).items():
        data = text.encode(errors="backslashreplace")
        durable.write_new(ready / file_name(name), [data], len(data))
    files.make_directory(folder)
    for log in log_files(folder):
        files.unlink(log)
    for log in log_files(ready):
        files.rename(log, folder / log.name)
    files.remove_directory(ready)
    files.sync_directory(folder)
    files.sync_directory(folder.parent)


def delete_evaluations(layout: RunLayout, keep: Iterable[str]) -> None:
    """Remove the logs of all sets except those to keep; other files stay."""
    kept = set(keep)
    for name, folder in tuple(layout.tests()):
        if name not in kept:
            _remove_logs(folder)


def evaluated_text(event: Evaluated, written: Callable[[str], str] = str) -> str:
    """The set and its values in a line: `clean: Loss 0.5, Accuracy 91.25`; `written` formats the names."""
    finals = event.record.finals or {}
    values = ", ".join(f"{written(name)} {format_number(value)}" for name, value in finals.items())
    return f"{written(event.name)}: {values or 'no values'}"


def _logs(event: Evaluated) -> dict[str, str]:
    """The text of every metric's log; a metric that appeared late has blank lines first."""
    logs: dict[str, _SetLog] = {}
    for block in event.record.blocks:
        for name, column in block.columns.items():
            blank = "NaN\n" if column.weights is None else "NaN,0\n"
            logs.setdefault(name, _SetLog(blank)).add(block, format_rows(column))
        for name in block.texts:
            rows = "".join(format_text(text) * count for count, text in text_runs(block, name))
            logs.setdefault(name, _SetLog("\n")).add(block, rows)
    for name, value in (event.record.finals or {}).items():
        logs.setdefault(name, _SetLog("")).parts.append(format_final(value))
    return {name: "".join(log.parts) for name, log in logs.items()}


@dataclass
class _SetLog:
    blank: str
    parts: list[str] = field(default_factory=list)
    lines: int = 0

    def add(self, block: MetricBlock, rows: str) -> None:
        self.parts += [self.blank * (block.first - 1 - self.lines), rows]
        self.lines = block.last


def _remove_logs(folder: RunPath) -> None:
    """Remove the logs of one set, and its folder and the folder of all sets if they are empty then."""
    logs = log_files(folder)
    for log in logs:
        files.unlink(log)
    for empty in (folder, folder.parent):
        if not empty.is_dir() or files.names_in(empty):
            return  # other files, or other sets
        files.remove_directory(empty)


_Pass = tuple[Split, int]


class FileMetricLogger:
    """Writes every metric's values below `directory`, one block at a time.

    A new run in the directory of an earlier one replaces its logs, as in Burn.

    Line k of a log is step k, also after pauses and rewinds: after a `Rewound` the files are byte for byte
    those of a run that was never rewound. Nothing is buffered, so a `kill -9` loses nothing that was written.

    When the disk fails, the OSError is raised unchanged, and the unwritten lines wait in memory for the
    next event or `flush()`. The event that raised has been taken: do not pass it in again.

    >>> import tempfile
    >>> from notebook_learner.event import Column, MetricBlock, SplitEnded, SplitStarted
    >>> from notebook_learner.store import RunLayout
    >>> import numpy as np
    >>> run = tempfile.TemporaryDirectory()
    >>> logger = FileMetricLogger(run.name)
    >>> logger.handle(SplitStarted(1, "train", 2, 1))
    >>> loss = Column(np.array([0.75, 0.25]), np.array([32.0, 32.0]))
    >>> logger.handle(MetricBlock(1, "train", 1, 2, 2, {"Loss": loss}, {}, 0.1))
    >>> logger.handle(SplitEnded(1, "train", 2, {"Loss": 0.5}))
    >>> print(RunLayout(run.name).metric_log("train", 1, "Loss").read_text(), end="")
    0.75,32
    0.25,32
    0.5,final
    >>> run.cleanup()
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.layout = RunLayout(directory)
        self._backlog: deque[Event] = deque()
        self._current: _Pass | None = None
        self._folder = self.layout.directory
        """The open files of the current pass."""
        self._files: dict[str, LineAppender] = {}
        self._ended: list[tuple[_Pass, LineAppender]] = []
        """Files of ended passes whose last lines are not on the disk yet."""
        self._directory_made = False
        self._half_rebuilt = False
        self._evaluated: set[str] = set()
        """Sets that this run measured, even before its first pass: they do not belong to an earlier run."""
        self._fresh = True
        """True until the first event: if that is the run's first pass, a new run begins."""

    def handle(self, event: Event, /) -> None:
        """Take one event and write it, after everything that still waits."""
        if isinstance(event, MetricBlock | SplitStarted | SplitEnded | Rewound | Evaluated):
            self._backlog.append(event)
        self.flush()

    def flush(self) -> None:
        """Write what an earlier error kept back. Raises OSError while the cause remains."""
        while self._backlog:
            self._apply(self._backlog[0])  # a Rewound that fails is applied again from its start
            self._backlog.popleft()
        self._write_out()

    def close(self) -> None:
        """Write the waiting lines and close the files. A later event opens them again."""
        try:
            self.flush()
        finally:
            _close(self._files.values())
            _close(file for _, file in self._ended)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it opens its files again."""
        return FileMetricLogger, (self.layout.directory,)

    def __repr__(self) -> str:
        return f"FileMetricLogger({os.fspath(self.layout.directory)!r})"

    # ------------------------------------------------------------------------- taking (in memory)

    def _apply(self, event: Event) -> None:
        if isinstance(event, Evaluated):  # an evaluation does not begin a run
            write_evaluation(self.layout, event)
            self._evaluated.add(event.name)
            return
        if isinstance(event, MetricBlock):
            self._enter((event.split, event.epoch))
            self._take(event)
        elif isinstance(event, SplitStarted):
            if self._fresh and event.epoch == 1 and event.split == "train":
                # Logs of later epochs, left by an earlier run, would look like logs of this run.
                self._delete_all_but(set())
                delete_evaluations(self.layout, self._evaluated)
            self._begin((event.split, event.epoch))
        elif isinstance(event, SplitEnded):
            self._enter((event.split, event.epoch))
            self._end(event.finals.items())
        elif isinstance(event, Rewound):
            self._rewind(event)
        self._fresh = False

    def _enter(self, key: _Pass) -> None:
        if self._current != key:
            self._begin(key)

    def _begin(self, key: _Pass) -> None:
        """Start a pass from its beginning: the first lines create or empty its files."""
        if self._current != key:
            self._leave()
        else:
            _close(self._files.values())
        self._forget(lambda past: past == key)
        self._current, self._files = key, {}
        self._folder = self.layout.split_dir(*key)

    def _leave(self) -> None:
        if self._current is not None:
            self._ended += [(self._current, file) for file in self._files.values()]
        self._current, self._files = None, {}

    def _forget(self, unwanted: Callable[[_Pass], bool]) -> None:
        """Drop the waiting lines of a pass that is taken back or starts over: they must never be written."""
        _close(file for past, file in self._ended if unwanted(past))
        self._ended = [(past, file) for past, file in self._ended if not unwanted(past)]

    def _take(self, block: MetricBlock) -> None:
        for name, column in block.columns.items():
            blank = "NaN\n" if column.weights is None else "NaN,0\n"
            file, known = self._reach(name, block, blank)
            if known < block.count:
                rows = column if not known else _without(column, known)
                file.add(format_rows(rows), block.count - known)
        for name in block.texts:
            file, known = self._reach(name, block, "\n")
            if known < block.count:
                file.add(_text_rows(block, name, known), block.count - known)

    def _reach(self, name: str, block: MetricBlock, blank: str) -> tuple[LineAppender, int]:
        """The metric's file, filled up to the block's first row, and how many rows it already has."""
        file = self._file(name, blank)
        file.fill(block.first - 1)
        return file, file.lines - (block.first - 1)

    def _file(self, name: str, blank: str) -> LineAppender:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = LineAppender(self._path(name), fresh=True, blank=blank)
        return file

    def _path(self, name: str) -> RunPath:
        return self._folder / file_name(name)

    def _end(self, finals: Iterable[tuple[str, float]]) -> None:
        for name, value in finals:
            self._file(name, "NaN,0\n").add(format_final(value), 0)
        self._leave()

    # ---------------------------------------------------------------------------- writing (on disk)

    def _write_out(self) -> None:
        """Write each file once, then raise the first error."""
        failure: OSError | None = None
        for file in (*(file for _, file in self._ended), *self._files.values()):
            try:
                if file.waiting:
                    self._write(file)
            except OSError as error:
                failure = failure or error
        _close(file for _, file in self._ended)
        self._ended = [(past, file) for past, file in self._ended if file.waiting]
        if failure is not None:
            raise failure

    def _write(self, file: LineAppender) -> None:
        """Warn once if the run's directory is gone, instead of silently creating it again."""
        if self._directory_made and not (file.is_open or self.layout.directory.exists()):
            self._directory_made = False
            raise FileNotFoundError(
                errno.ENOENT,
                "the run's directory was moved or removed while the run wrote to it; put it back, or go on "
                "and the next write makes a new one without the earlier logs",
                str(self.layout.directory),
            )
        try:
            file.write_out()
            self._directory_made = True
        except FileNotFoundError:
            self._directory_made = False
            raise

    # ---------------------------------------------------------------------------------- going back

    def _rewind(self, event: Rewound) -> None:
        """Make the directory match `record`. If it was interrupted, it can run again."""
        record, kept = event.record, {_key(past) for past in event.record[: event.kept_splits]}
        if self._current not in kept:
            self._leave()
        self._forget(lambda key: key not in kept)
        self._delete_all_but({_key(past) for past in record})
        for number, past in enumerate(record[event.kept_splits :]):
            self._rebuild(past, 0 if number else event.kept_steps)
            self._write_out()
        ready = record and self._current == _key(record[-1]) and not self._half_rebuilt
        if record and record[-1].finals is None and not ready:
            self._rebuild(record[-1], last_step(record[-1]))

    def _delete_all_but(self, passes: set[_Pass]) -> None:
        for split in SPLITS:
            others = [epoch for epoch in self.layout.epochs(split) if (split, epoch) not in passes]
            folders = [self.layout.split_dir(split, epoch) for epoch in others]
            _remove([folder for folder in folders if _delete_logs(folder)])

    def _rebuild(self, past: SplitRecord, keep: int) -> None:
        """Open a pass again: keep its first `keep` lines, and write the rest from the record."""
        self._half_rebuilt = True  # set until the end, so that a failed disk repeats this
        self._begin(_key(past))
        names = _lines_upto(past, keep)
        kept = {name: (lines, blank) for name, (lines, blank) in names.items() if lines}
        if _delete_logs(self._folder, keep=map(file_name, kept)):
            _remove([self._folder])
        for name, (lines, blank) in kept.items():
            self._file(name, blank).keep(lines)
        for block in past.blocks:
            self._take(block)
        if past.finals is not None:
            self._end(past.finals.items())
        self._half_rebuilt = False


def _close(files: Iterable[LineAppender]) -> None:
    for file in files:
        file.close()


def _key(past: SplitRecord) -> _Pass:
    return past.split, past.epoch


def _without(column: Column, rows: int) -> Column:
    return Column(column.values[rows:], None if column.weights is None else column.weights[rows:])


def _text_rows(block: MetricBlock, name: str, skip: int) -> str:
    lines = []
    for rows, text in text_runs(block, name):
        lines.append(format_text(text) * max(0, rows - skip))
        skip = max(0, skip - rows)
    return "".join(lines)


def _lines_upto(past: SplitRecord, step: int) -> dict[str, tuple[int, str]]:
    """How many lines each metric has after `step`, and its blank line. A late metric may have fewer."""
    lines: dict[str, tuple[int, str]] = {}
    for block in past.blocks:
        here = min(block.last, step) if block.first <= step else 0
        for name, column in block.columns.items():
            blank = "NaN\n" if column.weights is None else "NaN,0\n"
            lines[name] = (max(here, lines.get(name, (0, ""))[0]), blank)
        for name in block.texts:
            lines[name] = (max(here, lines.get(name, (0, ""))[0]), "\n")
    return lines


def _delete_logs(folder: RunPath, keep: Iterable[str] = ()) -> bool:
    """Remove the pass's logs except `keep`; leave other files. Return whether the folder is empty then."""
    kept, names = set(keep), names_if_folder(folder)
    gone = [name for name in names if name.endswith(".log") and name not in kept]
    if gone:
        files.delete_all(folder, gone)
    return len(gone) == len(names)


def _remove(passes: Sequence[RunPath]) -> None:
    """Remove the empty folders of passes of one split, and the split's own folder if it is empty then."""
    for folder in (*passes, *(folder.parent for folder in passes[:1])):
        with suppress(OSError):  # not empty: other files, or other epochs
            files.remove_directory(folder)
