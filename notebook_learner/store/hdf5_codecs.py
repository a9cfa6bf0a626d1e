"""Compresses tensors if it is worth it, and never unpacks more bytes than a file declares."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from ..errors import CheckpointError
from .budget import LARGEST_CHUNK, TIMES

Codec = Literal["gzip", "zstd"]
CODECS = ("gzip", "zstd")
WORTH = 0.95
"""Data that does not shrink below this part of its size is stored as it is."""
_LEVELS = {"gzip": 1, "zstd": 3}
_STEP = 1 << 20


class Unpackable(ValueError):
    """The compressed bytes are not what the file declares."""


@dataclass(frozen=True, slots=True)
class Squeezed:
    """A tensor's bytes, compressed in chunks of so many rows of its first dimension."""

    chunks: tuple[bytes, ...]
    rows: int
    chunk: int
    """Bytes of a chunk before compression. The last chunk may have fewer; for gzip, HDF5 wants it filled with
    zeros."""


def squeezed(data: memoryview, rows: int, codec: Codec) -> Squeezed | None:
    """Compress the bytes of a tensor of so many rows; None if that is not worth it."""
    if not rows or not data.nbytes:
        return None
    row = data.nbytes // rows
    if row > LARGEST_CHUNK:
        return None
    count = -(-data.nbytes // (LARGEST_CHUNK // row * row))
    each = -(-rows // count)
    size = each * row
    chunks = []
    for start in range(0, data.nbytes, size):
        chunks.append(_packed(data[start : start + size], size, codec))
    if sum(map(len, chunks)) >= WORTH * data.nbytes:
        return None
    return Squeezed(tuple(chunks), each, size)


def kept_plain(
    sizes: Sequence[int], found: Sequence[Squeezed | None], copied: Collection[int] = ()
) -> set[int]:
    """Choose tensors that are stored as they are although they shrink, so that the file is not a bomb. These
    are the ones that shrink most. There are enough of them if all tensors, and those that a reader copies
    once more, take no more memory than a reader accepts.

    >>> small = Squeezed((b"x" * 10,), 1, 1000)
    >>> kept_plain([1000, 1000, 1000], [small, small, small])
    {0, 1}
    """
    stored = [
        size if one is None else sum(map(len, one.chunks)) for size, one in zip(sizes, found, strict=True)
    ]
    missing = sum(sizes) + sum(sizes[number] for number in copied) - TIMES * sum(stored)
    plain = set[int]()
    for number in sorted(range(len(sizes)), key=lambda at: stored[at] - sizes[at]):
        if missing <= 0:
            break
        plain.add(number)
        missing -= TIMES * (sizes[number] - stored[number])
    return plain


def unpack_into(data: bytearray, into: memoryview, codec: str, chunk: int) -> None:
    """Unpack one chunk. It must give exactly the bytes asked for, and with gzip zeros up to `chunk`."""
    try:
        if codec == "gzip":
            _inflate(data, into, chunk)
        else:
            _unzstd(data, into)
    except zlib.error as error:
        raise Unpackable(str(error)) from error


def require(codec: Codec) -> None:
    """Whether what a compression needs is installed."""
    if codec == "zstd":
        _zstandard()


def _packed(part: memoryview, size: int, codec: Codec) -> bytes:
    if codec == "gzip":
        deflate = zlib.compressobj(_LEVELS[codec])
        return deflate.compress(part) + deflate.compress(bytes(size - part.nbytes)) + deflate.flush()
    return cast(bytes, _zstandard().ZstdCompressor(level=_LEVELS[codec]).compress(part))


def _inflate(data: bytearray, into: memoryview, chunk: int) -> None:
    inflate = zlib.decompressobj()
    sink = _Sink(into, chunk)
    with memoryview(data) as view:
        for start in range(0, len(view), _STEP):
            rest: bytes | memoryview = view[start : start + _STEP]
            while True:
                piece = inflate.decompress(rest, min(_STEP, sink.left + 1))
                sink.take(piece)
                rest = inflate.unconsumed_tail
                if inflate.eof or not (rest or piece):
                    break
    if not inflate.eof or inflate.unused_data:
        raise Unpackable("compressed bytes that do not end where they should")
    sink.finish()


def _unzstd(data: bytearray, into: memoryview) -> None:
    zstandard = _zstandard()
    window = max(1 << 10, 1 << (into.nbytes - 1).bit_length())  # it allocates as much as a frame declares
    sink = _Sink(into, into.nbytes)
    try:
        decompressor = zstandard.ZstdDecompressor(max_window_size=window)
        with decompressor.stream_reader(data, closefd=False) as stream:
            while piece := stream.read(min(_STEP, sink.left + 1)):
                sink.take(piece)
    except zstandard.ZstdError as error:
        raise Unpackable(str(error)) from error
    sink.finish()


class _Sink:
    """Takes unpacked bytes, and refuses more than fit."""

    def __init__(self, into: memoryview, chunk: int) -> None:
        self._into = into
        self._done = 0
        self._chunk = chunk

    @property
    def left(self) -> int:
        return self._chunk - self._done

    def take(self, piece: bytes) -> None:
        if len(piece) > self.left:
            raise Unpackable("it unpacks to more than it declares")
        room = max(0, self._into.nbytes - self._done)
        if room:
            self._into[self._done : self._done + min(room, len(piece))] = piece[:room]
        if any(piece[room:]):
            raise Unpackable("its last chunk is not filled up with zeros")
        self._done += len(piece)

    def finish(self) -> None:
        if self.left:
            raise Unpackable("it unpacks to less than it declares")


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise CheckpointError(
            "compression 'zstd' needs a package that is not installed: pip install zstandard"
        ) from None
    return zstandard
