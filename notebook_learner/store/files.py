"""Every call of the store to the file system. Nothing else in the package opens, moves or deletes a
file of a run, so a test can fail, cut or record the Nth of these calls and nothing escapes it.

Callers write `files.rename(...)`, never `from .files import rename`: what a test puts here is then
what they call.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

Bytes = bytes | bytearray | memoryview

_EXTRA = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_PLAIN_ONLY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)


def create(path: Path) -> int:
    """A new file to write to; one that is in the way is an error."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _EXTRA, 0o666)


def open_to_append(path: Path, *, fresh: bool = False) -> int:
    """A file that grows at its end; `fresh` empties it first."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _EXTRA
    return os.open(path, flags | (os.O_TRUNC if fresh else 0), 0o666)


def open_to_read(path: Path) -> int:
    """A file to read. In a run from a stranger, a link that leads elsewhere is refused, and a pipe or a
    device instead of waited for."""
    descriptor = os.open(path, os.O_RDONLY | _PLAIN_ONLY | _EXTRA)
    if not _is_plain(descriptor):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return descriptor


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
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _EXTRA)
    try:
        with suppress(PermissionError):  # Windows and some network file systems
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file another name in one step, in place of whatever had it."""
    os.replace(source, target)


def truncate(path: Path, size: int) -> None:
    """Cut a file."""
    os.truncate(path, size)


def unlink(path: Path) -> None:
    """Delete a file; one that is not there is no mistake."""
    path.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Make a directory and those above it."""
    path.mkdir(parents=True, exist_ok=True)


def remove_directory(path: Path) -> None:
    """Delete an empty directory."""
    path.rmdir()


def names_in(path: Path) -> list[str]:
    """The names in a directory, sorted; none where there is no such directory."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def _is_plain(descriptor: int) -> bool:
    import stat

    return stat.S_ISREG(os.fstat(descriptor).st_mode)
