"""The layout of a run's directory, which is Burn's: its paths, and the passes, sets and logs in it."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from ..errors import ConfigurationError, a_kind
from . import files
from .run_folder import RefusedError, RunFolder, RunPath, is_below

Split = Literal["train", "valid"]
SPLITS: tuple[Split, ...] = ("train", "valid")

TEST = "test"
"""The folder of the evaluated sets, and the beginning of their names if they are used as a split:
"test/clean"."""

FOLDERS = (*SPLITS, TEST, "checkpoint", "start", "branches", "asked")
"""The names of all folders that a run makes."""

_EPOCH = re.compile(r"epoch-([1-9][0-9]*)")
_LONGEST = 255  # bytes a file name may have on every common file system
_LONGEST_SET = 200  # its folder has a longer name for a moment
_NOT_IN_FOLDERS = '/\\:*?"<>|'  # on Windows, where a run may be copied to


class RunLayout:
    """The artifact directory of one run.

    >>> layout = RunLayout("runs/digits")
    >>> layout.metric_log("train", 3, "Learning Rate").as_posix()
    'runs/digits/train/epoch-3/Learning_Rate.log'
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = directory if is_below(directory) else RunFolder(directory).root

    @property
    def experiment_log(self) -> RunPath:
        """The application log: one line for each event."""
        return self.directory / "experiment.log"

    @property
    def checkpoint(self) -> RunPath:
        """The folder of the checkpoint files."""
        return self.directory / "checkpoint"

    @property
    def start(self) -> RunPath:
        """The folder of the state that the run begins with."""
        return self.directory / "start"

    @property
    def asked(self) -> RunPath:
        """The folder of what was measured afterwards, in the same layout."""
        return self.directory / "asked"

    @property
    def branches(self) -> RunPath:
        """The folder of the lines that the run has left."""
        return self.directory / "branches"

    def split_dir(self, split: Split, epoch: int) -> RunPath:
        """The folder of one pass: one epoch of one split."""
        return self.directory / split / f"epoch-{epoch}"

    def metric_log(self, split: Split, epoch: int, name: str) -> RunPath:
        """The log of one metric in one pass."""
        return self.split_dir(split, epoch) / file_name(name)

    def require_plain(self) -> None:
        """Refuse, before the first write, a directory with a link, say, at a place to which the run writes.

        Raises:
            RefusedError: one of these names is something else.
        """
        for folder in FOLDERS:
            files.require_plain(self.directory / folder, folder=True)
        files.require_plain(self.experiment_log)

    def test_dir(self, name: str) -> RunPath:
        """The folder of an evaluated set."""
        mistake = check_set_name(name)
        if mistake is not None:
            raise ConfigurationError([mistake], "this set cannot be evaluated")
        return self.directory / TEST / name

    def tests(self) -> Iterator[tuple[str, RunPath]]:
        """Every evaluated set with its folder; other things in the folder are skipped."""
        root = self.directory / TEST
        for name in names_if_folder(root):
            if check_set_name(name) is None and (root / name).is_dir():
                yield name, root / name

    def last_epoch(self) -> int:
        """The last epoch that has a folder now; 0 if no epoch has one.

        To list the folders of one split and then of the other, call this first and skip later epochs.
        Otherwise an epoch that begins in between has a validation without its training.
        """
        return max((epoch for split in SPLITS for epoch in self.epochs(split)), default=0)

    def passes(self) -> Iterator[tuple[Split, int, RunPath]]:
        """Every pass that has a folder on disk; other things in the directory are skipped."""
        last = self.last_epoch()
        for split in SPLITS:
            for epoch in self.epochs(split):
                folder = self.split_dir(split, epoch)
                if epoch <= last and folder.is_dir():
                    yield split, epoch, folder

    def epochs(self, split: Split) -> Iterator[int]:
        """The numbers of all items that have the name of an epoch's folder, also if they are not folders."""
        for name in names_if_folder(self.directory / split):
            if match := _EPOCH.fullmatch(name):
                yield int(match[1])

    def __repr__(self) -> str:
        return f"RunLayout({os.fspath(self.directory)!r})"


def names_if_folder(path: Path) -> list[str]:
    """The names in a directory, sorted; empty if it is not a directory. A check before the listing would not
    help: a run that goes back in another process may delete it between the two."""
    try:
        return files.names_in(path)
    except (NotADirectoryError, RefusedError):
        return []


def is_inside(path: Path, directory: os.PathLike[str]) -> bool:
    """Whether a path, with its links followed, leads to something in the directory."""
    here, top = os.fspath(path), os.fspath(directory)
    while len(here) > len(top) and not os.path.islink(here):  # resolving costs ten times as much
        here = os.path.dirname(here)
    return here == top or Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory))


