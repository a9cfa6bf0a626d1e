"""The bytes around the tensors of an HDF5 file.

libhdf5 never writes to a real file here: on a full disk it ends the process (a segmentation fault, 6 of
6), and it writes 2,000 small tensors twenty times slower than the disk does. So h5py builds the file in
memory, without the tensors: they are contiguous datasets whose place is reserved and never filled. The
result is these places, and the bytes between them. The next state of the same structure uses them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import hdf5_library
from .durable import digest_of, digest_of_all
from .hdf5_columns import is_described, stored_shape, type_of
from .tensors import dtype_name, nbytes_of

MANIFEST = "manifest"
"""The dataset at the root whose name no tensor may have."""
LONGEST = 200
"""The most bytes of a name. HDF5 allows 64 KiB, but no screen shows so much."""

Keys = Sequence[str]


def dataset_paths(names: Sequence[Keys], also: Sequence[tuple[int, Keys]]) -> list[tuple[str, ...]]:
    """A path for every tensor, and several for a tensor in several places.

    >>> dataset_paths([("encoder", "weight"), ("a/b",)], [(0, ("decoder", "weight"))])
    [('encoder/weight', 'decoder/weight'), ('a%2Fb',)]
    """
    root = _Folder("")
    root.taken.add(MANIFEST)
    paths = [[root.dataset(keys)] for keys in names]
    for index, keys in also:
        paths[index].append(root.dataset(keys))
    return [tuple(found) for found in paths]


def escaped(name: str) -> str:
    """A name that HDF5 allows; `unescaped` reverses it, except for a name that was too long.

    >>> escaped("a/b"), escaped("."), escaped(""), escaped("50%")
    ('a%2Fb', '%2E', '%', '50%25')
    """
    if not name:
        return "%"
    name = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if not name.strip("."):
        name = name.replace(".", "%2E")
    encoded = name.encode("utf-8", "backslashreplace")
    if len(encoded) > LONGEST:
        return encoded[: LONGEST - 17].decode("utf-8", "ignore") + "~" + digest_of(encoded)[:16]
    return encoded.decode()


def unescaped(name: str) -> str:
    """The name before it was escaped.

    >>> unescaped("a%2Fb"), unescaped("%")
    ('a/b', '')
    """
    if name == "%":
        return ""
    return name.replace("%2E", ".").replace("%00", "\0").replace("%2F", "/").replace("%25", "%")


class _Folder:
    """A group while its names are chosen."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.taken: set[str] = set()
        self._below: dict[str, _Folder] = {}

    def dataset(self, keys: Keys) -> str:
        folder = self
        for key in keys[:-1]:
            folder = folder._folder(key)
        return folder.prefix + folder._free(keys[-1] if keys else "value")

    def _folder(self, key: str) -> _Folder:
        found = self._below.get(key)
        if found is None:
            found = self._below[key] = _Folder(f"{self.prefix}{self._free(key)}/")
        return found

    def _free(self, key: str) -> str:
        name = wanted = escaped(key)
        count = 1
        while name in self.taken:
            count += 1
            name = f"{wanted}~{count}"
        self.taken.add(name)
        return name


