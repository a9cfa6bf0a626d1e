"""The logs of an evaluated set: `test/<name>/Loss.log`, in Burn's lines; either all are written or none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..event.join import text_runs
from ..event.values import Evaluated, MetricBlock
from ..store import durable, files
from ..store.layout import RunLayout, file_name, log_files
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
