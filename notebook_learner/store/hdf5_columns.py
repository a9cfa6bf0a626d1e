"""The tensors of a file, as its manifest lists them: in columns, which take a quarter of the time of one
object for each tensor.

    name      the name of each tensor
    kind      the index of its kind in `kinds`
    offset    its beginning in the file; 0 for a compressed one
    kinds     [dtype, shape] of each kind
    also      [[7, name, ...], ...]: other names of the 8th; missing if no tensor has any
    packed    [[7, {codec, chunk, chunks}], ...]: how the 8th is compressed: the codec, the bytes of a chunk
              before compression, and the offset and the stored bytes of each chunk; missing if no
              tensor is compressed

A stranger who writes a file can make its checksums fit. So every value is compared with the others, and with
the size of the file, before it is used.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from . import hdf5_library
from .budget import LARGEST_CHUNK, TIMES
from .tensors import DTYPES, dtype_name

_PREDEFINED = {
    "float16": "IEEE_F16LE",
    "float32": "IEEE_F32LE",
    "float64": "IEEE_F64LE",
    "int8": "STD_I8LE",
    "int16": "STD_I16LE",
    "int32": "STD_I32LE",
    "int64": "STD_I64LE",
    "uint8": "STD_U8LE",
    "uint16": "STD_U16LE",
    "uint32": "STD_U32LE",
    "uint64": "STD_U64LE",
}
_MADE = ("bool", "bfloat16", "complex32", "complex64", "complex128")


def is_described(dtype: torch.dtype) -> bool:
    """Whether HDF5 has a type for a dtype.

    >>> is_described(torch.bfloat16), is_described(torch.float8_e4m3fn)
    (True, False)
    """
    name = dtype_name(dtype)
    return name in _PREDEFINED or name in _MADE


def stored_shape(dtype: torch.dtype, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the dataset; the shape of the bytes if a dtype has no HDF5 type.

    >>> stored_shape(torch.float32, (2, 3)), stored_shape(torch.bits16, (2, 3)), stored_shape(torch.bits8, ())
    ((2, 3), (2, 6), (1,))
    """
    if is_described(dtype):
        return tuple(shape)
    return (*shape[:-1], shape[-1] * dtype.itemsize) if shape else (dtype.itemsize,)


def type_of(dtype: torch.dtype) -> Any:
    """The HDF5 type of a dtype: h5py's own for bool and complex numbers."""
    import numpy as np

    h5t = hdf5_library.load().h5t

    name = dtype_name(dtype)
    if not is_described(dtype):
        return h5t.STD_U8LE
    if name in _PREDEFINED:
        return getattr(h5t, _PREDEFINED[name])
    if name == "bool":
        return h5t.py_create(np.dtype(bool), logical=True)
    if name == "bfloat16":
        return _bfloat16()
    part = {"complex32": h5t.IEEE_F16LE, "complex64": h5t.IEEE_F32LE, "complex128": h5t.IEEE_F64LE}[name]
    made = h5t.create(h5t.COMPOUND, 2 * part.get_size())
    made.insert(b"r", 0, part)
    made.insert(b"i", part.get_size(), part)
    return made


def _bfloat16() -> Any:
    """HDF5 describes any float by its bits. Every version reads this one correctly."""
    h5t = hdf5_library.load().h5t

    made = h5t.IEEE_F16LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_ebias(127)
    return made


KNOWN = {name: dtype for name, dtype in DTYPES.items() if not name.startswith("q")}
"""The dtypes a file may name: all but the quantized ones, which are stored as integers and a scale."""


MOST_DIMENSIONS = 64

_AROUND = 1 << 10
"""The bytes by which compressed noise may grow a chunk, besides a sixty-fourth of its size."""
_FAR = 1 << 62
"""Every size and place is smaller, so the sum of two of them fits into 64 bits."""

Numbers = NDArray[np.int64]


class Wrong(Exception):
    """A manifest holds something that our writer never writes."""


class Extent(NamedTuple):
    """A part of the file that belongs to a tensor."""

    offset: int
    size: int


class Packing(NamedTuple):
    """How a tensor is compressed."""

    codec: str
    chunk: int
    """Bytes of a chunk before it was compressed."""
    extents: tuple[Extent, ...]


