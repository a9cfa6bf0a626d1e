"""Writes and reads whole files: a written file is on the disk, or it does not exist at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..errors import DamagedError, StoreError
from . import files
from .files import Bytes
from .run_folder import below

_Path = TypeVar("_Path", bound=Path)

BATCH = 1 << 20
"""The least bytes of one write call. One giant `writev` costs three times the CPU on ext4."""
AHEAD = 16 << 20
"""Bytes after which the disk is asked to begin: so a file of 390 MB takes three quarters of the time."""
MOST_BUFFERS = 1000
"""The system takes at most 1024 buffers in one call."""


def write_new(path: Path, pieces: Iterable[Bytes], size: int) -> None:
    """Write a new file and wait until its bytes are on the disk. If that fails there is no file."""
    with new(path, size) as file:
        file.write(pieces)


def replace(path: Path, pieces: Iterable[Bytes], size: int) -> None:
    """Replace a file: readers see the old one or the new one."""
    with replaced(path, size) as file:
        file.write(pieces)


class Writer:
    """A new file that is written at offsets."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, pieces: Iterable[Bytes], offset: int = 0) -> None:
        """Write bytes at an offset, one piece after the other."""
        begun = offset
        for batch in _batches(map(_as_bytes, pieces)):
            left = [buffer for buffer in batch if buffer.nbytes]
            while left:
                count = files.write_at(self._descriptor, left, offset)
                if not count:
                    raise OSError(errno.EIO, "the file system took no byte and gave no reason")
                offset += count
                left = _after(left, count)
            if offset - begun >= AHEAD:
                files.begin_to_sync(self._descriptor, begun, offset - begun)
                begun = offset


@contextmanager
def new(path: Path, size: int) -> Iterator[Writer]:
    """Make a new file of so many bytes. They are on the disk when the block ends; an error deletes the file.

    A failed fsync cannot be tried again on the same file (the system may have dropped the bytes), so
    every failure ends with the file deleted.
    """
    made = below(path)
    descriptor = files.create(made)
    try:
        try:
            files.allocate(descriptor, size)
            yield Writer(descriptor)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
    except BaseException:
        with suppress(OSError):
            files.unlink(made)
        raise


@contextmanager
def replaced(path: Path, size: int) -> Iterator[Writer]:
    """Make a new file that replaces the one of that name, if there is one, when the block ends."""
    target = below(path)
    temporary = temporary_name(target)
    with new(temporary, size) as file:
        yield file
    try:
        files.rename(temporary, target)
    except BaseException:
        with suppress(OSError):
            files.unlink(temporary)
        raise
    files.sync_directory(target.parent)


def temporary_name(path: _Path, token: str | None = None) -> _Path:
    """A name in the same folder (a rename does not cross file systems) that no other writer uses."""
    return path.with_name(f".{path.name}.{token or os.urandom(4).hex()}.tmp")


class Reader:
    """An open file of known size, read at offsets. A read outside it is refused."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = files.size_of(descriptor)
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> bytearray:
        """So many bytes from an offset."""
        self.require(offset, size)
        try:
            data = bytearray(size)
        except MemoryError:
            raise StoreError(
                f"{self.path}: {size:,} bytes of it do not fit into memory; free memory in this process, "
                "or end other processes, and try again"
            ) from None
        self.fill([memoryview(data)], offset)
        return data

    def fill(self, buffers: Sequence[memoryview], offset: int, size: int | None = None) -> None:
        """Fill buffers, one after the other, with the bytes from an offset; `size` is the size of all
        buffers, if it is known."""
        if size is None:
            size = sum([buffer.nbytes for buffer in buffers])
        self.require(offset, size)
        if len(buffers) <= MOST_BUFFERS:
            self._fill(buffers, offset, size)
            return
        for batch in _batches(buffers):
            size = sum([buffer.nbytes for buffer in batch])
            self._fill(batch, offset, size)
            offset += size

    def require(self, offset: int, size: int) -> None:
        """Refuse bytes that the file does not hold, before memory is allocated for them."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise DamagedError(
                f"{self.path}: it should hold bytes {offset} to {offset + size}, but the file ends at "
                f"{self.size}; it was cut short or damaged"
            )

    def _fill(self, buffers: Sequence[memoryview], offset: int, size: int) -> None:
        left, done = list(buffers), 0
        while done < size:
            count = files.read_at(self._descriptor, left, offset + done)
            if not count:
                raise DamagedError(f"{self.path}: the file was cut short while it was read")
            done += count
            left = _after(left, count) if done < size else []


@contextmanager
def opened(path: Path, folder: files.Folder | None = None) -> Iterator[Reader]:
    """Open a file to read; `folder` is its folder, if that is open already."""
    descriptor = files.open_to_read(path) if folder is None else folder.open_to_read(path)
    try:
        yield Reader(path, descriptor)
    finally:
        files.close(descriptor)


def _as_bytes(piece: Bytes) -> memoryview:
    if type(piece) is memoryview and piece.format == "B" and piece.ndim == 1:
        return piece  # it may be one of thousands of tensors
    return memoryview(piece).cast("B")


def _batches(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Lists of at least BATCH bytes (the last may have fewer), with no more buffers than a call takes."""
    batch: list[memoryview] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += piece.nbytes
        if size >= BATCH or len(batch) == MOST_BUFFERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _after(buffers: list[memoryview], count: int) -> list[memoryview]:
    """The rest of the buffers after so many bytes were taken."""
    for index, buffer in enumerate(buffers):
        if count < buffer.nbytes:
            return [buffer[count:], *buffers[index + 1 :]]
        count -= buffer.nbytes
    return []


def digest_of(*buffers: Bytes) -> str:
    """The checksum of buffers, one after the other, as 32 hexadecimal digits.

    >>> digest_of(b"one", b"two") == digest_of(b"onetwo")
    True
    """
    return digest_of_all(buffers)


def digest_of_all(buffers: Iterable[Bytes]) -> str:
    """The same, of any number of buffers."""
    from xxhash import xxh3_128  # loaded only for a checkpoint

    state = xxh3_128()
    for buffer in buffers:
        state.update(buffer)
    return state.hexdigest()