USER_BLOCK = 512
"""Bytes before the HDF5 file begins, which HDF5 does not use. This is the smallest size."""
ALIGNMENT = 64
"""Large tensors begin at a multiple of this."""
ALIGNED = 1 << 16
"""The least bytes of a large tensor. Smaller ones follow each other without a gap: gaps must be read and
written, too, and with 2,000 tensors that took a third of the time."""
PAGE, SOON, LATE = 4096, 64, 2048
"""The place in a page of the system's cache at which large tensors should begin. Torch's memory begins 64
bytes after the begin of a page. Copying from or to a place just before that takes a fifth longer than from or
to one a little later."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """One tensor in a file. `chunks` holds its compressed bytes. With "gzip" they become the chunks of a
    compressed dataset, each of `rows` of the first dimension, which every reader unpacks. With "zstd", for
    which HDF5 needs a plugin, they become a dataset of bytes."""

    paths: tuple[str, ...]
    dtype: torch.dtype
    shape: tuple[int, ...]
    codec: str = ""
    chunks: tuple[bytes, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Image:
    """A file without its tensors and manifest."""

    size: int
    manifest: int
    """Where the manifest begins."""
    places: tuple[tuple[int, ...], ...]
    """The beginning of each dataset: one offset, or one for each of its chunks; 0 for an empty one."""
    parts: tuple[bytes | int, ...]
    """Everything after the user block, in order: the bytes between, and the numbers of the parts: 0 is the
    manifest, then the datasets and their chunks follow, counted one after the other."""
    digest: str
    """The checksum of the bytes between."""


def build(datasets: Sequence[Dataset], room: int) -> Image:
    """Build a file for these datasets and a manifest of `room` bytes. Costs 0.1 ms a dataset."""
    memory = _Memory()
    places, manifest = _written(memory, datasets, room)
    spans = [(manifest, room, 0)]
    number = 0
    for dataset, offsets in zip(datasets, places, strict=True):
        sizes = [len(chunk) for chunk in dataset.chunks] or [nbytes_of(dataset.dtype, dataset.shape)]
        for offset, size in zip(offsets, sizes, strict=True):
            number += 1
            if size:
                spans.append((offset, size, number))
    parts = _between(memory, sorted(spans))
    digest = digest_of_all(part for part in parts if isinstance(part, bytes))
    return Image(memory.size, manifest, places, parts, digest)


def well_placed(datasets: Sequence[Dataset], room: int) -> tuple[Image, int]:
    """Build the same file, and give the manifest a little more space if that puts the large tensors in a
    better place; return the space, too."""
    image = build(datasets, room)
    large = [
        offsets[0]
        for dataset, offsets in zip(datasets, image.places, strict=True)
        if nbytes_of(dataset.dtype, dataset.shape) >= 16 * ALIGNED
    ]
    if not large or SOON <= min(large) % PAGE <= LATE:
        return image, room
    room += (SOON - min(large)) % PAGE
    return build(datasets, room), room


def _between(memory: _Memory, spans: list[tuple[int, int, int]]) -> tuple[bytes | int, ...]:
    parts: list[bytes | int] = []
    position = USER_BLOCK
    for offset, size, number in spans:
        if offset < position:
            raise AssertionError("HDF5 gave one place to two datasets")
        if offset > position:
            parts.append(memory.bytes_at(position, offset - position))
        parts.append(number)
        position = offset + size
    if memory.size > position:
        parts.append(memory.bytes_at(position, memory.size - position))
    return tuple(parts)


def _written(
    memory: _Memory, datasets: Sequence[Dataset], room: int
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Let h5py write the file to memory; return the place of each part."""
    h5py = hdf5_library.load()

    metadata = max(2048, 512 * sum(len(dataset.paths) for dataset in datasets))
    with h5py.File(
        memory,
        "w",
        libver=("v110", "v110"),
        userblock_size=USER_BLOCK,
        meta_block_size=metadata,
        alignment_threshold=ALIGNED,
        alignment_interval=ALIGNMENT,
    ) as file:
        builder = _Builder(file, memory)
        manifest = builder.manifest(room)
        added = [builder.add(dataset) for dataset in datasets]
        return tuple(builder.places(*one) for one in zip(datasets, added, strict=True)), manifest