class Entry(NamedTuple):
    """One tensor of a file."""

    name: str
    also: tuple[str, ...]
    """Other names of the same tensor."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int
    extents: tuple[Extent, ...]
    """One extent, or one for each compressed chunk."""
    codec: str = ""
    chunk: int = 0
    """Bytes of a chunk before it was compressed."""


@dataclass(frozen=True)
class Listed:
    """The tensors of a file."""

    names: list[str]
    shapes: list[tuple[int, ...]]
    dtypes: list[torch.dtype]
    also: Mapping[int, tuple[str, ...]]
    packed: Mapping[int, Packing]
    offsets: Numbers
    """The offsets of all extents, tensor after tensor, in the order of the checksums; and"""
    sizes: Numbers
    """the sizes of these extents."""

    @property
    def plain(self) -> bool:
        """Whether every tensor has only one name and is stored uncompressed."""
        return not self.also and not self.packed

    @cached_property
    def extents(self) -> tuple[Extent, ...]:
        """Of all tensors."""
        return tuple(map(Extent, self.offsets.tolist(), self.sizes.tolist()))

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The tensors one by one, which takes longer than the columns."""
        return tuple(self._entries())

    def _entries(self) -> Iterator[Entry]:
        begin = 0
        for number, (name, dtype, shape) in enumerate(zip(self.names, self.dtypes, self.shapes, strict=True)):
            how = self.packed.get(number)
            end = begin + (1 if how is None else len(how.extents))
            extents, begin = self.extents[begin:end], end
            more = () if how is None else (how.codec, how.chunk)
            nbytes = math.prod(shape) * dtype.itemsize
            yield Entry(name, self.also.get(number, ()), dtype, shape, nbytes, extents, *more)

    def owner_of(self, extent: int) -> str:
        """The name of the tensor that an extent belongs to."""
        if not self.packed:
            return self.names[extent]
        counts = [len(self.packed[i].extents) if i in self.packed else 1 for i in range(len(self.names))]
        return self.names[bisect_right(list(accumulate(counts)), extent)]

    def require_room(self, file_size: int) -> None:
        """Raise if compressed tensors take more memory than a file of this size justifies."""
        if not self.packed:
            return
        sizes = zip(self.shapes, self.dtypes, strict=True)
        claimed = sum(math.prod(shape) * dtype.itemsize for shape, dtype in sizes)
        if claimed > TIMES * file_size:
            raise Wrong(
                f"its tensors claim {claimed} bytes, more than {TIMES} times its size, as a bomb would"
            )

    def require_apart(self, others: Sequence[tuple[int, int, str]], file_size: int) -> None:
        """Raise if two tensors, or a tensor and another part of the file, share a place, or if a tensor is
        outside the file. If many tensors shared the same bytes, they would take more memory than the file is
        long."""
        used = np.flatnonzero(self.sizes)
        numbers = np.concatenate([used, -1 - np.arange(len(others))])
        offsets = np.concatenate([self.offsets[used], np.array([other[0] for other in others], np.int64)])
        sizes = np.concatenate([self.sizes[used], np.array([other[1] for other in others], np.int64)])
        order = np.argsort(offsets, kind="stable")
        numbers, offsets, ends = numbers[order], offsets[order], (offsets + sizes)[order]

        def whose(place: int) -> str:
            number = int(numbers[place])
            return others[-1 - number][2] if number < 0 else repr(self.owner_of(number))

        outside = np.flatnonzero(ends > file_size)
        if len(outside):
            raise Wrong(f"{whose(outside[0])} lies outside the file")
        shared = np.flatnonzero(offsets[1:] < ends[:-1])
        if len(shared):
            raise Wrong(f"{whose(shared[0])} and {whose(shared[0] + 1)} lie in the same place")


def listed_in(columns: dict[str, Any]) -> Listed:
    """Read the tensors of a manifest, and check everything that can be checked without the file.

    Raises:
        Wrong: with the reason.

    >>> found = listed_in(
    ...     {"name": ["w"], "kind": [0], "offset": [4096], "kinds": [["float32", [2, 3]]]}
    ... )
    >>> found.names, found.shapes, found.sizes.tolist()
    (['w'], [(2, 3)], [24])
    """
    names = member(columns, "name", list)
    if not {str}.issuperset(map(type, names)):
        raise Wrong("a name that is not a text")
    which, places = member(columns, "kind", list), member(columns, "offset", list)
    if not len(names) == len(which) == len(places):
        raise Wrong(f"{len(names)} names, {len(which)} kinds and {len(places)} offsets of tensors")
    kinds = [_kind(item, which, names, number) for number, item in enumerate(member(columns, "kinds", list))]
    if not _are_numbers(which, len(kinds)):
        raise Wrong("a tensor of a kind that is not there")
    if not _are_numbers(places, _FAR):
        name, found = next((n, p) for n, p in zip(names, places, strict=True) if not _are_numbers([p], _FAR))
        raise Wrong(f"tensor {name[:200]!r}: offset is no size: {str(found)[:40]}")
    also = {number: _others(item) for number, item in _numbered(columns, "also", len(names))}
    every = [*names, *[name for others in also.values() for name in others]] if also else names
    if len(set(every)) != len(every):
        raise Wrong("one name for two tensors")
    packed = {}
    for number, item in _numbered(columns, "packed", len(names)):
        packed[number] = _packing(item, kinds[which[number]].nbytes, names[number])
    sizes = np.array([kind.nbytes for kind in kinds], np.int64)[np.array(which, np.int64)]
    offsets = np.array(places, np.int64)
    if packed:
        offsets, sizes = _spread(offsets, sizes, packed)
    shapes, dtypes = [kind.shape for kind in kinds], [kind.dtype for kind in kinds]
    return Listed(names, [shapes[k] for k in which], [dtypes[k] for k in which], also, packed, offsets, sizes)


