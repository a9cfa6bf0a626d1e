"""Checks every byte of a run, and repairs what can be repaired."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..checkpoint.folder import CheckpointFolder
from ..errors import DamagedError, StoreError
from ..event.values import MetricInfo
from ..logger.branches import Branch, chain_to, read_branches
from ..remote.owner import alone_in
from ..store import durable, files
from ..store.layout import RunLayout, is_inside
from ..store.log_lines import LogLines
from ..store.run_folder import RunPath
from .branches import own_passes
from .claims import Claims
from .index import read_header
from .live_index import FILE
from .read_record import read_evaluations, read_record
from .run_info import RunInfo
from .run_status import logs_in
from .tables import Table, plain
from .timeline import read_timeline

_SUPERBLOCK = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True, repr=False)
class Report:
    """What a check found or a repair did, in one line each. True if nothing is wrong (any more).

    >>> report = Report("verify", "runs/digits", ("3 checkpoints",), ("Loss.log: half a line",))
    >>> print(report)
    verify runs/digits: 1 problem
      3 checkpoints
      ! Loss.log: half a line
    >>> bool(report)
    False
    """

    what: str
    directory: str
    notes: tuple[str, ...] = ()
    """What was checked or done."""
    problems: tuple[str, ...] = ()
    """What is wrong: the file, and what to do."""

    def __bool__(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        return "\n".join([self._head(), *(f"  {line}" for line in self._lines())])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return Table(
            self._head(), ("",), [(line,) for line in self._lines()], (False,), "nothing to do"
        ).html()

    def _head(self) -> str:
        count = len(self.problems)
        found = "clean" if not count else f"{count} problem{'' if count == 1 else 's'}"
        return plain(f"{self.what} {self.directory}: {found}")

    def _lines(self) -> list[str]:
        return [*map(plain, self.notes), *(f"! {plain(problem)}" for problem in self.problems)]


def verify(directory: Path, infos: Iterable[MetricInfo]) -> Report:
    """See `Artifacts.verify`."""
    notes: list[str] = []
    layout, infos = RunLayout(directory), tuple(infos)
    problems = [
        *_strange_links(directory),
        *_bad_states(layout.checkpoint, notes, "{} checkpoints complete", "no checkpoints"),
        *_bad_states(layout.start, notes, "start: {} states complete"),
        *_bad_logs(directory, infos, notes),
        *_bad_branches(directory, infos, notes),
        *_bad_index(directory / FILE),
    ]
    return Report("verify", str(directory), tuple(notes), tuple(dict.fromkeys(problems)))


def repair(directory: Path, infos: Iterable[MetricInfo], rebuild: Callable[[], None]) -> Report:
    """See `Artifacts.repair`. `rebuild` writes artifacts.h5."""
    infos = tuple(infos)
    layout = RunLayout(directory)
    done: list[str] = []
    with alone_in(directory) as alone:
        if not alone:
            raise StoreError(
                f"{str(directory)!r} is being written to by a running process; end it before repair()"
            )
        for folder in (directory, *_branch_folders(directory)):
            done += [f"cut half a line off the end of {path}" for path in _cut_logs(folder)]
        for states in (layout.checkpoint, layout.start):
            if states.is_dir() and not states.is_symlink():
                done += CheckpointFolder(states).repair()
        if list(_bad_index(directory / FILE)):
            rebuild()
            done.append("artifacts.h5 was made again from logs and checkpoints")
    return Report("repair", str(directory), tuple(done), verify(directory, infos).problems)


def _strange_links(directory: Path) -> Iterator[str]:
    home = os.path.realpath(directory)
    for here, folders, names in os.walk(directory):
        for name in (*folders, *names):
            path = os.path.join(here, name)
            if os.path.islink(path) and os.path.commonpath([os.path.realpath(path), home]) != home:
                yield f"{path} is a link that leads out of the run's directory and is not read; remove it"


def _bad_states(path: RunPath, notes: list[str], told: str, none: str = "") -> Iterator[str]:
    folder = CheckpointFolder(path)
    try:
        known = folder.list()
        leftovers = folder.leftovers()
    except (DamagedError, OSError) as error:
        yield str(error)
        return
    whole = 0
    for info in known:
        problems = folder.verify(info)
        whole += not problems
        yield from problems
    if known or none:
        notes.append(told.format(f"{whole} of {len(known)}") if known else none)
    for path in leftovers:
        if not is_recent_file(path):
            yield f"{path} belongs to no checkpoint; repair() deletes it"


def _bad_logs(directory: Path, infos: Iterable[MetricInfo], notes: list[str]) -> Iterator[str]:
    problems: list[str] = []
    record = read_record(directory, infos, problems)
    sets = read_evaluations(directory, infos, problems)
    read_timeline(RunLayout(directory).experiment_log, problems)
    yield from problems
    steps = sum(past.steps for past in record if past.split == "train")
    notes.append(f"{len({past.epoch for past in record})} epochs and {steps} training steps in the logs")
    if sets:
        notes.append(f"{len(sets)} evaluated set{'' if len(sets) == 1 else 's'} in the logs")
    yield from _half_lines(directory)


def _bad_branches(directory: Path, infos: Sequence[MetricInfo], notes: list[str]) -> Iterator[str]:
    problems: list[str] = []
    known = {each.name: each for each in read_branches(directory, problems)}
    for name, branch in known.items():
        try:
            chain_to(name, known)
        except DamagedError as lost:
            problems.append(str(lost))
        if is_inside(_folder_of(directory, branch), directory):
            own_passes(directory, branch, infos, problems)
    for folder in _branch_folders(directory):
        problems += _half_lines(folder)
    yield from problems
    if known:
        notes.append(f"{len(known)} branch{'' if len(known) == 1 else 'es'} that it has left")


def _branch_folders(directory: Path) -> list[Path]:
    """The folders of the branches; a link to another place is none."""
    folders = [_folder_of(directory, each) for each in read_branches(directory)]
    return [each for each in folders if is_inside(each, directory)]


def _folder_of(directory: Path, branch: Branch) -> Path:
    return Path(RunLayout(directory).branches / branch.name)


def _half_lines(directory: Path) -> Iterator[str]:
    for path in logs_in(directory):
        if not is_recent_file(path) and _whole_lines(path) is not None:
            yield f"{path} ends in half a line, which is not read; repair() cuts it off"


def is_recent_file(path: Path) -> bool:
    """Whether another process may still be writing it."""
    try:
        return time.time() - path.lstat().st_mtime < 2.0
    except OSError:
        return True


def _cut_logs(directory: Path) -> Iterator[RunPath]:
    for path in logs_in(directory):
        size = _whole_lines(path)
        if size is not None:
            files.truncate(path, size)
            yield path


def _whole_lines(path: Path) -> int | None:
    """The size of the file's whole lines, if its last line is cut."""
    try:
        with durable.opened(path) as file:
            if not file.size or file.read(file.size - 1, 1) == b"\n":
                return None
            lines = LogLines(file)
            for _ in lines:
                pass
    except (OSError, DamagedError):
        return None
    return lines.end


def _bad_index(path: Path) -> Iterator[str]:
    """Check artifacts.h5: every byte of its header, and that the rest of the file is not cut."""
    if not path.exists():
        yield f"{path} is missing; repair() makes it from logs and checkpoints"
        return
    try:
        RunInfo.from_json(Claims(read_header(path), str(path)).member("run"))
        with durable.opened(path) as file:
            start = 512
            while start < file.size and file.read(start, min(8, file.size - start)) != _SUPERBLOCK:
                start *= 2
            if start + 48 > file.size or _end_of(bytes(file.read(start, 48))) != file.size:
                yield f"{path} was cut short or damaged; repair() makes it again"
    except DamagedError as error:
        yield str(error) if "artifacts.h5" in str(error) else f"{path}: {error}"
    except OSError as error:
        yield f"{path} cannot be read: {error.strerror or error}"


def _end_of(superblock: bytes) -> int:
    """The size the file should have: the end of file address of a superblock of version 2 or 3."""
    if superblock[8] not in (2, 3):
        return -1
    return int.from_bytes(superblock[28:36], "little")
