"""All calls of the store to the file system. No other module of the package opens, moves or deletes a
file of a run, so a test can fail, cut or record the Nth of these calls.

All written files are below a run's directory, and no link is followed on the way there: see `run_folder`.

Callers write `files.rename(...)`, never `from .files import rename`. So they call the function that a test
puts here.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import enough_descriptors
from .run_folder import (
    Opened,
    RunPath,
    below,
    directory_at,
    explained,
    folder_of,
    is_below,
    opened_number,
    refused,
)

Bytes = bytes | bytearray | memoryview

_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Follow no link, and do not wait for the other end of a pipe."""
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)


def create(path: RunPath) -> int:
    """Make a new file to write to; an existing file is an error."""
    above = folder_of(path)
    try:
        return opened_number(
            path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666, dir_fd=above.number
        )
    except OSError as error:
        raise explained(error, path, above) from None


def open_to_append(path: RunPath, *, fresh: bool = False) -> int:
    """Open a file to append to; `fresh` empties it first."""
    descriptor = _opened_to_write(path, os.O_APPEND | os.O_CREAT)
    if fresh:
        try:
            os.ftruncate(descriptor, 0)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def open_to_read(path: Path) -> int:
    """Open a file to read. A stranger's run may hold a link that leads elsewhere, a pipe or a device: these
    are refused."""
    if is_below(path):
        return _opened_to_read(path, folder_of(path, reading=True))
    return _plain(opened_number(path, os.O_RDONLY | _PLAIN), path)


def open_directory(path: RunPath) -> int:
    """Open a directory to lock it."""
    opened = directory_at(path, reading=True)
    return os.dup(opened.number)


def close(descriptor: int) -> None:
    """Close a descriptor."""
    os.close(descriptor)


def allocate(descriptor: int, size: int) -> None:
    """Take the space now, so that a full disk fails before anything is written. Some file systems cannot do
    this; there the write fails."""
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise


def append(descriptor: int, data: Bytes) -> int:
    """Write at the end; return the number of written bytes."""
    return os.write(descriptor, data)


def write_at(descriptor: int, buffers: Sequence[Bytes], offset: int) -> int:
    """Write buffers one after the other from an offset; return the number of written bytes."""
    return os.pwritev(descriptor, buffers, offset)


def read_at(descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
    """Fill buffers one after the other from an offset; return the number of read bytes."""
    return os.preadv(descriptor, buffers, offset)


def size_of(descriptor: int) -> int:
    """The size of an open file."""
    return os.fstat(descriptor).st_size


def link_count(descriptor: int) -> int:
    """The number of names of an open file; 0 after it was deleted."""
    return os.fstat(descriptor).st_nlink


def begin_to_sync(descriptor: int, offset: int, size: int) -> None:
    """Let the disk begin with bytes that were written, so that `sync` waits for fewer. This is only a hint:
    it may do nothing, and `sync` reports the errors."""
    if hasattr(os, "posix_fadvise"):
        # "Not needed" makes Linux write them at once. Linux keeps unwritten bytes in memory.
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def sync(descriptor: int) -> None:
    """Wait until the file's bytes are on the disk."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk. On a system that cannot, this does nothing."""
    if is_below(path):
        opened = directory_at(path)
        _sync_names(opened.number)
        return
    descriptor = opened_number(
        path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )  # it is the user's directory: nothing is changed
    try:
        _sync_names(descriptor)
    finally:
        os.close(descriptor)


def rename(source: RunPath, target: RunPath) -> None:
    """Rename a file in one step; a file that has the new name is replaced."""
    here, there = folder_of(source), folder_of(target)
    try:
        os.replace(source.name, target.name, src_dir_fd=here.number, dst_dir_fd=there.number)
    except OSError as error:
        missing = error.errno == errno.ENOENT
        raise explained(error, source if missing else target, here if missing else there) from None


def move_folder(name: str, source: Folder, target: Folder) -> bool:
    """Move a folder from one directory to another. Return False if there is no such folder, or if the other
    directory has something of that name."""
    there = source.stats([name]).get(name)
    if there is None or not stat.S_ISDIR(there.st_mode) or target.stats([name]):
        return False
    try:
        os.rename(name, name, src_dir_fd=source.number, dst_dir_fd=target.number)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(source.path / name)) from None
    return True