class _Kind(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    nbytes: int


def _kind(item: Any, which: list[Any], names: list[str], number: int) -> _Kind:
    """A dtype and a shape. An error names the first tensor of this kind."""
    try:
        if type(item) is not list or len(item) != 2 or type(item[0]) is not str or type(item[1]) is not list:
            raise Wrong("a kind that is not a dtype and a shape")
        dtype, shape = KNOWN.get(item[0]), _shape(item[1])
        if dtype is None:
            raise Wrong(f"an unknown dtype, {item[0][:40]!r}")
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes >= _FAR:
            raise Wrong("a shape beyond any memory")
        return _Kind(dtype, shape, nbytes)
    except Wrong as error:
        name = next((name for name, kind in zip(names, which, strict=True) if kind == number), "")
        raise Wrong(f"tensor {name[:200]!r}: {error}") from None


def _shape(sizes: list[Any]) -> tuple[int, ...]:
    if len(sizes) > MOST_DIMENSIONS:
        raise Wrong(f"{len(sizes)} dimensions")
    if not _are_numbers(sizes, _FAR):
        raise Wrong("a shape that is not a list of sizes")
    if math.prod(size for size in sizes if size) >= _FAR:
        raise Wrong("a shape beyond any memory")
    return tuple(sizes)


def _others(item: list[Any]) -> tuple[str, ...]:
    if not item or not {str}.issuperset(map(type, item)):
        raise Wrong("a name that is not a text")
    return tuple(item)


def _packing(item: list[Any], nbytes: int, name: str) -> Packing:
    try:
        if len(item) != 1 or not isinstance(item[0], dict):
            raise Wrong("compressed without a description")
        codec, chunk = member(item[0], "codec", str), whole(item[0], "chunk")
        if codec not in ("gzip", "zstd"):
            raise Wrong(f"an unknown compression, {codec[:40]!r}")
        extents = tuple([_chunk(part) for part in member(item[0], "chunks", list)])
        if not 0 < chunk <= nbytes or len(extents) != -(-nbytes // chunk):
            raise Wrong("its chunks do not make its bytes")
        longest = chunk + (chunk >> 6) + _AROUND
        if chunk > LARGEST_CHUNK or not all(0 < extent.size <= longest for extent in extents):
            raise Wrong("a chunk larger than any that is written, or an empty one")
        return Packing(codec, chunk, extents)
    except Wrong as error:
        raise Wrong(f"tensor {name[:200]!r}: {error}") from None


def _chunk(part: Any) -> Extent:
    if not isinstance(part, dict):
        raise Wrong("a chunk without a description")
    return Extent(whole(part, "offset"), whole(part, "stored"))


def _spread(offsets: Numbers, sizes: Numbers, packed: Mapping[int, Packing]) -> tuple[Numbers, Numbers]:
    """The extents, with those of the chunks in the places of compressed tensors."""
    every: list[tuple[int, int]] = []
    for number, plain in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
        every.extend(packed[number].extents if number in packed else [plain])
    return np.array(list(map(itemgetter(0), every)), np.int64), np.array(
        [size for _, size in every], np.int64
    )


def _numbered(columns: dict[str, Any], key: str, count: int) -> Iterator[tuple[int, list[Any]]]:
    """The items of a column that only some tensors are in, in order, each with the number of its tensor."""
    last = -1
    for item in member(columns, key, list) if key in columns else ():
        if type(item) is not list or not item or not _are_numbers(item[:1], count) or item[0] <= last:
            raise Wrong(f"an invalid entry in {key}")
        last = item[0]
        yield last, item[1:]


def _are_numbers(values: list[Any], end: int) -> bool:
    """Whether all values are whole numbers from 0 to below `end`."""
    return not values or (set(map(type, values)) == {int} and min(values) >= 0 and max(values) < end)


def member(item: dict[str, Any], key: str, kind: type) -> Any:
    """The value of a key in a JSON object; it must be of this type."""
    value = item.get(key)
    if type(value) is not kind:
        raise Wrong(f"no {key}")
    return value


def whole(item: dict[str, Any], key: str) -> int:
    """A size or a place in a JSON object."""
    value = item.get(key)
    if type(value) is not int or not 0 <= value < _FAR:
        raise Wrong(f"{key} is no size: {str(value)[:40]}")
    return value
