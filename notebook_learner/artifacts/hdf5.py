"""A small HDF5 file made in memory with the low-level calls of h5py.

Its high-level calls take 150 us for an attribute and 180 us for a dataset, three and two times as long; a run
of ten epochs has some hundred of each.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..store import hdf5_library

_LEAST_USER_BLOCK = 512
_SHORTEST_TEXT = 64


def file_bytes(user_block: bytes, fill: Callable[[IndexGroup], None]) -> bytes:
    """Make a file with these bytes in front, and with what `fill` writes into its root group."""
    h5py = hdf5_library.load()
    room = max(_LEAST_USER_BLOCK, 1 << (len(user_block) - 1).bit_length())
    target = io.BytesIO()
    with h5py.File(target, "w", libver=("v110", "v110"), userblock_size=room) as file:
        fill(IndexGroup(_Library(h5py), h5py.h5g.open(file.id, b"/")))
    with target.getbuffer() as view:
        view[: len(user_block)] = user_block
    return target.getvalue()


def escaped(name: str) -> bytes:
    """A name as HDF5 takes one.

    >>> escaped("Loss/all"), escaped(".hidden"), escaped("")
    (b'Loss%2Fall', b'%2Ehidden', b'%')
    """
    safe = name.replace("/", "%2F").replace("\0", "%00")
    if safe.startswith("."):
        safe = "%2E" + safe[1:]
    return safe.encode(errors="backslashreplace") or b"%"


class _Library:
    """h5py, and the objects that all attributes share: new ones for each would take a third of the time."""

    def __init__(self, h5py: Any) -> None:
        self.h5py = h5py
        self.scalar = h5py.h5s.create(h5py.h5s.SCALAR)
        self.text = h5py.string_dtype()
        self._kinds: dict[tuple[np.dtype[Any], bool], Any] = {}

    def kind(self, dtype: np.dtype[Any], logical: bool = True) -> Any:
        """The HDF5 type of an array's."""
        if dtype.kind == "S":  # texts of another length or encoding have another type
            return self.h5py.h5t.py_create(dtype, logical=True)
        key = dtype, logical
        if key not in self._kinds:
            self._kinds[key] = self.h5py.h5t.py_create(dtype, logical=logical)
        return self._kinds[key]

    def in_memory(self, dtype: np.dtype[Any]) -> Any:
        """The same array before it is written: its texts are still Python objects."""
        return self.kind(dtype, logical=False)


class Node:
    """A group or a dataset."""

    def __init__(self, library: _Library, handle: Any) -> None:
        self._library = library
        self.handle = handle

    def attributes(self, values: Mapping[str, object]) -> None:
        """Attributes: texts, whole numbers and floats; None is left out."""
        library = self._library
        for name, value in values.items():
            if value is None:
                continue
            if isinstance(value, str):
                array = np.array(_storable(value), dtype=library.text)
            else:
                array = np.array(value, np.float64 if isinstance(value, float) else np.int64)
            kind = library.kind(array.dtype)
            made = library.h5py.h5a.create(self.handle, escaped(name), kind, library.scalar)
            made.write(array, library.in_memory(array.dtype))


class IndexGroup(Node):
    """A group that is being filled."""

    def group(self, name: str, kind: str | None = None) -> IndexGroup:
        """A group in this one, of a NeXus class."""
        made = IndexGroup(self._library, self._library.h5py.h5g.create(self.handle, escaped(name)))
        if kind is not None:
            made.attributes({"NX_class": kind})
        return made

    def plot(self, name: str, signal: str, axes: str) -> IndexGroup:
        """A group that a viewer draws as a curve."""
        made = self.group(name, "NXdata")
        made.attributes({"signal": signal, "axes": axes})
        return made

    def dataset(self, name: str, values: NDArray[Any]) -> Node:
        """A dataset of one dimension in this group."""
        made = self.unnamed(len(values), [values])
        self.link(name, made)
        return made

    def unnamed(self, count: int, parts: Iterable[NDArray[Any]]) -> Node:
        """Make a dataset of so many values, to be linked later into one group or several. The values come
        in parts, all of one type, and there is at least one part."""
        h5py = self._library.h5py
        space, handle, at = h5py.h5s.create_simple((count,)), None, 0
        for values in parts:
            if handle is None:
                handle = h5py.h5d.create(self.handle, None, self._library.kind(values.dtype), space)
            if values.size:
                space.select_hyperslab((at,), values.shape)
                handle.write(h5py.h5s.create_simple(values.shape), space, np.ascontiguousarray(values))
                at += len(values)
        return Node(self._library, handle)

    def texts(self, name: str, texts: Sequence[str], most: int | None = None) -> Node:
        """Texts of one length, as UTF-8; they are cut if all together would take more than `most`."""
        encoded = [text.encode(errors="backslashreplace") for text in texts]
        length = max(map(len, encoded), default=1) or 1
        if most is not None and length * len(encoded) > most:
            length = min(length, max(_SHORTEST_TEXT, most // len(encoded)))
            encoded = [text[:length].decode(errors="ignore").encode() for text in encoded]
        return self.dataset(name, np.array(encoded, self._library.h5py.string_dtype("utf-8", length)))

    def link(self, name: str, node: Node) -> None:
        """One more name for something in this file."""
        self._library.h5py.h5o.link(node.handle, self.handle, escaped(name))

    def external_link(self, name: str, path: str) -> None:
        """A link to the root of another file, at a path from this one."""
        self.handle.links.create_external(escaped(name), path.encode(errors="surrogateescape"), b"/")


def _storable(text: str) -> bytes:
    return text.replace("\0", "\\x00").encode(errors="backslashreplace")
