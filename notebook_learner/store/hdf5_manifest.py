"""The header and the manifest of a checkpoint file in HDF5, and their checks.

    bytes 0 to 511      the header, in HDF5's user block: magic, versions, size of the file, place and
                        checksum of the manifest, checksum of the header
    dataset /manifest   JSON, filled up with zero bytes:
                          schema     the version of the format
                          metadata   the checksum of all bytes that are neither tensors nor manifest
                          tensors    all of them, in columns (`hdf5_columns`)
                          rounded    what half precision did to which tensor
                          tree       the value, in which {"$tensor": 7} is the 8th of the tensors
                          digests    the checksums of all tensors and chunks in order, 32 digits each
    everything else     an HDF5 file

The checksums come last, because only they differ between one state of a training and the next. So the text
before them is not checked again if it is equal to a text that was checked a moment ago.

A checksum covers every byte. But it finds damage, not malice: each writer of a file can compute it. So every
number is compared with the size of the file before it is used.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import DamagedError
from .budget import SPARE, TENSOR, room, weight_of_text
from .durable import Reader, digest_of
from .hdf5_columns import Entry, Listed, Wrong, listed_in, member
from .hdf5_image import USER_BLOCK
from .json_text import parse

MAGIC = b"NBLCKPT1"
SCHEMA = 3
"""The version of the format that is written. Earlier versions were never released: version 1 had each
checksum next to its tensor, and version 2 had an object for each tensor, which took 6 ms more to read."""
MIN_READER = 3
"""The oldest reader that understands this version, and the oldest version that this reader understands."""
REMEMBERED, LONGEST_REMEMBERED = 4, 1 << 20
"""How many checked structures are kept, and the bytes of a manifest that may be one: 10,000 tensors."""
HEAVIEST_REMEMBERED = SPARE // REMEMBERED
"""The largest weight of its values: a megabyte of empty lists is no structure, but takes 40 MB of memory."""

_HEADER = struct.Struct("<8sIIQQQ16s")
_SUM = 16
_TREE, _LONGEST_HEAD = b',"tree":{', 1 << 16
_DIGESTS, _END = b',"digests":"', b'"}'


@dataclass(frozen=True)
class ManifestStructure:
    """The part of a manifest before its checksums, after all of it was checked against the file's size."""

    tree: Any
    listed: Listed
    rounded: Mapping[str, Any]
    metadata: str
    """The checksum of all other bytes."""
    offset: int
    size: int
    file_size: int
    prepared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What a reader computed from this structure, kept with it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of a file, after all checks."""

    structure: ManifestStructure
    digests: bytes
    """The checksums of the structure's extents."""
    digest: str
    """The checksum of the manifest's text."""

    @property
    def tree(self) -> Any:
        """The value, as `store.tree` has it."""
        return self.structure.tree

    @property
    def tensors(self) -> tuple[Entry, ...]:
        """One for each tensor that the tree may name."""
        return self.structure.listed.entries

    @property
    def rounded(self) -> Mapping[str, Any]:
        """How tensors were rounded to half precision."""
        return self.structure.rounded


def header(file_size: int, offset: int, length: int, digest: str) -> bytes:
    """The user block of a file."""
    head = _HEADER.pack(MAGIC, SCHEMA, MIN_READER, file_size, offset, length, bytes.fromhex(digest))
    return (head + bytes.fromhex(digest_of(head))).ljust(USER_BLOCK, b"\0")


def read_manifest(file: Reader) -> Manifest:
    """Read and check header and manifest. This reads no tensor and takes no memory for one.

    Raises:
        DamagedError: with the reason.
    """
    offset, length, digest = _read_header(file)
    text = file.read(offset, length)
    if digest_of(text) != digest:
        raise damaged(file, "the checksum of its manifest does not fit")
    try:
        _cut(text)
        return _understood(file, (offset, length), text, digest)
    except (Wrong, ValueError) as error:
        raise damaged(file, f"its manifest is malformed: {error}") from error


def read_head(file: Reader, before: str) -> tuple[Any, str, bool] | None:
    """Read the part of a tree, an object, before a key; the checksum of the whole manifest; and whether the
    part is plain JSON, which is its own value. None if the key is missing, or if no object comes before it: a
    stranger's file may have it elsewhere.

    Raises:
        DamagedError: with the reason.
    """
    offset, length, digest = _read_header(file)
    text = file.read(offset, length)
    if digest_of(text) != digest:
        raise damaged(file, "the checksum of its manifest does not fit")
    start = text.find(_TREE)
    end = text.find(b',"' + before.encode() + b'":', start)
    if start < 0 or end < 0 or end - start > _LONGEST_HEAD:
        return None
    head = text[start + len(_TREE) - 1 : end] + b"}"
    plain = b'"$' not in head
    try:
        found = parse(head, file.size)
    except ValueError:
        return None
    return (found, digest, plain) if isinstance(found, dict) else None


