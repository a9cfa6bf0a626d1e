"""Traces that a learner leaves in a run's directory when it goes on there: they show that another one did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ..store import durable, files
from ..store.layout import SPLITS, RunLayout
from ..store.run_folder import RefusedError, RunPath

Traces = Mapping[str, object]
_CHUNK = 1 << 20
_OPENED = b" run opened in "
"""Every learner writes this into the application log when it begins; nothing else writes it."""


def traces_in(directory: Path) -> Traces:
    """The checkpoints, the newest logs and the size of the application log."""
    layout = RunLayout(directory)
    found, start = dict[str, object](), len(str(layout.directory)) + 1
    for folder, begin, end in (
        (layout.directory, layout.experiment_log.name, ""),
        (layout.checkpoint, "state-", ""),
        *((folder, "", ".log") for folder in _newest_passes(layout)),
    ):
        with suppress(NotADirectoryError, RefusedError), files.opened_folder(folder) as opened:
            wanted = [name for name in opened.names() if name.startswith(begin) and name.endswith(end)]
            for name, info in opened.stats(wanted).items():
                found[f"{folder}/{name}"[start:]] = (info.st_ino, info.st_size, info.st_mtime_ns)
    return found


def went_on_since(directory: Path, before: Traces) -> bool:
    """Whether another learner has gone on in a directory since its traces were taken. Files that a person
    deleted, or sets that an Evaluator measured, do not count."""
    now = dict(traces_in(directory))
    log = RunLayout(directory).experiment_log
    was, this = before.get(log.name), now.pop(log.name, None)
    if this not in (None, was) and _opened_again(log, was, this):
        return True
    return any(before.get(name) != trace for name, trace in now.items())


def _newest_passes(layout: RunLayout) -> Iterator[RunPath]:
    """The folder of the newest epoch of each split, by its number."""
    for split in SPLITS:
        if newest := max(layout.epochs(split), default=0):
            yield layout.split_dir(split, newest)


def _opened_again(log: Path, was: object, now: object) -> bool:
    """Whether a learner has begun in the new part of the log, or in all of it if it is another file."""
    start = was[1] if isinstance(was, tuple) and isinstance(now, tuple) and _grew(was, now) else 0
    try:
        with durable.opened(log) as file:
            for offset in range(start, file.size, _CHUNK):
                begin = max(start, offset - len(_OPENED))  # the words may cross the end of a chunk
                if _OPENED in file.read(begin, min(file.size, offset + _CHUNK) - begin):
                    return True
            return False
    except OSError:
        return True


def _grew(was: tuple[int, int, int], now: tuple[int, int, int]) -> bool:
    return was[0] == now[0] and was[1] <= now[1]
