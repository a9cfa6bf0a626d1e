"""The directory of a run, which is kept open, and the paths below it, on which no link is followed.

A run may come from a stranger, in a zip that holds links: `train` may lead to the reader's own project,
`experiment.log` to their ~/.bashrc. So a path below a run's directory is a `RunPath`. It is walked one name
at a time from the directory's descriptor, and each name is opened with O_NOFOLLOW. An item that is neither a
plain file nor a directory is refused with an error that names it.

The path down to the directory is the user's, and may hold links: `runs -> /data/runs`.

Only `files.py` uses these functions; all other modules have a `RunPath` and call `files`.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from ..errors import NoDescriptorsError, StoreError, enough_descriptors

if TYPE_CHECKING:
    _Path = Path
else:
    _Path = type(Path())  # before Python 3.12 a class cannot be derived from `Path` itself

Identity = tuple[int, int]
"""The identity of a directory in its file system: it stays the same when the directory is moved."""

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_STRANGE = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.EPERM)
"""The system's errors for a link, a pipe without a reader, a socket, and a directory instead of a file."""
_CLOSED = -1
_LONGEST = 200
"""The most characters of a link's target in an error message."""


class RefusedError(StoreError, OSError):
    """A run's directory holds something that a run does not keep there; it was neither read nor changed.

    It is also an OSError: it waits and is tried again, like a write that the disk refuses.
    """

    def __str__(self) -> str:
        return str(self.strerror)


def opened_number(
    path: str | os.PathLike[str], flags: int, mode: int = 0o777, dir_fd: int | None = None
) -> int:
    """`os.open`, whose error says what to do if no descriptor is left."""
    try:
        return os.open(path, flags, mode, dir_fd=dir_fd)
    except OSError as error:
        raise enough_descriptors(error, path) from None


class Opened:
    """An open directory, which is closed when its last user lets it go, in any thread.

    A learner's last files may be written after the garbage collector has run. Then the directory is closed
    already.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        number, self.number = self.number, _CLOSED
        with suppress(OSError):
            os.close(number)


class RunFolder:
    """The directory of a run.

    Before the first write, the directory is found by its path each time. From the first write on it is kept
    open: if another directory is put in its place later, the run never writes to that one.

    >>> import tempfile
    >>> folder = RunFolder(tempfile.mkdtemp())
    >>> folder.identity is None
    True
    >>> opened = folder.hold()
    >>> folder.is_in_place()
    True
    """

    __slots__ = ("_depth", "_held", "_lock", "_where", "identity", "path", "pinned")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.identity: Identity | None = None
        """The identity of the directory that is held; None if no directory is held."""
        self.pinned = False
        """Whether no other directory may replace it before `let_go`, even if it was moved or removed."""
        self._depth = len(self.path.parts)
        self._held: Opened | None = None
        self._where = ""
        self._lock = threading.Lock()

    @property
    def root(self) -> RunPath:
        """The directory itself, to which names are added."""
        root = RunPath(self.path)
        root.folder = self
        return root

    def hold(self) -> Opened:
        """The open directory, which is held from here on.

        Raises:
            OSError: it was moved (ESTALE, if it is pinned) or removed (ENOENT). The next call holds the
                directory that is there then, unless this one is pinned.
            RefusedError: another directory is in its place.
        """
        with self._lock:
            if self._held is None:
                self._where = os.path.abspath(self.path)
                self._held = Opened(opened_number(self._where, _DIRECTORY))
                self.identity = _identity_of(os.fstat(self._held.number))
                return self._held
            if not self.is_in_place():
                gone = self._gone()
                if not self.pinned:
                    self._held = self.identity = None
                raise gone
            if self._held.number == _CLOSED:
                self._held = Opened(opened_number(self._where, _DIRECTORY))
            return self._held

    def found(self) -> Opened:
        """The open directory to read from: the held one, or else the one at the path."""
        held = self._held
        if held is None or held.number == _CLOSED:
            return Opened(opened_number(self.path, _DIRECTORY))
        return held

    def is_in_place(self) -> bool:
        """Whether its path still leads to the directory that is held. Costs one `stat`, 2 us."""
        try:
            return self.identity == _identity_of(os.stat(self._where))
        except OSError:
            return False

    def let_go(self) -> None:
        """Hold it no longer: the next write holds the directory that is there then."""
        with self._lock:
            self._held = self.identity = None
            self.pinned = False

    def make(self) -> None:
        """Make the directory and those above it, if they do not exist."""
        with self._lock:
            if self._held is not None and not self.is_in_place():
                gone = self._gone()
                if self.pinned:
                    raise gone
                self._held = self.identity = None
        # The link's target: perhaps the target was moved.
        Path(os.path.realpath(self.path)).mkdir(parents=True, exist_ok=True)

    def names_to(self, path: Path) -> tuple[str, ...]:
        """The names that lead from the directory to a path in it."""
        parts, mine = path.parts, self.path.parts
        if parts[: self._depth] != mine or ".." in parts[self._depth :]:
            raise ValueError(f"{str(path)!r} does not lie in {str(self.path)!r}")
        return parts[self._depth :]

    def _gone(self) -> OSError:
        """The error for a missing directory: ESTALE, if it was moved and may come back."""
        self._require_gone()
        held, code = self._held, errno.ENOENT
        if self.pinned and held is not None and held.number != _CLOSED and os.fstat(held.number).st_nlink:
            code = errno.ESTALE
        return OSError(code, os.strerror(code), str(self.path))

    def _require_gone(self) -> None:
        if os.path.exists(self._where):
            raise RefusedError(
                errno.ESTALE,
                f"{str(self.path)!r} is not the directory any more that this run wrote to, and nothing is "
                "written to it: the run's own was moved or removed, and another one put in its place. Put "
                "it back, or go on elsewhere with learner.fork('another directory')",
                str(self.path),
            )

    def __repr__(self) -> str:
        return f"RunFolder({os.fspath(self.path)!r})"


class RunPath(_Path):
    """A path in a run's directory that knows its run's directory.

    `/`, `with_name` and `parent` return such a path, too, as long as it is in the directory. All other
    operations return a path that `files` does not accept.

    >>> log = RunFolder("runs/digits").root / "train" / "epoch-1" / "Loss.log"
    >>> is_below(log.parent), is_below(log.parents[3])
    (True, False)
    """

    __slots__ = ("folder",)
    folder: RunFolder

    def __truediv__(self, name: Any) -> RunPath:
        return self._of(super().__truediv__(name))

    def with_name(self, name: str) -> RunPath:
        return self._beside(super().with_name(name))

    @property
    def parent(self) -> RunPath:
        """The folder of the path; for the run's directory, a path of the user."""
        return self._beside(super().parent)

    def with_segments(self, *segments: Any) -> Path:
        """Python from 3.12 on makes all other paths with this."""
        return Path(*segments)

    def __reduce__(self) -> Any:
        """Another process opens the directory again."""
        return Path, (str(self),)

    def _beside(self, path: Path) -> RunPath:
        """A path next to the directory or above it is the user's."""
        is_top = is_below(self) and len(self.parts) == len(self.folder.path.parts)
        return cast(RunPath, Path(path)) if is_top else self._of(path)

    def _of(self, path: Path) -> RunPath:
        if not is_below(self):  # made by `absolute`, say, before Python 3.12
            return cast(RunPath, Path(path))
        made = path if type(path) is RunPath else RunPath(path)
        made.folder = self.folder
        return made