class _Builder:
    """Makes datasets in an open HDF5 file by the low-level calls, three times as fast as the usual ones."""

    def __init__(self, file: Any, memory: _Memory) -> None:
        h5py = hdf5_library.load()
        h5d, h5p, h5t = h5py.h5d, h5py.h5p, h5py.h5t

        self.h5 = h5py
        self._memory = memory
        self._groups = {"": file.id}
        self._types: dict[torch.dtype, Any] = {}
        self._links = h5p.create(h5p.LINK_CREATE)
        self._links.set_char_encoding(h5t.CSET_UTF8)
        self._new_group = h5p.create(h5p.GROUP_CREATE)
        self._new_group.set_obj_track_times(False)
        self._plain = h5p.create(h5p.DATASET_CREATE)
        self._plain.set_layout(h5d.CONTIGUOUS)
        self._plain.set_alloc_time(h5d.ALLOC_TIME_LATE)
        self._plain.set_fill_time(h5d.FILL_TIME_NEVER)
        self._plain.set_obj_track_times(False)
        self._one = h5py.h5s.create_simple((1,))

    def manifest(self, room: int) -> int:
        h5t = self.h5.h5t
        text = h5t.C_S1.copy()
        text.set_size(room)
        text.set_strpad(h5t.STR_NULLPAD)
        text.set_cset(h5t.CSET_UTF8)
        made = self.h5.h5d.create(
            self._groups[""], MANIFEST.encode(), text, self.h5.h5s.create(self.h5.h5s.SCALAR), self._plain
        )
        return self._allocated(made)

    def add(self, dataset: Dataset) -> Any:
        """Make a dataset without a place for its bytes. HDF5 writes the description of a dataset at its
        current position, and the descriptions of all datasets should be together."""
        made = self._gzip(dataset) if dataset.codec == "gzip" else self._contiguous(dataset)
        if dataset.codec == "zstd":
            self._note(made, "codec", dataset.codec)
            self._note(made, "shape", "x".join(map(str, dataset.shape)))
        if dataset.codec == "zstd" or not is_described(dataset.dtype):
            self._note(made, "torch_dtype", dtype_name(dataset.dtype))
        for path in dataset.paths:
            folder, _, name = path.rpartition("/")
            self.h5.h5o.link(made, self._group(folder), name.encode(), lcpl=self._links)
        return made

    def places(self, dataset: Dataset, made: Any) -> tuple[int, ...]:
        """Give a dataset its place."""
        if dataset.codec == "gzip":
            return self._chunks(dataset, made)
        start = self._allocated(made)
        return tuple(start + sum(map(len, dataset.chunks[:i])) for i in range(max(1, len(dataset.chunks))))

    def _allocated(self, made: Any) -> int:
        """HDF5 finds a place for a dataset when its first value is written: one value, so that a large
        tensor takes no memory here. None for an empty one."""
        import numpy as np

        space = made.get_space()
        rank = space.get_simple_extent_ndims()
        if not space.get_simple_extent_npoints():
            return 0
        if rank:
            space.select_hyperslab((0,) * rank, (1,) * rank)
        kind = made.get_type()
        made.write(self._one, space, np.zeros(kind.get_size(), np.uint8), kind)
        return int(made.get_offset())

    def _contiguous(self, dataset: Dataset) -> Any:
        kind, shape = self.h5.h5t.STD_U8LE, tuple([sum(map(len, dataset.chunks))])
        if not dataset.codec:
            kind, shape = self._type(dataset.dtype), stored_shape(dataset.dtype, dataset.shape)
        return self.h5.h5d.create(self._groups[""], None, kind, self._space(shape), self._plain)

    def _gzip(self, dataset: Dataset) -> Any:
        shape = stored_shape(dataset.dtype, dataset.shape)
        creation = self.h5.h5p.create(self.h5.h5p.DATASET_CREATE)
        creation.set_chunk((self._rows(dataset), *shape[1:]))
        creation.set_deflate(1)
        creation.set_fill_time(self.h5.h5d.FILL_TIME_NEVER)
        creation.set_obj_track_times(False)
        kind, space = self._type(dataset.dtype), self._space(shape)
        return self.h5.h5d.create(self._groups[""], None, kind, space, creation)

    def _chunks(self, dataset: Dataset, made: Any) -> tuple[int, ...]:
        others = [0] * (len(stored_shape(dataset.dtype, dataset.shape)) - 1)
        offsets = []
        for index, chunk in enumerate(dataset.chunks):
            self._memory.last = -1
            made.write_direct_chunk((index * self._rows(dataset), *others), chunk)
            offsets.append(self._memory.place_of(chunk))
        return tuple(offsets)

    def _rows(self, dataset: Dataset) -> int:
        """The shape of a chunk that HDF5 gets."""
        return dataset.rows * stored_shape(dataset.dtype, dataset.shape)[0] // dataset.shape[0]

    def _group(self, path: str) -> Any:
        found = self._groups.get(path)
        if found is None:
            folder, _, name = path.rpartition("/")
            found = self._groups[path] = self.h5.h5g.create(
                self._group(folder), name.encode(), lcpl=self._links, gcpl=self._new_group
            )
        return found

    def _type(self, dtype: torch.dtype) -> Any:
        if dtype not in self._types:
            self._types[dtype] = type_of(dtype)
        return self._types[dtype]

    def _space(self, shape: Sequence[int]) -> Any:
        h5s = self.h5.h5s
        return h5s.create_simple(tuple(shape)) if shape else h5s.create(h5s.SCALAR)

    def _note(self, made: Any, name: str, value: str) -> None:
        """An attribute of fixed size, so that HDF5 readers find no pointers. Costs 55 us."""
        import numpy as np

        h5t = self.h5.h5t
        text = h5t.C_S1.copy()
        text.set_size(max(1, len(value)))
        text.set_strpad(h5t.STR_NULLPAD)
        attribute = self.h5.h5a.create(made, name.encode(), text, self.h5.h5s.create(self.h5.h5s.SCALAR))
        attribute.write(np.array(value.encode(), dtype=f"S{max(1, len(value))}"))


