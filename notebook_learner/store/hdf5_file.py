"""Makes the pieces of an HDF5 file from tensors; libhdf5 never opens a file."""

from __future__ import annotations

import marshal
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .budget import TENSOR, fits, too_many
from .durable import digest_of
from .files import Bytes
from .hdf5_codecs import Codec, Squeezed, kept_plain, squeezed
from .hdf5_image import Dataset, Image, build, dataset_paths, room_for, well_placed
from .hdf5_manifest import SCHEMA, header
from .json_text import to_text
from .tensors import bytes_of, dtype_name, memories_of
from .tree import Packed

REMEMBERED = 16
"""The number of structures whose image is kept: model, optimizer, scheduler and state of a few learners."""

_AROUND = 110
"""The bytes of the manifest's text without its tree, its tensors and their checksums."""
_DIGEST = 32
_PER_TENSOR = 20 + _DIGEST
"""The bytes for each tensor: its checksum, its offset, and a comma."""
_FAR = (1 << 63) - 1
"""The offset with the most digits."""
_FEW = 16
"""The number of entries of a tree whose texts are kept one by one: groups, state, ... of an optimizer."""

_LONG = 1 << 20
"""The most characters of such a text: a longer one would take memory between checkpoints."""

Key = tuple[object, ...]


@dataclass(frozen=True)
class Written:
    """A file's bytes, in order."""

    pieces: list[Bytes]
    size: int
    digest: str
    text: bytes
    """The manifest, and"""
    room: int
    """the bytes that it takes."""


class Structure:
    """Parts that are equal for all states with the same names, dtypes and shapes: they are made only once."""

    def __init__(self, paths: Sequence[tuple[str, ...]], tensors: Sequence[Tensor]) -> None:
        self._datasets = [
            Dataset(names, tensor.dtype, tuple(tensor.shape))
            for names, tensor in zip(paths, tensors, strict=True)
        ]
        self._columns = _columns(self._datasets)
        self._length = len(self._columns) + _PER_TENSOR * len(paths) + _AROUND
        self._known: _Around | None = None
        self._texts: dict[str, tuple[bytes, str]] = {}

    def around(self, text: int) -> _Around:
        """The bytes around the tensors of a file, and around a text of this length in its manifest."""
        asked = room_for(text + self._length)
        known = self._known
        if known is None or known.asked != asked:
            image, room = well_placed(self._datasets, asked)
            described = _described(image, self._columns, [places[0] for places in image.places])
            known = self._known = _Around(image, described, asked, room)
        return known

    def text_of(self, tree: Any) -> str:
        """A tree as JSON. Parts that are equal to those of the last tree keep their text."""
        if type(tree) is not dict or len(tree) > _FEW:
            return self._part("", tree)
        parts = [f"{to_text(key)}:{self._part(key, item)}" for key, item in tree.items()]
        return f"{{{','.join(parts)}}}"

    def _part(self, key: str, tree: Any) -> str:
        """Compare without `==`, for which 1, 1.0 and True are equal. Costs a quarter of making the text."""
        same = marshal.dumps(tree, 2)
        found = self._texts.get(key)
        if found is not None and found[0] == same:
            return found[1]
        text = to_text(tree)
        if len(self._texts) >= _FEW:
            self._texts.clear()
        if len(text) <= _LONG:
            self._texts[key] = (same, text)
        return text


@dataclass(frozen=True, slots=True)
class _Around:
    """The parts that files of one structure share."""

    image: Image
    described: str
    asked: int
    """The bytes that the manifest needs, and"""
    room: int
    """the bytes that it has."""