def log_files(folder: RunPath) -> list[RunPath]:
    """The metric logs in a folder, sorted; empty if there is no such folder."""
    return [folder / name for name in names_if_folder(folder) if name.endswith(".log")]


def file_name(metric_name: str) -> str:
    """The log file's name of a metric, as Burn names it.

    >>> file_name("Top-K Accuracy @ TopK(5)")
    'Top-K_Accuracy_@_TopK(5).log'
    """
    mistake = check_metric_name(metric_name)
    if mistake is not None:
        raise ConfigurationError([mistake])
    return _file_name(metric_name)


def check_metric_name(name: object) -> str | None:
    """What is wrong with a metric's name, in one line; None when it can name a file.

    >>> check_metric_name("AUROC [macro]")
    >>> print(check_metric_name("../Loss"))
    the metric name '../Loss' contains '/', so its log would leave the run's directory; use '-' or a space
    """
    if not isinstance(name, str):
        return f"a metric's name is {name!r}, {a_kind(name)}; it must be a string, for it names a file"
    if not name.strip():
        return f"the metric name {name!r} is empty, and its log needs a file name; give it a word"
    for character in "/\\":
        if character in name:
            return (
                f"the metric name {name!r} contains {character!r}, so its log would leave the run's "
                "directory; use '-' or a space"
            )
    if name.startswith("."):
        return (
            f"the metric name {name!r} starts with a dot, so its log would be hidden; start it with a letter"
        )
    return _check_characters(name)


def check_set_name(name: object) -> str | None:
    """What is wrong with the name of a set to evaluate, in one line; None when it can name a folder.

    >>> check_set_name("clean, resized")
    >>> print(check_set_name("a/b"))
    the name of a set is 'a/b', which contains '/'; it names a folder, so leave that out
    """
    if not isinstance(name, str):
        return f"the name of a set is {name!r}, {a_kind(name)}; it must be a string"
    said = f"the name of a set is {name!r}, which"
    if not name or name != name.strip():
        return f"{said} is empty or has spaces around it; it names a folder, so give it a word"
    if name.startswith(".") or name.endswith("."):
        return f"{said} starts or ends with a dot; it names a folder, so begin and end it with a letter"
    odd = _odd_character(name) or next((c for c in name if c in _NOT_IN_FOLDERS), None)
    if odd is not None:
        return f"{said} contains {odd!r}; it names a folder, so leave that out"
    if len(name.encode()) > _LONGEST_SET:
        return f"{said} has {len(name.encode())} bytes, over {_LONGEST_SET}; shorten it"
    return None


def _odd_character(name: str) -> str | None:
    return next((c for c in name if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")), None)


def _check_characters(name: str) -> str | None:
    odd = _odd_character(name)
    if odd is not None:
        return f"the metric name {name!r} contains {odd!r}, which cannot stand in a file name; leave it out"
    length = len(_file_name(name).encode())
    if length > _LONGEST:
        return f"the metric name {name!r} makes a file name of {length} bytes, over {_LONGEST}; shorten it"
    return None


def same_file(name: str, other: str) -> bool:
    """Whether two metric names would share a log file, here or on a system that ignores case (macOS).

    >>> same_file("Learning Rate", "Learning_Rate"), same_file("Loss", "loss"), same_file("Loss", "Accuracy")
    (True, True, False)
    """
    return _folded(name) == _folded(other)


def _file_name(name: str) -> str:
    return name.replace(" ", "_") + ".log"


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", _file_name(name)).casefold()


def sync_logs(layout: RunLayout, first_epoch: int, last_epoch: int) -> None:
    """Wait until the logs of these epochs are on the disk, and the names that lead to them."""
    touched = False
    for split in SPLITS:
        for epoch in range(first_epoch, last_epoch + 1):
            touched |= _sync_folder(layout.split_dir(split, epoch))
        if touched and (root := layout.directory / split).is_dir():
            files.sync_directory(root)
    if touched:
        files.sync_directory(layout.directory)
        files.sync_directory(layout.directory.parent)


def _sync_folder(folder: RunPath) -> bool:
    logs = log_files(folder)
    with suppress(FileNotFoundError):  # a rewind has removed these steps meanwhile
        for path in logs:
            _sync_file(path)
        if logs:
            files.sync_directory(folder)
    return bool(logs)


def _sync_file(path: Path) -> None:
    descriptor = files.open_to_read(path)
    try:
        files.sync(descriptor)
    finally:
        files.close(descriptor)
