"""Checkpoints as gzipped MessagePack, the format that gives Burn's NamedMpkGz its name.

`gunzip` and a MessagePack library of any language read it:

    {"format": "notebook_learner", "schema": 1, "tree": ..., "tensors": [
        {"name": "encoder/weight", "dtype": "float32", "shape": [2, 3], "data": [bin, bin, ...]}, ...]}

`tree` is the value, as `notebook_learner.store.tree` describes it; {"$tensor": 7} in it is the eighth of
`tensors`, and an integer of more than 64 bits is {"$int": "-0x1f..."}. `name` says, for people, where the
tensor was found first. `data` is the tensor's memory, little-endian and row-major, cut into pieces of at most
1 GiB, since MessagePack holds no piece of 4. The keys come in this order; nothing but nil, bool, int, float,
str, array, map and, in `data`, bin is used. Text is UTF-8; a lone surrogate is encoded like any other.

Two promises let a reader refuse a decompression bomb before it unpacks it. Nothing is compressed to less than
half of its size. And everything but the tensors' bytes is stored uncompressed, so there are not more values
than the file has bytes. A tensor in another order of dimensions, which a reader copies, is not compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..store.budget import (
    KEY,
    LIST,
    MAP,
    TIMES,
    VALUE,
    room,
    too_many,
    weight_of_string,
    weight_of_tree,
)
from ..store.durable import Reader, digest_of_all
from ..store.files import Bytes
from ..store.hdf5_manifest import damaged
from ..store.tensors import DTYPES, bytes_of, dtype_name, nbytes_of
from ..store.tree import Malformed, Packed, outlined, pack, unpack
from .recorder import Decoded, Encoded

SCHEMA = 1
LEVEL = 1
"""In weights only zeros repeat, so zlib looks only for runs (Z_RLE): as small as level 6, and 4 times as
fast."""
_PIECE = 16 << 20
"""Bytes of a tensor in one bin that is written."""
_MOST_PIECE = 1 << 30
_SEGMENT = 4 << 20
"""Bytes that are compressed at a time."""
_SMALL = 4096
"""Tensors up to this size are stored as they are: the five bytes more of each segment are not worth it."""
_STORED = 65535
"""The most bytes in a stored block of deflate."""
_READ = 1 << 20
_DEEPEST = 500
_MOST_DIMENSIONS = 64
_GZIP_HEADER = b"\x1f\x8b\x08\x00\0\0\0\0\x00\xff"
_LAST_BLOCK = b"\x01\x00\x00\xff\xff"


class NamedMpkGzRecorder:
    """Checkpoints as gzipped MessagePack (`model-3.mpk.gz`), for readers in other languages.

    Every bit is kept, and equal values make equal files. Saving takes many times as long as with
    `Hdf5Recorder`.

    >>> import torch
    >>> from notebook_learner.store import durable
    >>> recorder = NamedMpkGzRecorder()
    >>> encoded = recorder.encode({"weight": torch.ones(2, 3), "lr": 0.1})
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "model-1.mpk.gz"
    >>> durable.write_new(path, encoded.pieces, encoded.size)
    >>> with durable.opened(path) as file:
    ...     recorder.decode(file).value
    {'weight': tensor([[1., 1., 1.],
            [1., 1., 1.]]), 'lr': 0.1}
    """

    suffix = "mpk.gz"
    exact = True

    def __repr__(self) -> str:
        return "NamedMpkGzRecorder()"

    def encode(self, value: Any, /, what: str = "state") -> Encoded:
        """Encode a nested value as the bytes of a file.

        Raises:
            CheckpointError: it holds a value that no file can hold; the message names its place in `what`.
        """
        packed = pack(value, what)
        names = ["/".join(path) for path in packed.names]
        pieces = list(_gzipped(_document(packed, names)))
        size = sum(map(len, pieces))
        if _weight(packed.tree, names, packed.tensors) > room(size):
            raise too_many(packed.tree, what)
        return Encoded(pieces, size, digest_of_all(pieces))

    def decode(self, file: Reader, /) -> Decoded:
        """Decode the value, after every byte of the file was checked.

        Raises:
            DamagedError: the file is damaged or not a checkpoint; nothing of it was used.
        """
        tree, tensors, digest = _read(file, meta=False)
        return _decoded(file, tree, tensors, digest, TIMES * file.size)

    def outline(self, file: Reader, /) -> Decoded:
        """Decode the value with empty tensors (on the "meta" device) instead of the real ones, also for
        arrays and sparse tensors. This reads and unpacks the whole file, but takes no memory for tensors."""
        tree, tensors, digest = _read(file, meta=True)
        try:
            tree = outlined(tree, tensors)
        except (Malformed, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise damaged(file, f"its tree is malformed: {error}") from error
        return _decoded(file, tree, tensors, digest)


def _decoded(file: Reader, tree: Any, tensors: list[Tensor], digest: str, room: int | None = None) -> Decoded:
    try:
        return Decoded(unpack(tree, tensors, room), digest)
    except (Malformed, RecursionError) as error:
        raise damaged(file, f"its tree is malformed: {error}") from error


# Writing ---------------------------------------------------------------------------------------------


def _weight(tree: Any, names: Sequence[str], tensors: Sequence[Tensor]) -> int:
    """At least the weight that a reader will count."""
    described = [
        [name, dtype_name(tensor.dtype), *tensor.shape] for name, tensor in zip(names, tensors, strict=True)
    ]
    around = (2 * MAP + 4 * KEY) * (len(tensors) + 1)
    return weight_of_tree(tree) + weight_of_tree(described) + around


def _document(packed: Packed, names: Sequence[str]) -> Iterator[tuple[Bytes, bool]]:
    """The MessagePack in pieces, and for each whether it will be compressed."""
    out = bytearray(_map_header(4))
    for item in ("format", "notebook_learner", "schema", SCHEMA, "tree", packed.tree, "tensors"):
        _write(out, item)
    out += _array_header(len(names))
    yield out, False
    for number, (name, tensor) in enumerate(zip(names, packed.tensors, strict=True)):
        data = bytes_of(tensor)
        out = bytearray(_map_header(4))
        described = ("name", name, "dtype", dtype_name(tensor.dtype), "shape", list(tensor.shape), "data")
        for item in described:
            _write(out, item)
        starts = range(0, data.nbytes, _PIECE)
        out += _array_header(len(starts))
        yield out, False
        for start in starts:
            piece = data[start : start + _PIECE]
            yield b"\xc6" + struct.pack(">I", piece.nbytes), False
            yield piece, piece.nbytes > _SMALL and number not in packed.copied


def _write(out: bytearray, node: Any) -> None:
    if node is None:
        out += b"\xc0"
    elif isinstance(node, bool):
        out += b"\xc3" if node else b"\xc2"
    elif isinstance(node, int):
        _write_int(out, node)
    elif isinstance(node, float):
        out += b"\xcb" + struct.pack(">d", node)
    elif isinstance(node, str):
        text = node.encode("utf-8", "surrogatepass")
        short = len(text) < 32
        out += (bytes([0xA0 | len(text)]) if short else b"\xdb" + struct.pack(">I", len(text))) + text
    elif isinstance(node, list):
        out += _array_header(len(node))
        for item in node:
            _write(out, item)
    else:
        out += _map_header(len(node))
        for key, item in node.items():
            _write(out, key)
            _write(out, item)


def _write_int(out: bytearray, number: int) -> None:
    if -32 <= number < 128:
        out += struct.pack(">b", number)
    elif -(1 << 63) <= number < 1 << 63:
        out += b"\xd3" + struct.pack(">q", number)
    else:  # the tree has no longer integers
        out += b"\xcf" + struct.pack(">Q", number)


def _map_header(count: int) -> bytes:
    return bytes([0x80 | count]) if count < 16 else b"\xdf" + struct.pack(">I", count)


def _array_header(count: int) -> bytes:
    return bytes([0x90 | count]) if count < 16 else b"\xdd" + struct.pack(">I", count)


def _gzipped(parts: Iterable[tuple[Bytes, bool]]) -> Iterator[bytes]:
    """A gzip file whose bytes do not depend on the time or the machine."""
    crc = size = 0
    waiting = bytearray()
    yield _GZIP_HEADER
    for data, compress in parts:
        crc, size = zlib.crc32(data, crc), size + len(data)
        if not compress:
            waiting += data
            if len(waiting) >= _SEGMENT:
                yield _stored(waiting)
                waiting = bytearray()
            continue
        if waiting:
            yield _stored(waiting)
            waiting = bytearray()
        for start in range(0, len(data), _SEGMENT):
            yield _deflated(memoryview(data)[start : start + _SEGMENT])
    yield _stored(waiting)
    yield _LAST_BLOCK + struct.pack("<II", crc, size & 0xFFFFFFFF)


def _deflated(data: memoryview) -> bytes:
    """A segment of a deflate stream that refers to nothing before it and ends with a whole byte."""
    made = _squeezed(data)
    if len(data) > TIMES * len(made):  # a reader would refuse it as a bomb
        kept = len(data) // TIMES + 1
        made = _stored(data[:kept]) + _squeezed(data[kept:])
    return made


def _squeezed(data: memoryview) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
    return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)


def _stored(data: Bytes) -> bytes:
    """Bytes as they are, in blocks of a deflate stream."""
    blocks = []
    for start in range(0, len(data), _STORED):
        block = data[start : start + _STORED]
        blocks.append(struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF) + block)
    return b"".join(blocks)


# Reading ---------------------------------------------------------------------------------------------


class _Wrong(Exception):
    """A file holds something that our writer never writes."""


def _read(file: Reader, *, meta: bool) -> tuple[Any, list[Tensor], str]:
    """The tree, the tensors (on the meta device, if asked) and the digest of a file."""
    source = _Unzipped(file)
    parser = _Parser(source, file.size)
    where = ""
    try:
        count = _begun(parser)
        tree = parser.keyed("tree")
        parser.expect("tensors")
        tensors = []
        for index in range(parser.array_of(count)):
            where = f"tensor {index}: "
            tensors.append(_tensor(parser, source, meta))
        where = ""
        source.finish()
    except _Wrong as error:
        raise damaged(file, f"{where}{error}") from error
    except zlib.error as error:
        raise damaged(file, f"{where}it cannot be unpacked: {error}") from error
    except RecursionError:
        raise damaged(file, "its tree is nested too deep") from None
    return tree, tensors, source.digest


def _begun(parser: _Parser) -> int:
    """Read what comes before the tree; return the largest possible number of tensors."""
    try:
        found = parser.map_of() == 4 and parser.keyed("format") == "notebook_learner"
    except _Wrong as error:
        raise _Wrong(f"it is no checkpoint of this format: {error}") from error
    if not found:
        raise _Wrong("it is no checkpoint of this format")
    schema = parser.keyed("schema")
    if schema != SCHEMA:
        raise _Wrong(
            f"it was written in version {str(schema)[:40]} of the format, and this program knows {SCHEMA}"
        )
    return parser.nodes


def _tensor(parser: _Parser, source: _Unzipped, meta: bool) -> Tensor:
    if parser.map_of() != 4:
        raise _Wrong("it is no tensor")
    parser.takes(MAP + 4 * (KEY - VALUE))
    if not isinstance(parser.keyed("name"), str):
        raise _Wrong("its name is no text")
    name = parser.keyed("dtype")
    dtype = DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None or dtype_name(dtype).startswith("q"):
        raise _Wrong(f"its dtype is unknown: {str(name)[:40]!r}")
    shape = parser.keyed("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > _MOST_DIMENSIONS
        or any(type(length) is not int or not 0 <= length < 1 << 62 for length in shape)
    ):
        raise _Wrong("its shape is not valid")
    size = nbytes_of(dtype, shape)
    if size > source.left:
        raise _Wrong(f"it claims {size} bytes, more than the file can hold")
    try:
        tensor = torch.empty(shape, dtype=dtype, device="meta" if meta else "cpu")
    except (RuntimeError, TypeError) as error:
        raise _Wrong(f"its shape is not valid: {error}") from error
    parser.expect("data")
    _fill(parser, source, size, None if meta else bytes_of(tensor))
    return tensor


def _fill(parser: _Parser, source: _Unzipped, size: int, into: memoryview | None) -> None:
    done = 0
    for _ in range(parser.array_of(parser.nodes)):
        length = parser.bin_of()
        if length > min(size - done, _MOST_PIECE):
            raise _Wrong(f"it has more bytes than its shape has room for, which are {size}")
        for data in source.stream(length):
            if into is not None:
                into[done : done + len(data)] = data
            done += len(data)
    if done != size:
        raise _Wrong(f"it has {done} bytes, and its shape asks for {size}")


class _Unzipped:
    """The unpacked bytes of a gzip file, in order, and never more than the file's size allows."""

    def __init__(self, file: Reader) -> None:
        self._file = file
        self._offset = 0
        self._packed: Bytes = b""
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._data: bytes = b""
        self._at = 0
        self.left = TIMES * file.size
        """The number of bytes that may still be read."""
        from xxhash import xxh3_128

        self._state = xxh3_128()

    @property
    def digest(self) -> str:
        return str(self._state.hexdigest())

    def take(self, size: int) -> bytes:
        """The next bytes."""
        end = self._at + size
        if end <= len(self._data):
            data = self._data[self._at : end]
            self._at = end
            self.left -= size
            return data
        return b"".join(self.stream(size))

    def stream(self, size: int) -> Iterator[memoryview]:
        """The next bytes, in pieces as they are unpacked."""
        if size > self.left:
            raise _Wrong(f"it claims to hold {size} bytes more than its size can")
        while size:
            if self._at == len(self._data):
                self._data, self._at = self._more(), 0
            part = memoryview(self._data)[self._at : self._at + size]
            self._at += len(part)
            self.left -= len(part)
            size -= len(part)
            yield part

    def finish(self) -> None:
        """Check that nothing follows, and that the checksum fits."""
        if self._at < len(self._data) or self._unpack():
            raise _Wrong("something follows its end")
        if not self._unpacker.eof:
            raise _Wrong("it was cut short")
        if self._unpacker.unused_data or self._offset != self._file.size:
            raise _Wrong("something follows its end")

    def _more(self) -> bytes:
        data = self._unpack()
        if not data:
            raise _Wrong("it ends too soon")
        return data

    def _unpack(self) -> bytes:
        """At most so many bytes in one read; empty at the end."""
        while not self._unpacker.eof:
            if not self._packed:
                size = min(_READ, self._file.size - self._offset)
                self._packed = self._file.read(self._offset, size)
                self._offset += size
                self._state.update(self._packed)
            ended = not self._packed
            data = self._unpacker.decompress(self._packed, _READ)
            self._packed = self._unpacker.unconsumed_tail
            if data or ended:
                return data
        return b""