class _Structures:
    """The structures that were written last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Structure] = OrderedDict()

    def find(
        self,
        names: Sequence[tuple[str, ...]],
        also: Sequence[tuple[int, tuple[str, ...]]],
        tensors: list[Tensor],
    ) -> Structure:
        key = (
            tuple(names),
            tuple(also),
            tuple([tensor.dtype for tensor in tensors]),
            tuple([tensor.shape for tensor in tensors]),
        )
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                found = Structure(dataset_paths(names, also), tensors)
            self._kept[key] = found
            if len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
            return found


STRUCTURES = _Structures()


def written(
    structure: Structure, tensors: Sequence[Tensor], tree: Any, rounded: Mapping[str, Any], what: str
) -> Written:
    """A file whose tensors are stored as they are: their memory is part of the pieces, not copied.

    Raises:
        CheckpointError: `what` holds more single values than a reader accepts.
    """
    text, more = structure.text_of(tree), _rounded(rounded)
    around = structure.around(len(text) + len(more))
    made = _assembled(around.image, around.described, text, more, around.room, memories_of(tensors))
    return _readable(made, len(tensors), tree, what)


def written_compressed(
    paths: Sequence[tuple[str, ...]], value: Packed, rounded: Mapping[str, Any], codec: Codec, what: str
) -> Written:
    """A file whose tensors are compressed if that is worth it and the file does not become a bomb."""
    datasets: list[Dataset] = []
    buffers: list[Bytes] = []
    plain = list(map(bytes_of, value.tensors))
    packed = [
        squeezed(data, tensor.shape[0], codec) if tensor.ndim and number not in value.copied else None
        for number, (data, tensor) in enumerate(zip(plain, value.tensors, strict=True))
    ]
    for number in kept_plain([data.nbytes for data in plain], packed, value.copied):
        packed[number] = None
    for names, tensor, data, found in zip(paths, value.tensors, plain, packed, strict=True):
        shape = tuple(tensor.shape)
        if found is None:
            datasets.append(Dataset(names, tensor.dtype, shape))
            buffers.append(data)
        else:
            datasets.append(Dataset(names, tensor.dtype, shape, codec, found.chunks, found.rows))
            buffers.extend(found.chunks)
    text, more = to_text(value.tree), _rounded(rounded)
    columns = _columns(datasets)
    longest = _packing(datasets, packed, [[_FAR] * max(1, len(dataset.chunks)) for dataset in datasets])
    length = _AROUND + len(text) + len(more) + len(columns) + len(longest) + _PER_TENSOR * len(datasets)
    size = room_for(length + _DIGEST * len(buffers))
    image = build(datasets, size)
    offsets = [
        0 if dataset.codec else places[0] for dataset, places in zip(datasets, image.places, strict=True)
    ]
    described = _described(image, columns, offsets, _packing(datasets, packed, image.places))
    made = _assembled(image, described, text, more, size, buffers)
    return _readable(made, len(value.tensors), value.tree, what)


def _packing(
    datasets: Sequence[Dataset], packed: Sequence[Squeezed | None], places: Sequence[Sequence[int]]
) -> str:
    """The manifest's text for how tensors are compressed."""
    items = []
    for number, (dataset, found, offsets) in enumerate(zip(datasets, packed, places, strict=True)):
        if found is None:
            continue
        chunks = [
            {"offset": offset, "stored": len(chunk)}
            for offset, chunk in zip(offsets, found.chunks, strict=True)
        ]
        items.append([number, {"codec": dataset.codec, "chunk": found.chunk, "chunks": chunks}])
    return f',"packed":{to_text(items)}' if items else ""


def _assembled(
    image: Image, described: str, tree: str, rounded: str, size: int, buffers: Sequence[Bytes]
) -> Written:
    from xxhash import xxh3_128_digest  # `digest_of`, in one call

    digests = b"".join(map(xxh3_128_digest, buffers)).hex()
    text = f'{described}{rounded}"tree":{tree},"digests":"{digests}"}}'.encode()
    manifest = text.ljust(size, b"\0")
    if len(manifest) != size:
        raise AssertionError("the manifest is longer than its room")
    digest = digest_of(manifest)
    numbered = [manifest, *buffers]
    pieces: list[Bytes] = [header(image.size, image.manifest, size, digest)]
    pieces.extend([numbered[part] if isinstance(part, int) else part for part in image.parts])
    return Written(pieces, image.size, digest, text, size)


def _described(image: Image, columns: str, offsets: Sequence[int], packing: str = "") -> str:
    """The manifest's text before the part in which states of one structure differ."""
    tensors = f'{columns},"offset":[{",".join(map(str, offsets))}]{packing}'
    return f'{{"schema":{SCHEMA},"metadata":"{image.digest}","tensors":{{{tensors}}},'


def _readable(made: Written, tensors: int, tree: Any, what: str) -> Written:
    if not fits(made.text, made.size - made.room, TENSOR * tensors):
        raise too_many(tree, what)
    return made


def _rounded(rounded: Mapping[str, Any]) -> str:
    return f'"rounded":{to_text(rounded)},' if rounded else ""


def _columns(datasets: Sequence[Dataset]) -> str:
    """The manifest's text for tensors, without their places and without the braces around it."""
    kinds: dict[tuple[torch.dtype, tuple[int, ...]], int] = {}
    which = [kinds.setdefault((dataset.dtype, dataset.shape), len(kinds)) for dataset in datasets]
    columns: dict[str, Any] = {
        "kinds": [[dtype_name(dtype), list(shape)] for dtype, shape in kinds],
        "name": [dataset.paths[0] for dataset in datasets],
        "kind": which,
    }
    also = [[number, *dataset.paths[1:]] for number, dataset in enumerate(datasets) if dataset.paths[1:]]
    if also:
        columns["also"] = also
    return to_text(columns)[1:-1]
