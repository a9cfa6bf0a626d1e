"""Keeps or deletes the earlier run in a directory when a new run begins there.

The files of a run are known by their names. All other files are the user's and are never moved or deleted.
A directory that holds only the run is renamed, in one step. If it holds files of the user, too, the run's
files are first moved into a folder inside it, and then this folder is renamed. If the process is killed
meanwhile, there is either the run as it was, or that folder; `keep_beside` or `put_together` then finish
the work.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ..checkpoint import passes
from ..checkpoint.info import LABEL, PARTS
from ..errors import StoreError
from ..logger import branches
from ..remote import detached
from ..store import durable, files
from ..store.layout import SPLITS, TEST, RunLayout, log_files, names_if_folder
from ..store.run_folder import RefusedError, RunPath, below
from .asked import ASKED
from .certificate import NAME as CERTIFICATE
from .live_index import FILE

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


GATHERED = ".earlier-run"
"""The folder inside, which holds the run's files while they are moved out of a directory with other files."""

_INDEX_PIECE = re.compile(rf"\.{re.escape(FILE)}\..+\.tmp")
_CHECKPOINT = re.compile(rf"\.?(?:state|{'|'.join(PARTS)})-{LABEL.pattern}\..+|{re.escape(passes.NAME)}")
_EPOCH = re.compile(r"epoch-[1-9][0-9]*")
_SET = re.compile(r".+")
"""Any name; while the logs are written, the name begins with a dot and ends with `.tmp`."""


def holds_run(directory: Path) -> bool:
    """Whether the directory holds values or checkpoints that would be lost, or a part of them that a killed
    process had begun to move. A run that has taken no step (its first step failed, say) has left only lines
    in experiment.log. The next run adds its lines there, so such a run is not kept in a directory of its
    own."""
    return (directory / GATHERED).is_dir() or any(
        not _lies_at_the_top(path.name) for path in own_files(directory)
    )


def keep_beside(directory: Path) -> Path:
    """Move the run to the next free sibling (`digits-1`, `digits-2`, ...); return the new place.

    Raises:
        StoreError: it cannot be moved. All files are where they were, or `put_together` moves them back.
    """
    try:
        return _kept_beside(directory)
    except OSError as error:
        raise StoreError(
            f"{str(directory)!r} holds a run, which cannot be moved to a directory next to it "
            f"({error.strerror or error}). To go on with it add .resume() to the builder, to delete it "
            ".overwrite(), or give another directory"
        ) from error


def put_together(directory: Path) -> None:
    """Move back what a killed process had gathered: a learner goes on with that run."""
    directory = _inside(directory)
    gathered = directory / GATHERED
    if not gathered.is_dir():
        return
    try:
        _move(list(own_files(gathered)), gathered, directory)
        for folder, _, _ in os.walk(gathered, topdown=False):  # one may have been made for a file that stayed
            _remove_if_empty(gathered / os.path.relpath(folder, gathered))
    except OSError as error:
        raise StoreError(
            f"a part of the run in {str(directory)!r} lies in {GATHERED} and cannot be brought back: "
            f"{error.strerror or error}"
        ) from error


def drop(directory: Path) -> None:
    """Delete the run's own files, the commit file of a checkpoint first, and the folders that are then empty.

    Raises:
        StoreError: a file cannot be deleted.
    """
    directory = _inside(directory)
    try:
        put_together(directory)
        found = list(own_files(directory))
        for path in found:
            files.unlink(path)
        _remove_folders(found, directory)
    except OSError as error:
        raise StoreError(
            f"the run in {str(directory)!r} cannot be deleted, as overwrite() asks: {error.strerror or error}"
        ) from error


def own_files(directory: Path) -> Iterator[RunPath]:
    """What a run has made here, commit files first. A link counts as a file: the link is moved or
    deleted, never its target."""
    if not directory.is_dir():
        return
    layout = RunLayout(directory)
    directory = layout.directory
    checkpoints = [*_of_checkpoints(layout.checkpoint), *_of_checkpoints(layout.start)]
    yield from sorted(checkpoints, key=lambda path: not path.name.lstrip(".").startswith("state-"))
    for path in (directory / name for name in files.names_in(directory)):
        if _lies_at_the_top(path.name):
            yield path
        elif path.name in (*SPLITS, TEST):
            yield from _of_passes(path, _EPOCH if path.name in SPLITS else _SET)
        elif path.name == layout.branches.name:
            yield from _of_branches(path)
        elif path.name == layout.asked.name:
            yield from (path / name for name in names_if_folder(path) if ASKED in name)
            yield from _of_splits(path)


def _lies_at_the_top(name: str) -> bool:
    return (
        name in (FILE, CERTIFICATE, "experiment.log", *detached.FILES)
        or _INDEX_PIECE.fullmatch(name) is not None
    )


