"""Checkpoints as safetensors: every reader of such files, as the `safetensors` library, opens the tensors.

    8 bytes     the length of the header, little-endian
    header      JSON: {"__metadata__": {...}, "encoder.weight": {"dtype": "F32", "shape": [2, 3],
                "data_offsets": [0, 24]}, ...}, filled up with spaces to a multiple of 8 bytes
    data        the tensors, one after the other, the largest items first so that each is aligned

What the format has no place for is in two texts of `__metadata__`. "notebook_learner" is JSON: `schema`;
the `tree` of the value, as `notebook_learner.store.tree` describes, with {"$int": "0x1f..."} for integers of
thousands of digits; and `tensors`: of each its name here, its digest, and [dtype, shape] where the format
knows no such dtype and the tensor is stored as its bytes (U8). "notebook_learner.digest" is the digest of
everything before the data, computed with zeros in its own place; through the digests of the tensors it
covers every byte of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..store.budget import TIMES, fits, too_many
from ..store.durable import Reader, digest_of, digest_of_all
from ..store.files import Bytes
from ..store.hdf5_manifest import damaged
from ..store.json_text import parse, to_text
from ..store.tensors import DTYPES, bytes_of, dtype_name, nbytes_of
from ..store.tree import Malformed, outlined, pack, unpack
from .recorder import Decoded, Encoded

SCHEMA = 1
LONGEST_HEADER = 100_000_000
"""Other readers refuse a longer header."""
NAMES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
"""The format's names of dtypes; tensors of other dtypes are stored as their bytes."""

_OURS = "notebook_learner"
_DIGEST = "notebook_learner.digest"
_NO_DIGEST = "0" * 32
_MOST_DIMENSIONS = 64
_BY_DTYPE = {dtype: name for name, dtype in NAMES.items()}


