"""Every call of the store to the file system. Nothing else in the package opens, moves or deletes a
file of a run, so a test can fail, cut or record the Nth of these calls and nothing escapes it.

What is written lies below a run's directory, and no link is followed on the way there: see `run_folder`.

Callers write `files.rename(...)`, never `from .files import rename`: what a test puts here is then
what they call.
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
"""Through no link, and without waiting for who else opens a pipe."""
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)


def create(path: RunPath) -> int:
    """A new file to write to; one that is in the way is an error."""
    above = folder_of(path)
    try:
        return opened_number(
            path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666, dir_fd=above.number
        )
    except OSError as error:
        raise explained(error, path, above) from None


def open_to_append(path: RunPath, *, fresh: bool = False) -> int:
    """A file that grows at its end; `fresh` empties it first."""
    descriptor = _opened_to_write(path, os.O_APPEND | os.O_CREAT)
    if fresh:
        try:
            os.ftruncate(descriptor, 0)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


def open_to_read(path: Path) -> int:
    """A file to read. In a run from a stranger, a link that leads elsewhere is refused, and a pipe or a
    device instead of waited for."""
    if is_below(path):
        return _opened_to_read(path, folder_of(path, reading=True))
    return _plain(opened_number(path, os.O_RDONLY | _PLAIN), path)


def open_directory(path: RunPath) -> int:
    """A directory, to lock it."""
    opened = directory_at(path, reading=True)
    return os.dup(opened.number)


def close(descriptor: int) -> None:
    """Give a descriptor back."""
    os.close(descriptor)


def allocate(descriptor: int, size: int) -> None:
    """Take the space now, so that a full disk says so before anything is written. Some file systems
    cannot; there the write will tell."""
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE:
            raise


def append(descriptor: int, data: Bytes) -> int:
    """Write at the end; how much was taken."""
    return os.write(descriptor, data)


def write_at(descriptor: int, buffers: Sequence[Bytes], offset: int) -> int:
    """Write buffers one after the other from an offset; how much was taken."""
    return os.pwritev(descriptor, buffers, offset)


def read_at(descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
    """Fill buffers one after the other from an offset; how much there was."""
    return os.preadv(descriptor, buffers, offset)


def size_of(descriptor: int) -> int:
    """The size of an open file."""
    return os.fstat(descriptor).st_size


def link_count(descriptor: int) -> int:
    """How many names an open file has; 0 once it was deleted."""
    return os.fstat(descriptor).st_nlink


def begin_to_sync(descriptor: int, offset: int, size: int) -> None:
    """Let the disk begin with bytes that were written, so that `sync` has to wait for fewer. A hint: it need
    not do anything, and what goes wrong is told by `sync`."""
    if hasattr(os, "posix_fadvise"):
        # "Not needed" is what makes Linux write them at once. It keeps what it has yet to write in memory.
        with suppress(OSError):
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)


def sync(descriptor: int) -> None:
    """Wait until the file's bytes are on the disk."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk. Not every system can: there it does nothing."""
    if is_below(path):
        opened = directory_at(path)
        _sync_names(opened.number)
        return
    descriptor = opened_number(
        path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    )  # the user's: nothing is changed
    try:
        _sync_names(descriptor)
    finally:
        os.close(descriptor)


def rename(source: RunPath, target: RunPath) -> None:
    """Give a file another name in one step, in place of whatever had it."""
    here, there = folder_of(source), folder_of(target)
    try:
        os.replace(source.name, target.name, src_dir_fd=here.number, dst_dir_fd=there.number)
    except OSError as error:
        missing = error.errno == errno.ENOENT
        raise explained(error, source if missing else target, here if missing else there) from None


def truncate(path: RunPath, size: int) -> None:
    """Cut a file."""
    descriptor = _opened_to_write(path, 0)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def unlink(path: RunPath) -> None:
    """Delete a file, or a link itself; one that is not there is no mistake."""
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
    """Delete files of a directory, as `unlink` does; what is above it is walked once, and not for each."""
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
    """The names in a directory, sorted; none where there is no such directory."""
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
    """A directory in which many files are looked at: what is above it is walked once."""

    def __init__(self, above: Opened | None) -> None:
        self._above = above

    def names(self) -> list[str]:
        """The names in it; none where there is no such directory."""
        try:
            return [] if self._above is None else os.listdir(self._above.number)
        except OSError as error:
            raise enough_descriptors(error) from None

    def stats(self, names: Iterable[str]) -> dict[str, os.stat_result]:
        """What each of these names is, as far as they are there; links are not followed."""
        found: dict[str, os.stat_result] = {}
        if self._above is None:
            return found
        for name in names:
            with suppress(FileNotFoundError):
                found[name] = os.stat(name, dir_fd=self._above.number, follow_symlinks=False)
        return found

    def open_to_read(self, path: Path) -> int:
        """A plain file in it."""
        if self._above is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return _opened_to_read(path, self._above)


@contextmanager
def opened_folder(path: Path) -> Iterator[Folder]:
    """A directory to look at; it need not be there."""
    above = None
    with suppress(FileNotFoundError):
        above = directory_at(below(path), reading=True)
    yield Folder(above)


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
    """Refuse what is there and is neither a file that has no other name nor, if so asked, a directory."""
    above = folder_of(path, reading=True)
    with suppress(FileNotFoundError):
        there = os.stat(path.name, dir_fd=above.number, follow_symlinks=False)
        if stat.S_ISDIR(there.st_mode) if folder else stat.S_ISREG(there.st_mode) and there.st_nlink == 1:
            return
        raise refused(path, there, above)


def _opened_to_write(path: RunPath, flags: int) -> int:
    """A plain file that has no other name."""
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