class _Memory:
    """A file for h5py that takes memory only for written bytes."""

    PAGE = 1 << 16

    def __init__(self) -> None:
        self.size = 0
        self.last = -1
        self._position = 0
        self._pages: dict[int, bytearray] = {}

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.last, position = self._position, self._position
        done = 0
        while done < len(view):
            page, inside = divmod(position + done, self.PAGE)
            count = min(len(view) - done, self.PAGE - inside)
            into = self._pages.setdefault(page, bytearray(self.PAGE))
            into[inside : inside + count] = view[done : done + count]
            done += count
        self._position += done
        self.size = max(self.size, self._position)
        return done

    def readinto(self, into: Any) -> int:
        view = memoryview(into).cast("B")
        view[:] = self.bytes_at(self._position, len(view))
        self._position += len(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """h5py checks that it exists; libhdf5 reads with `readinto`."""
        data = self.bytes_at(self._position, self.size - self._position if size < 0 else size)
        self._position += len(data)
        return data

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size

    def flush(self) -> None:
        """Do nothing: no bytes wait to be written."""

    def bytes_at(self, offset: int, size: int) -> bytes:
        """The bytes of a part; zeros if nothing was written."""
        pieces = []
        end = offset + size
        while offset < end:
            page, inside = divmod(offset, self.PAGE)
            count = min(end - offset, self.PAGE - inside)
            held = self._pages.get(page)
            pieces.append(bytes(count) if held is None else bytes(held[inside : inside + count]))
            offset += count
        return b"".join(pieces)

    def place_of(self, data: bytes) -> int:
        """The place at which exactly these bytes were written last. In a file with a user block, the place
        that HDF5 reports for a chunk depends on its version."""
        if self.last < 0 or self.bytes_at(self.last, len(data)) != data:
            raise AssertionError("HDF5 did not write a chunk at the given place")
        return self.last


def room_for(length: int) -> int:
    """The space for a manifest: a power of two, so that the next one of this structure fits, too.

    >>> room_for(700), room_for(1024)
    (1024, 1024)
    """
    return max(512, 1 << math.ceil(math.log2(max(1, length))))