def _of_checkpoints(folder: RunPath) -> Iterator[RunPath]:
    if folder.is_symlink():
        yield folder
        return
    yield from (folder / name for name in files.names_in(folder) if _CHECKPOINT.fullmatch(name))


def _of_branches(above: RunPath) -> Iterator[RunPath]:
    """The files of the lines that the run has left."""
    if above.is_symlink():
        yield above
        return
    for folder in (above / name for name in names_if_folder(above) if branches.NAME.fullmatch(name)):
        if folder.is_symlink():
            yield folder
            continue
        yield from (folder / name for name in names_if_folder(folder) if branches.ABOUT in name)
        yield from _of_splits(folder)


def _of_splits(above: RunPath) -> Iterator[RunPath]:
    if above.is_symlink():
        yield above
        return
    for split in SPLITS:
        yield from _of_passes(above / split, _EPOCH)


def _of_passes(above: RunPath, folder_name: re.Pattern[str]) -> Iterator[RunPath]:
    """The logs in a split's epochs, or in the sets that were evaluated."""
    if above.is_symlink():
        yield above
        return
    for folder in (above / name for name in names_if_folder(above) if folder_name.fullmatch(name)):
        if folder.is_symlink():
            yield folder
        else:
            yield from log_files(folder)


# Moving ----------------------------------------------------------------------------------------------


def _kept_beside(directory: Path) -> Path:
    real = directory.resolve()  # the link's target: the link stays a link for the next run, too
    source = below(real)
    if not _may_be_renamed(real):
        inside = _inside(real)
        source = inside / GATHERED
        _refuse_other_device(real)
        files.make_directory(source)
        found = list(own_files(inside))
        _move(found, inside, source)
        _remove_folders(found, inside)
    target = _free_sibling(real)
    files.rename(source, below(target))
    files.sync_directory(real.parent)
    return _as_it_was_given(target, directory, real)


def _may_be_renamed(real: Path) -> bool:
    """Whether the directory holds only the run. The working directory of this process is not renamed,
    either: its relative paths would then lead elsewhere."""
    return not _works_in(real) and not os.path.ismount(real) and not _has_others_files(real)


def _inside(directory: Path) -> RunPath:
    """The directory that is there now, not the one that was held before: it is about to be moved."""
    return RunLayout(Path(directory)).directory


def _works_in(real: Path) -> bool:
    try:
        return Path.cwd().is_relative_to(real)
    except FileNotFoundError:  # it was deleted
        return False


def _has_others_files(real: Path) -> bool:
    inside = _inside(real)
    own: set[Path] = set(own_files(inside))
    own_folders = {above for path in own for above in path.parents}
    layout = RunLayout(real)
    own_folders |= {layout.checkpoint, layout.start}  # made before their first files are
    return any(path not in own and path not in own_folders for path in _below(inside, own_folders))


def _below(folder: Path, entered: set[Path]) -> Iterator[Path]:
    """All items in the folders that are entered; any other item is named once."""
    for name in files.names_in(folder):
        path = folder / name
        yield path
        if path in entered and path.is_dir() and not path.is_symlink():
            yield from _below(path, entered)


def _refuse_other_device(real: Path) -> None:
    """Raise, before anything is moved, if the target is on another disk: a rename cannot reach it."""
    if os.stat(real).st_dev != os.stat(real.parent).st_dev:
        raise OSError(f"{str(real.parent)!r} is on another disk")


def _move(found: list[RunPath], source: RunPath, target: RunPath) -> None:
    for path in found:
        place = target / path.relative_to(source)
        files.make_directory(place.parent)
        files.rename(path, place)
    _remove_folders(found, source)


def _remove_folders(found: list[RunPath], top: RunPath) -> None:
    """The folders that are empty now, from the inside out, but not the directory itself."""
    folders = {folder for path in found for folder in _between(path, top)}
    for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
        _remove_if_empty(folder)


def _between(path: RunPath, top: RunPath) -> Iterator[RunPath]:
    while (path := path.parent) != top:
        yield path


def _remove_if_empty(folder: RunPath) -> None:
    with suppress(OSError):
        files.remove_directory(folder)


def _free_sibling(real: Path) -> Path:
    """One more than the highest number: a later run always has a larger number, even if some were deleted."""
    numbered = re.compile(rf"{re.escape(real.name)}-([1-9][0-9]*)")
    matches = (numbered.fullmatch(name) for name in files.names_in(real.parent))
    highest = max((int(match[1]) for match in matches if match), default=0)
    return real.with_name(f"{real.name}-{highest + 1}")


def _as_it_was_given(target: Path, directory: Path, real: Path) -> Path:
    """The directory as the user wrote it (most often relative), if that leads to the same place."""
    beside = directory.with_name(target.name) if directory.name else target
    return beside if beside.parent.resolve() == real.parent else target
