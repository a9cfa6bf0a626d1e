"""Whether a directory holds a run, and the status of that run."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from ..errors import StoreError
from ..store import durable
from ..store.layout import FOLDERS, RunLayout, is_inside, log_files, names_if_folder
from ..store.run_folder import RunPath
from .live_index import FILE
from .timeline import TimelineMark, parse_timeline

Standing = Literal["running", "paused", "failed", "stopped", "finished", "unfinished"]

RECENT = 60.0
"""A run without an end in its log counts as running if it wrote something within so many seconds."""
_STATUS = re.compile(r"^\S+Z  ?(?:INFO|WARN|ERROR) +(running|paused|failed|stopped|finished) at epoch ")
_MOST_BESIDE = 200
"""Folders beside a run that are looked at, at most: each look waits for the interpreter's lock, which the
training holds."""
_LAST = 1 << 16
"""Bytes at the end of an application log in which the status is looked for."""


def is_run(directory: Path) -> bool:
    """Whether a run was ever written here."""
    layout = RunLayout(directory)
    if _has_index(directory):
        return True
    if any(True for _ in layout.passes()):
        return True
    return any("state-" in name for name in names_if_folder(layout.checkpoint))


def require_run(directory: Path) -> None:
    """Raise an error that says what is missing if there is no run."""
    if not directory.exists():
        raise StoreError(f"there is no directory {str(directory)!r}; give the directory that a run wrote to")
    if not directory.is_dir():
        raise StoreError(f"{str(directory)!r} is a file; give the directory that a run wrote to")
    if not is_run(directory):
        raise StoreError(
            f"{str(directory)!r} holds no run: a run has experiment.log, artifacts.h5, checkpoint/state-..., "
            "or train/epoch-1/ with logs. `notebook-learner ls` finds the runs below a directory"
        )


def runs_below(root: Path) -> Iterator[Path]:
    """Find the directories that hold a run, perhaps `root` itself; links are not followed."""
    for here, folders, _ in os.walk(root):
        folders.sort()
        if is_run(Path(here)):
            folders[:] = [name for name in folders if name not in FOLDERS]
            yield Path(here)


def runs_beside(directory: Path) -> list[Path]:
    """The other runs in the folder of a run, by name. Only so many folders are looked at: a home directory
    may have thousands."""
    with suppress(OSError), os.scandir(directory.parent) as entries:
        folders = (Path(each) for each in entries if each.is_dir(follow_symlinks=False))
        return sorted(
            each for each in islice(folders, _MOST_BESIDE) if each != directory and _has_index(each)
        )
    return []


def _has_index(directory: Path) -> bool:
    return (directory / FILE).is_file() or RunLayout(directory).experiment_log.is_file()


def logs_in(directory: Path) -> Iterator[RunPath]:
    """The metric logs, plain files only."""
    for _, _, folder in RunLayout(directory).passes():
        if is_inside(folder, directory):
            yield from (path for path in log_files(folder) if not path.is_symlink())


def test_logs_in(directory: Path) -> Iterator[RunPath]:
    """The logs of evaluated sets, plain files only."""
    for _, folder in RunLayout(directory).tests():
        if is_inside(folder, directory):
            yield from (path for path in log_files(folder) if not path.is_symlink())


def last_marks(directory: Path) -> list[TimelineMark]:
    """The status at the end of the application log."""
    return parse_timeline(last_lines(directory))


def last_lines(directory: Path, most: int = _LAST) -> list[str]:
    """The end of the application log. Only the first line may be cut."""
    try:
        with durable.opened(RunLayout(directory).experiment_log) as file:
            size = min(file.size, most)
            data = bytes(file.read(file.size - size, size))
    except OSError:
        return []
    return [line.decode(errors="replace") for line in data.split(b"\n")[:-1]]


def standing(directory: Path, marks: Sequence[TimelineMark]) -> Standing:
    """The status of a run. A killed process writes no status: a run that writes nothing for a while is
    "unfinished"."""
    told = [mark.kind for mark in marks if mark.kind not in ("checkpoint", "evaluated")]
    last = _last_said(directory) or (told[-1] if told else "")
    if last in ("paused", "failed", "stopped", "finished"):
        return last  # type: ignore[return-value]
    return "running" if is_recent(directory) else "unfinished"


def _last_said(directory: Path) -> str:
    """The last status in the application log. "running" after a pause counts, although it is no mark. A
    finished run that only went back since is finished: it says "paused" then, because it can go on."""
    paused = False
    for line in reversed(last_lines(directory)):
        said = _STATUS.search(line)
        if said is not None and said[1] == "paused":
            paused = True
        elif said is not None:
            return "paused" if paused and said[1] != "finished" else said[1]
    return "paused" if paused else ""


def is_recent(directory: Path) -> bool:
    """Whether something was written to the run a moment ago."""
    layout = RunLayout(directory)
    since = time.time() - RECENT
    for path in chain((layout.experiment_log, directory / FILE), _latest_logs(directory)):
        with suppress(OSError):
            if path.lstat().st_mtime > since:
                return True
    return False


def _latest_logs(directory: Path) -> Iterator[Path]:
    """The logs that may grow: those of the last epoch of each split."""
    latest = {split: (epoch, folder) for split, epoch, folder in sorted(RunLayout(directory).passes())}
    for _, folder in latest.values():
        if is_inside(folder, directory):
            yield from log_files(folder)


def size_of(directory: Path) -> int:
    """Bytes of all plain files below."""
    total = 0
    for here, _, names in os.walk(directory):
        for name in names:
            try:
                path = os.lstat(os.path.join(here, name))
            except OSError:
                continue
            total += path.st_size
    return total
