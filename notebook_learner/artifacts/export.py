"""Exports a whole run into one HDF5 file: what `artifacts.h5` shows, and the checkpoints.

    /run /series /epochs /timeline    as in artifacts.h5
    /checkpoints/3                    attributes: epoch, step, iteration, kind, saved_at, metrics, ...
    /checkpoints/3/model/...          a dataset for every tensor; groups for the levels of nested values
    /checkpoints/3/model/manifest     the nested value as typed JSON, in which {"$tensor": 7} is the 8th
                                      entry of its "tensors": the dataset's path

The same for optim, scheduler and state. Tied tensors are one dataset with several names.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoint.folder import CheckpointFolder
from ..checkpoint.info import PARTS, CheckpointInfo
from ..errors import StoreError
from ..store import durable, hdf5_library
from ..store.hdf5_columns import is_described, stored_shape, type_of
from ..store.hdf5_image import dataset_paths
from ..store.tensors import bytes_of, dtype_name
from ..store.tree import Packed, pack

_PAGE = 1 << 16

Encode = Callable[[Sequence[CheckpointInfo]], bytes]
"""Makes an artifacts.h5 in memory."""


def export(
    target: Path, folder: CheckpointFolder, chosen: Sequence[CheckpointInfo], encode: Encode, overwrite: bool
) -> Path:
    """See `Artifacts.export`. No more than one part of one checkpoint is in memory at a time."""
    if target.exists() and not overwrite:
        raise StoreError(f"{target} exists; give another name, or export(..., overwrite=True)")
    if target.is_dir():
        raise StoreError(f"{target} is a directory; give the name of a file, such as {target / 'run.h5'}")
    pages, parts = _outline(folder, chosen, encode([replace(info, files={}) for info in chosen]))
    with durable.replaced(target, pages.size) as file:
        for place, data in pages.written():
            file.write([data], place)
        for part in parts:
            for tensor, offset in _placed(folder, part):
                file.write([bytes_of(tensor)], offset)
    return target


@dataclass(frozen=True)
class _Part:
    """A part of a checkpoint, and where each of its tensors goes in the file."""

    info: CheckpointInfo
    name: str
    places: list[tuple[int | None, int]]
    """Offset and size; an empty tensor has no place."""


def _placed(folder: CheckpointFolder, part: _Part) -> Iterator[tuple[Tensor, int]]:
    tensors = _packed(folder, part.info, part.name).tensors
    if [tensor.nbytes for tensor in tensors] != [size for _, size in part.places]:
        raise StoreError(f"checkpoint {part.info.label} was saved anew while it was exported; export again")
    for tensor, (offset, _) in zip(tensors, part.places, strict=True):
        if offset is not None:
            yield tensor, offset


def _outline(
    folder: CheckpointFolder, chosen: Sequence[CheckpointInfo], index: bytes
) -> tuple[_Pages, list[_Part]]:
    """The file without the tensors' bytes, and the places of these bytes. HDF5 writes only to memory."""
    h5py = hdf5_library.load()
    pages, parts = _Pages(), []
    with h5py.File(pages, "w", libver=("v110", "v110")) as file, h5py.File(io.BytesIO(index), "r") as face:
        for name, value in face.attrs.items():
            file.attrs[name] = value
        for name in face:
            face.copy(name, file)
        for info in chosen:
            for part in (*PARTS, "state"):
                if part in info.files:
                    packed = _packed(folder, info, part)
                    home = file.require_group(f"checkpoints/{info.label}").create_group(part)
                    parts.append(_Part(info, part, _datasets(h5py, home, packed)))
    return pages, parts


def _datasets(h5py: Any, home: Any, packed: Packed) -> list[tuple[int | None, int]]:
    """A dataset for every tensor with its place in the file, but without its bytes."""
    places: list[tuple[int | None, int]] = []
    paths = dataset_paths(packed.names, packed.also)
    for tensor, (first, *others) in zip(packed.tensors, paths, strict=True):
        dataset = _dataset(h5py, home, first, tensor)
        places.append((dataset.id.get_offset() if tensor.numel() else None, tensor.nbytes))
        for other in others:
            if "/" in other:
                home.require_group(other.rpartition("/")[0])
            home[other] = dataset
    tensors = [
        {"path": path[0], "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
        for tensor, path in zip(packed.tensors, paths, strict=True)
    ]
    text = json.dumps({"tree": packed.tree, "tensors": tensors}, allow_nan=False)
    home.create_dataset("manifest", data=text.encode(errors="backslashreplace"))
    return places


def _dataset(h5py: Any, home: Any, path: str, tensor: Tensor) -> Any:
    group = home.require_group(path.rpartition("/")[0]) if "/" in path else home
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(stored_shape(tensor.dtype, tensor.shape))
    name = path.rpartition("/")[2].encode()
    dataset = h5py.Dataset(h5py.h5d.create(group.id, name, type_of(tensor.dtype), space, creation))
    if not is_described(tensor.dtype):
        dataset.attrs["torch_dtype"] = dtype_name(tensor.dtype)
    return dataset


def _packed(folder: CheckpointFolder, info: CheckpointInfo, part: str) -> Packed:
    return pack(folder.read(info, part), part)


class _Pages(io.RawIOBase):
    """A file in memory that keeps only the pages that were written to: the tensors' space takes no memory."""

    def __init__(self) -> None:
        self.size = 0
        self._pages: dict[int, bytearray] = {}
        self._place = 0

    def written(self) -> Iterator[tuple[int, bytes]]:
        """Every page that was written to; the last one is cut at the end of the file."""
        for number in sorted(self._pages):
            start = number * _PAGE
            if start < self.size:
                yield start, bytes(self._pages[number][: self.size - start])

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self.size}[whence]
        return self._place

    def truncate(self, size: int | None = None) -> int:
        self.size = self._place if size is None else size
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        for number, begin, end in self._spans(view.nbytes):
            page = self._pages.setdefault(number, bytearray(_PAGE))
            page[begin:end] = view[done : done + end - begin]
            done += end - begin
        self._place += done
        self.size = max(self.size, self._place)
        return done

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(view.nbytes, self.size - self._place))
        done = 0
        for number, begin, end in self._spans(count):
            page = self._pages.get(number)
            view[done : done + end - begin] = bytes(end - begin) if page is None else page[begin:end]
            done += end - begin
        self._place += done
        return done

    def _spans(self, count: int) -> Iterator[tuple[int, int, int]]:
        """The pages of the next bytes: the number of each, and begin and end within it."""
        place = self._place
        end = place + count
        while place < end:
            number, begin = divmod(place, _PAGE)
            here = min(_PAGE - begin, end - place)
            yield number, begin, begin + here
            place += here