class SafetensorsRecorder:
    """Checkpoints as safetensors (`model-3.safetensors`), for giving weights to other programs.

    Every bit is kept, and saving is as fast as a plain write. A file of another program, without our
    metadata, is read as a plain dict of its tensors.

    >>> import torch
    >>> from notebook_learner.store import durable
    >>> recorder = SafetensorsRecorder()
    >>> encoded = recorder.encode({"weight": torch.ones(2, 3), "lr": 0.1})
    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "model-1.safetensors"
    >>> durable.write_new(path, encoded.pieces, encoded.size)
    >>> with durable.opened(path) as file:
    ...     recorder.decode(file).value
    {'weight': tensor([[1., 1., 1.],
            [1., 1., 1.]]), 'lr': 0.1}
    """

    suffix = "safetensors"
    exact = True

    def __repr__(self) -> str:
        return "SafetensorsRecorder()"

    def encode(self, value: Any, /, what: str = "state") -> Encoded:
        """Encode a nested value as the bytes of a file; contiguous tensors on the host are not copied.

        Raises:
            CheckpointError: it holds a value that no file can hold; the message names its place in `what`.
        """
        packed = pack(value, what)
        names = _unique([".".join(path) for path in packed.names])
        buffers = [bytes_of(tensor) for tensor in packed.tensors]
        head = _header(packed.tree, names, packed.tensors, buffers)
        if len(head) > LONGEST_HEADER:
            raise CheckpointError(
                f"{what} holds {len(head)} bytes besides its tensors, and safetensors has room for "
                f"{LONGEST_HEADER}; use Hdf5Recorder, or tensors in place of long lists"
            )
        data_size = sum(data.nbytes for data in buffers)
        if not fits(head, data_size):
            raise too_many(packed.tree, what)
        start = len(head).to_bytes(8, "little") + head
        digest = digest_of(start)
        start = start.replace(_digest_text(_NO_DIGEST), _digest_text(digest), 1)
        pieces: list[Bytes] = [start, *(buffers[index] for index in _order(packed.tensors))]
        return Encoded(pieces, len(start) + data_size, digest)

    def decode(self, file: Reader, /) -> Decoded:
        """Decode the value, after every byte of the file was checked.

        Raises:
            DamagedError: the file is damaged or has another format; nothing of it was used.
        """
        header = _read_header(file)
        stored = header.stored
        tensors = [torch.empty(one.shape, dtype=one.dtype) for one in stored]
        views = [bytes_of(tensor) for tensor in tensors]
        file.fill([views[index] for index in header.order], header.start)
        for one, view in zip(stored, views, strict=True):
            if header.is_ours and digest_of(view) != one.digest:
                raise damaged(file, f"the checksum of tensor {one.name!r} does not fit")
        if not header.is_ours:
            digest = digest_of_all([header.text, *(views[index] for index in header.order)])
            return Decoded(dict(zip((one.name for one in stored), tensors, strict=True)), digest)
        return _decoded(file, header, header.tree, tensors, TIMES * file.size)

    def outline(self, file: Reader, /) -> Decoded:
        """Decode the value with empty tensors (on the "meta" device) instead of the real ones, also for
        arrays and sparse tensors. Reads only the header; for a file of another program, the digest is
        that of the header."""
        header = _read_header(file)
        tensors = [torch.empty(one.shape, dtype=one.dtype, device="meta") for one in header.stored]
        if not header.is_ours:
            named = dict(zip((one.name for one in header.stored), tensors, strict=True))
            return Decoded(named, digest_of(header.text))
        try:
            tree = outlined(header.tree, tensors)
        except (Malformed, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise damaged(file, f"its tree is malformed: {error}") from error
        return _decoded(file, header, tree, tensors)


def _decoded(
    file: Reader, header: _Header, tree: Any, tensors: list[Tensor], room: int | None = None
) -> Decoded:
    try:
        return Decoded(unpack(tree, tensors, room), header.digest)
    except (Malformed, RecursionError) as error:
        raise damaged(file, f"its tree is malformed: {error}") from error


# Writing ---------------------------------------------------------------------------------------------


def _header(
    tree: Any, names: Sequence[str], tensors: Sequence[Tensor], buffers: Sequence[memoryview]
) -> bytes:
    entries: list[list[Any]] = []
    for name, tensor, data in zip(names, tensors, buffers, strict=True):
        entry: list[Any] = [name, digest_of(data)]
        if tensor.dtype not in _BY_DTYPE:
            entry.append([dtype_name(tensor.dtype), list(tensor.shape)])
        entries.append(entry)
    ours = to_text({"schema": SCHEMA, "tree": tree, "tensors": entries})
    document: dict[str, Any] = {"__metadata__": {_DIGEST: _NO_DIGEST, _OURS: ours}}
    end = 0
    for index in _order(tensors):
        tensor, start = tensors[index], end
        end = start + buffers[index].nbytes
        known = _BY_DTYPE.get(tensor.dtype)
        document[names[index]] = {
            "dtype": known or "U8",
            "shape": list(tensor.shape) if known else [end - start],
            "data_offsets": [start, end],
        }
    text = to_text(document).encode()
    return text.ljust(-(-len(text) // 8) * 8)


def _digest_text(digest: str) -> bytes:
    """The digest's text in the header. It is unique: a quote in a text has a backslash before it."""
    return f'"{_DIGEST}":"{digest}"'.encode()


def _order(tensors: Sequence[Tensor]) -> list[int]:
    """The order in the file."""
    return sorted(range(len(tensors)), key=lambda index: -tensors[index].dtype.itemsize)


def _unique(names: Sequence[str]) -> list[str]:
    """Names that JSON readers in other languages accept, each used once."""
    used, found = {"__metadata__"}, []
    for wanted in names:
        base = wanted.encode("utf-8", "backslashreplace").decode()
        name, count = base, 1
        while name in used:
            count += 1
            name = f"{base}~{count}"
        used.add(name)
        found.append(name)
    return found


# Reading ---------------------------------------------------------------------------------------------


class _NotSafetensors(Exception):
    """A header holds something that our writer never writes."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int
    digest: str = ""


@dataclass(frozen=True, slots=True)
class _Header:
    """The header of a file, after all of it was checked."""

    text: bytearray
    """Everything before the data."""
    start: int
    stored: list[_Stored]
    """In the order of the tree's numbers, or, for a file of another program, in the order of the header."""
    tree: Any = None
    digest: str = ""

    @property
    def is_ours(self) -> bool:
        return bool(self.digest)

    @property
    def order(self) -> list[int]:
        """The order in the file."""
        return sorted(range(len(self.stored)), key=lambda i: (self.stored[i].begin, self.stored[i].end))


def _read_header(file: Reader) -> _Header:
    size = int.from_bytes(file.read(0, 8), "little")
    if size > min(LONGEST_HEADER, file.size - 8):
        raise damaged(file, f"its header claims {size} bytes, more than there are or may be")
    text = file.read(0, 8 + size)
    try:
        document = parse(text[8:], file.size - 8 - size, _object)
        return _checked(document, text, file.size - 8 - size)
    except (_NotSafetensors, ValueError) as error:
        raise damaged(file, f"its header is malformed: {error}") from error


def _checked(document: Any, text: bytearray, room: int) -> _Header:
    if not isinstance(document, dict):
        raise _NotSafetensors("it is no safetensors file")
    metadata = document.pop("__metadata__", {})
    if not isinstance(metadata, dict) or any(not isinstance(item, str) for item in metadata.values()):
        raise _NotSafetensors("its metadata is no text")
    stored = {name: _entry(name, item) for name, item in document.items()}
    _require_tiling(list(stored.values()), room)
    if _OURS not in metadata and _DIGEST not in metadata:
        return _Header(text, len(text), list(stored.values()))
    digest = metadata.get(_DIGEST, "")
    own = _digest_text(digest)
    if text.count(own) != 1 or digest_of(text.replace(own, _digest_text(_NO_DIGEST))) != digest:
        raise _NotSafetensors("its checksum does not fit")
    ours = parse(bytearray(metadata.pop(_OURS, "").encode()), room)
    if not isinstance(ours, dict) or "tree" not in ours or not isinstance(ours.get("tensors"), list):
        raise _NotSafetensors("its metadata was not written by notebook_learner")
    if ours.get("schema") != SCHEMA:
        raise _NotSafetensors(
            f"it was written in version {str(ours.get('schema'))[:40]} of the format, and this program "
            f"knows {SCHEMA}"
        )
    found = [_described(item, stored) for item in ours["tensors"]]
    if len({one.name for one in found}) != len(stored) or len(found) != len(stored):
        raise _NotSafetensors("its metadata does not list the tensors that it has")
    return _Header(text, len(text), found, ours["tree"], digest)


def _entry(name: str, item: Any) -> _Stored:
    if not isinstance(item, dict) or set(item) != {"dtype", "shape", "data_offsets"}:
        raise _NotSafetensors(f"{name[:200]!r} is no tensor")
    dtype = NAMES.get(item["dtype"]) if isinstance(item["dtype"], str) else None
    if dtype is None:
        raise _NotSafetensors(
            f"tensor {name[:200]!r} has the dtype {str(item['dtype'])[:40]!r}, which is not known here"
        )
    offsets = item["data_offsets"]
    if not _are_lengths(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _NotSafetensors(f"the offsets of tensor {name[:200]!r} are not valid")
    return _sized(_Stored(name, dtype, (), *offsets), dtype, item["shape"])


def _described(item: Any, stored: dict[str, _Stored]) -> _Stored:
    """A tensor with the values of our metadata."""
    if not isinstance(item, list) or len(item) not in (2, 3) or not all(isinstance(x, str) for x in item[:2]):
        raise _NotSafetensors("its metadata describes no tensor")
    one = stored.get(item[0])
    if one is None:
        raise _NotSafetensors(f"tensor {item[0][:200]!r} is missing")
    if len(item) == 2:
        return _Stored(one.name, one.dtype, one.shape, one.begin, one.end, item[1])
    real = item[2]
    if not isinstance(real, list) or len(real) != 2 or not isinstance(real[0], str):
        raise _NotSafetensors(f"the dtype of tensor {one.name[:200]!r} is not valid")
    dtype = DTYPES.get(real[0])
    if dtype is None or dtype in _BY_DTYPE or real[0].startswith("q") or one.dtype != torch.uint8:
        raise _NotSafetensors(f"the dtype of tensor {one.name[:200]!r} is not known here: {real[0][:40]!r}")
    return _sized(_Stored(one.name, dtype, (), one.begin, one.end, item[1]), dtype, real[1])


def _sized(one: _Stored, dtype: torch.dtype, shape: Any) -> _Stored:
    """The tensor with a shape, if the shape fits its bytes."""
    if not _are_lengths(shape) or len(shape) > _MOST_DIMENSIONS:
        raise _NotSafetensors(f"the shape of tensor {one.name[:200]!r} is not valid")
    if nbytes_of(dtype, shape) != one.end - one.begin:
        raise _NotSafetensors(
            f"tensor {one.name[:200]!r} has {one.end - one.begin} bytes, which its shape does not fit"
        )
    try:
        torch.empty(shape, dtype=dtype, device="meta")
    except (RuntimeError, TypeError) as error:
        raise _NotSafetensors(f"the shape of tensor {one.name[:200]!r} is not valid: {error}") from error
    return _Stored(one.name, dtype, tuple(shape), one.begin, one.end, one.digest)


def _require_tiling(stored: Sequence[_Stored], room: int) -> None:
    """Check that every byte of the data belongs to one tensor."""
    end = 0
    for one in sorted(stored, key=lambda one: (one.begin, one.end)):
        if one.begin != end:
            raise _NotSafetensors(f"tensor {one.name[:200]!r} begins at byte {one.begin} in place of {end}")
        end = one.end
    if end != room:
        raise _NotSafetensors(
            f"its tensors take {end} bytes, and it has {room}; it was cut short, or something follows"
        )


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _NotSafetensors("a name comes twice")
    return found