def _cut(text: bytearray) -> None:
    """Remove the zero bytes after the text. `rstrip` looks at them one by one, in half a millisecond."""
    end = text.find(b"\0")
    if end < 0:
        return
    if text[end:] != bytes(len(text) - end):
        raise Wrong("there is something behind its text")
    del text[end:]


def _understood(file: Reader, place: tuple[int, int], text: bytearray, digest: str) -> Manifest:
    key, rest = None, b""
    if len(text) <= LONGEST_REMEMBERED:  # a copy of a longer one takes memory that its file does not justify
        head, mark, tail = text.rpartition(_DIGESTS)
        key, rest = (file.size, *place, bytes(head + mark)), bytes(tail)
        known = _CHECKED.get(key)
        if known is not None and rest.endswith(_END):
            digits = rest.removesuffix(_END).decode("ascii")
            return Manifest(known, _digests(digits, len(known.listed.sizes)), digest)
    size, weight = file.size - place[1], weight_of_text(text)
    structure, digits = _checked(parse(text, size), file, place)
    weight += TENSOR * len(structure.listed.names)
    if weight > room(size):
        raise Wrong("it holds more tensors than a file of its size may")
    manifest = Manifest(structure, _digests(digits, len(structure.listed.sizes)), digest)
    certain = rest == digits.encode() + _END  # behind such a head only the checksums can differ
    if key is not None and certain and weight <= HEAVIEST_REMEMBERED:
        _CHECKED.put(key, structure)
    return manifest


_Key = tuple[int, int, int, bytes]


class _Checked:
    """The structures that were checked last. A structure is used again only if the text itself, the size of
    the file and the place of the manifest are equal; an equal checksum is not enough."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, ManifestStructure] = OrderedDict()

    def get(self, key: _Key) -> ManifestStructure | None:
        with self._lock:
            return self._kept.get(key)

    def put(self, key: _Key, structure: ManifestStructure) -> None:
        with self._lock:
            self._kept[key] = structure
            if len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


_CHECKED = _Checked()


def damaged(file: Reader, why: str) -> DamagedError:
    """The error for a file that cannot be used."""
    return DamagedError(f"{file.path} is damaged: {why}; use another checkpoint")


def _read_header(file: Reader) -> tuple[int, int, str]:
    if file.size < USER_BLOCK:
        raise damaged(file, f"{file.size} bytes are too few, it was cut short or is no checkpoint")
    block = bytes(file.read(0, USER_BLOCK))
    magic, schema, min_reader, size, offset, length, digest = _HEADER.unpack(block[: _HEADER.size])
    end = _HEADER.size + _SUM
    if magic != MAGIC:
        raise damaged(file, "it does not begin as a checkpoint of notebook_learner does")
    if bytes.fromhex(digest_of(block[: _HEADER.size])) != block[_HEADER.size : end]:
        raise damaged(file, "the checksum of its header does not fit")
    if schema < MIN_READER:
        raise DamagedError(
            f"{file.path} was written in version {schema} of the format, before the first release; this "
            f"reader knows version {MIN_READER} and later: write it again"
        )
    if min_reader > SCHEMA:
        raise DamagedError(
            f"{file.path} was written in version {schema} of the format, which needs a reader of version "
            f"{min_reader}; this one is version {SCHEMA}: install a newer notebook_learner"
        )
    if any(block[end:]):
        raise damaged(file, "there is something in its header that does not belong there")
    if size != file.size:
        raise damaged(file, f"it has {file.size} bytes and should have {size}")
    if offset < USER_BLOCK or offset + length > size:
        raise damaged(file, "its manifest lies outside the file")
    return offset, length, digest.hex()


def _digests(text: str, count: int) -> bytes:
    """The checksums; their text has one form only."""
    if len(text) != 2 * _SUM * count:
        raise Wrong(f"{len(text)} digits of checksums for {count} stretches of tensors")
    digests = bytes.fromhex(text)
    if digests.hex() != text:
        raise Wrong("a checksum that is not in lower-case hex")
    return digests


def _checked(document: Any, file: Reader, place: tuple[int, int]) -> tuple[ManifestStructure, str]:
    if not isinstance(document, dict) or "tree" not in document:
        raise Wrong("no tree")
    if member(document, "schema", int) != SCHEMA:
        raise Wrong("another version than the header's")
    listed = listed_in(member(document, "tensors", dict))
    listed.require_apart([(0, USER_BLOCK, "its header"), (*place, "its manifest")], file.size)
    listed.require_room(file.size)
    metadata = member(document, "metadata", str)
    if len(metadata) != 2 * _SUM:
        raise Wrong("metadata is no checksum")
    rounded = member(document, "rounded", dict) if "rounded" in document else {}
    structure = ManifestStructure(document["tree"], listed, rounded, metadata, *place, file.size)
    return structure, member(document, "digests", str)