class _Parser:
    """Parses the part of MessagePack that the format uses. It does not trust a length in the file: lists
    grow as their items come, and number and memory of the values are limited by the size of the file."""

    def __init__(self, source: _Unzipped, size: int) -> None:
        self._source = source
        self.nodes = size
        """The number of values that may still come."""
        self._room = room(size)

    def keyed(self, key: str) -> Any:
        """The value of the key that must come next."""
        self.expect(key)
        return self.value(0)

    def expect(self, key: str) -> None:
        """Read a key."""
        found = self.value(_DEEPEST)
        if found != key:
            raise _Wrong(f"there should be {key!r}, and there is {str(found)[:40]!r}")

    def takes(self, weight: int) -> None:
        """Count memory before it is taken."""
        self._room -= weight
        if self._room < 0:
            raise _Wrong("it holds more single values than a file of its size may")

    def map_of(self) -> int:
        return self._count(0x80, 0xDE, "a map")

    def array_of(self, most: int) -> int:
        count = self._count(0x90, 0xDC, "an array")
        if count > most:
            raise _Wrong("it claims more values than its size can hold")
        return count

    def bin_of(self) -> int:
        kind = self._byte()
        if kind not in (0xC4, 0xC5, 0xC6):
            raise _Wrong("its data is no bin")
        return int(self._number("BHI"[kind - 0xC4]))

    def value(self, depth: int) -> Any:
        """Any value but a bin."""
        if depth > _DEEPEST:
            raise _Wrong("its tree is nested too deep")
        kind = self._byte()
        if kind < 0x80 or kind >= 0xE0:
            return kind if kind < 0x80 else kind - 256
        if kind < 0x90 or kind in (0xDE, 0xDF):
            return self._map(kind - 0x80 if kind < 0x90 else self._number("HI"[kind - 0xDE]), depth + 1)
        if kind < 0xA0 or kind in (0xDC, 0xDD):
            return self._array(kind - 0x90 if kind < 0xA0 else self._number("HI"[kind - 0xDC]), depth + 1)
        if kind < 0xC0 or kind in (0xD9, 0xDA, 0xDB):
            return self._text(kind - 0xA0 if kind < 0xC0 else self._number("BHI"[kind - 0xD9]))
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        raise _Wrong(f"its tree holds a value of a kind that does not belong there, {kind:#x}")

    def _map(self, count: int, depth: int) -> Any:
        found: dict[str, Any] = {}
        self.takes(MAP)
        for _ in range(count):
            self.takes(KEY - VALUE)
            key = self.value(_DEEPEST)
            if not isinstance(key, str) or key in found:
                raise _Wrong("its tree has a key that is no text, or that comes twice")
            found[key] = self.value(depth)
        return found

    def _array(self, count: int, depth: int) -> list[Any]:
        found = []
        self.takes(LIST)
        for _ in range(count):
            found.append(self.value(depth))
        return found

    def _text(self, size: int) -> str:
        try:
            text = self._source.take(size).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise _Wrong(f"its text is no UTF-8: {error.reason}") from None
        self.takes(weight_of_string(text))
        return text

    def _count(self, few: int, many: int, what: str) -> int:
        kind = self._byte()
        if few <= kind < few + 16:
            return kind - few
        if kind in (many, many + 1):
            return int(self._number("HI"[kind - many]))
        raise _Wrong(f"{what} is missing")

    def _byte(self) -> int:
        self.nodes -= 1
        if self.nodes < 0:
            raise _Wrong("it holds more values than bytes")
        self.takes(VALUE)
        return self._source.take(1)[0]

    def _number(self, kind: str) -> Any:
        layout = struct.Struct(f">{kind}")
        return layout.unpack(self._source.take(layout.size))[0]


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = dict(zip([0xCA, 0xCB, *range(0xCC, 0xD4)], "fdBHIQbhiq", strict=True))