def below(path: Path) -> RunPath:
    """A path that `files` accepts. If the user names a single file, its folder is the user's: the path to the
    file may hold links, but the file itself must not be a link."""
    if is_below(path):
        return path
    return RunFolder(Path(path).parent).root / path.name


def is_below(path: object) -> TypeGuard[RunPath]:
    """Whether a path knows its run's directory. Before Python 3.12 another path may have the same type."""
    return isinstance(path, RunPath) and hasattr(path, "folder")


def folder_of(path: RunPath, *, reading: bool = False) -> Opened:
    """The open directory of a path."""
    if path == path.folder.path:
        raise ValueError(f"{str(path)!r} is the run's directory itself, which lies in one of the user's")
    return _walked(path, -1, reading=reading)


def directory_at(path: RunPath, *, reading: bool = False, make: bool = False) -> Opened:
    """The open directory at a path; it is made if it does not exist and `make` is true."""
    return _walked(path, None, reading=reading, make=make)


def explained(error: OSError, path: Path, above: Opened, wanted: int = stat.S_IFREG) -> OSError:
    """The error with the whole path, and with the kind of the item there if that is the reason."""
    if isinstance(error, NoDescriptorsError):
        return enough_descriptors(error, path)
    if error.errno in _STRANGE:
        with suppress(OSError):
            there = os.stat(path.name, dir_fd=above.number, follow_symlinks=False)
            if stat.S_IFMT(there.st_mode) != wanted:
                return refused(path, there, above)
    return OSError(error.errno, error.strerror, str(path))


def refused(path: Path, there: os.stat_result, above: Opened) -> RefusedError:
    """The error that says what is at a path, and what to do."""
    kind = stat.S_IFMT(there.st_mode)
    if kind == stat.S_IFREG and there.st_nlink > 1:
        return RefusedError(
            errno.EMLINK,
            f"{str(path)!r} has another name elsewhere (a hard link), so what is written to it would change "
            "that file as well. Put a copy of it in its place: copy it to another name, and move that back",
            str(path),
        )
    what = _KINDS.get(kind, "something strange")
    if kind == stat.S_IFLNK:
        with suppress(OSError):
            what += f" to {os.readlink(path.name, dir_fd=above.number)[:_LONGEST]!r}"
    return RefusedError(
        errno.EINVAL,
        f"{str(path)!r} is {what}, where a run keeps a plain file or directory of its own; it was neither "
        "read nor changed. Remove it, or move it away",
        str(path),
    )


def _walked(path: RunPath, upto: int | None, *, reading: bool, make: bool = False) -> Opened:
    folder = path.folder
    names = folder.names_to(path)
    here = _begun(folder, reading, make)
    for place, name in enumerate(names[:upto]):
        try:
            here = Opened(_stepped(name, here.number, make))
        except OSError as error:
            where = folder.path.joinpath(*names[: place + 1])
            raise explained(error, where, here, stat.S_IFDIR) from None
    if upto is None and not names:  # not the descriptor that is held: two threads may list it at once
        return Opened(opened_number(".", _DIRECTORY, dir_fd=here.number))
    return here


def _begun(folder: RunFolder, reading: bool, make: bool) -> Opened:
    if reading:
        return folder.found()
    if make:
        with suppress(FileNotFoundError):
            return folder.hold()
        folder.make()
    return folder.hold()


def _stepped(name: str, above: int, make: bool) -> int:
    if make:
        with suppress(FileNotFoundError):
            return opened_number(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
    return opened_number(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)


def _identity_of(there: os.stat_result) -> Identity:
    return there.st_dev, there.st_ino