def truncate(path: RunPath, size: int) -> None:
    """Cut a file."""
    descriptor = _opened_to_write(path, 0)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def unlink(path: RunPath) -> None:
    """Delete a file, or a link itself; do nothing if it does not exist."""
    try:
        above = folder_of(path)
    except FileNotFoundError:
        return
    try:
        os.unlink(path.name, dir_fd=above.number)
    except FileNotFoundError:
        return
    except OSError as error:
        raise explained(error, path, above) from None


def delete_all(folder: RunPath, names: Iterable[str]) -> None:
    """Delete files of a directory, as `unlink` does, but walk the path to the directory only once."""
    above = directory_at(folder)
    for name in names:
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=above.number)
        except OSError as error:
            raise explained(error, folder / name, above) from None


def make_directory(path: RunPath) -> None:
    """Make a directory and those above it."""
    directory_at(path, make=True)


def remove_directory(path: RunPath) -> None:
    """Delete an empty directory."""
    above = folder_of(path)
    try:
        os.rmdir(path.name, dir_fd=above.number)
    except OSError as error:
        raise explained(error, path, above, stat.S_IFDIR) from None


def names_in(path: Path) -> list[str]:
    """The names in a directory, sorted; empty if there is no such directory."""
    try:
        if is_below(path):
            opened = directory_at(path, reading=True)
            return sorted(os.listdir(opened.number))
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise enough_descriptors(error, path) from None


class Folder:
    """A directory in which many files are read or moved: the path to it is walked only once."""

    def __init__(self, path: Path, above: Opened | None) -> None:
        self.path = path
        self._above = above

    @property
    def number(self) -> int:
        """Its descriptor."""
        if self._above is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self.path))
        return self._above.number

    def names(self) -> list[str]:
        """The names in it; empty if there is no such directory."""
        try:
            return [] if self._above is None else os.listdir(self._above.number)
        except OSError as error:
            raise enough_descriptors(error) from None

    def stats(self, names: Iterable[str]) -> dict[str, os.stat_result]:
        """The kind of each of these names that exists; links are not followed."""
        found: dict[str, os.stat_result] = {}
        if self._above is None:
            return found
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = os.stat(name, dir_fd=self._above.number, follow_symlinks=False)
        return found

    def open_to_read(self, path: Path) -> int:
        """Open a plain file in it."""
        if self._above is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return _opened_to_read(path, self._above)


@contextmanager
def opened_folder(path: Path) -> Iterator[Folder]:
    """Open a directory to list it; it need not exist."""
    above = None
    with suppress(FileNotFoundError):
        above = directory_at(below(path), reading=True)
    yield Folder(path, above)


def _opened_to_read(path: Path, above: Opened) -> int:
    try:
        descriptor = opened_number(path.name, os.O_RDONLY | _PLAIN, dir_fd=above.number)
    except OSError as error:
        raise explained(error, path, above) from None
    return _plain(descriptor, path)


def _plain(descriptor: int, path: Path) -> int:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return descriptor


def require_plain(path: RunPath, *, folder: bool = False) -> None:
    """Refuse an existing item that is not a plain file with one name, or, if allowed, a directory."""
    above = folder_of(path, reading=True)
    with suppress(FileNotFoundError):
        there = os.stat(path.name, dir_fd=above.number, follow_symlinks=False)
        if stat.S_ISDIR(there.st_mode) if folder else stat.S_ISREG(there.st_mode) and there.st_nlink == 1:
            return
        raise refused(path, there, above)


def _opened_to_write(path: RunPath, flags: int) -> int:
    """Open a plain file with only one name to write to."""
    above = folder_of(path)
    try:
        descriptor = opened_number(path.name, os.O_WRONLY | flags | _PLAIN, 0o666, dir_fd=above.number)
    except OSError as error:
        raise explained(error, path, above) from None
    there = os.fstat(descriptor)
    if not stat.S_ISREG(there.st_mode) or there.st_nlink > 1:
        os.close(descriptor)
        raise refused(path, there, above)
    return descriptor


def _sync_names(descriptor: int) -> None:
    with suppress(PermissionError):  # Windows and some network file systems
        os.fsync(descriptor)
