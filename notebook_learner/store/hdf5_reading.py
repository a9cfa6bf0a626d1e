"""Reads the tensors of our HDF5 files without libhdf5: every byte is read once and checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .durable import MOST_BUFFERS, Reader, digest_of, digest_of_all
from .hdf5_codecs import Unpackable, unpack_into
from .hdf5_columns import Entry, Numbers
from .hdf5_image import USER_BLOCK
from .hdf5_manifest import Manifest, ManifestStructure, damaged
from .tensors import memories_of

PIECE = 1 << 20
"""Bytes that are read and checked at a time: few enough to stay in the processor's cache."""
WORTH_A_THREAD = 32 << 20
"""From this size on, a second thread that reads and checks is worth it: it saves a third of the time."""

_SUM = 16
_GAP, _MANIFEST = -1, -2


def empty_tensors(manifest: Manifest, device: str = "cpu") -> list[Tensor]:
    """Make tensors to read into. After the check of the manifest, the file justifies their memory."""
    listed = manifest.structure.listed
    return [
        torch.empty(shape, dtype=dtype, device=device)
        for shape, dtype in zip(listed.shapes, listed.dtypes, strict=True)
    ]


def read_into(file: Reader, manifest: Manifest, tensors: Sequence[Tensor]) -> None:
    """Read the whole file, the tensors into contiguous tensors of theirs, and check every byte of it.

    Raises:
        DamagedError: names the damaged tensor. The tensors then hold what was read before it.
    """
    memories = memories_of(tensors)
    packed = manifest.structure.listed.packed
    _read(file, manifest, _Packed(file, manifest, memories) if packed else _Plain(memories))


# Where it is read into -------------------------------------------------------------------------------


class _Plain:
    """The tensors' own memory."""

    def __init__(self, memories: Sequence[memoryview]) -> None:
        self._memories = memories

    def of(self, extents: range) -> list[memoryview]:
        """Memory for some extents of the file."""
        return list(self._memories[extents.start : extents.stop])

    def read(self, row: list[_Batch]) -> None:
        """Do what is needed after these extents were read and checked."""


class _Packed:
    """The memory of the uncompressed tensors, and memory for each compressed chunk until it is unpacked. The
    whole file would take half as much again as the tensors may take."""

    def __init__(self, file: Reader, manifest: Manifest, memories: Sequence[memoryview]) -> None:
        self._file = file
        self._places: list[tuple[Entry, int, memoryview]] = []
        """For each extent its tensor, its size, and where its bytes belong."""
        for entry, memory in zip(manifest.tensors, memories, strict=True):
            each = entry.chunk if entry.codec else memory.nbytes
            for index, extent in enumerate(entry.extents):
                self._places.append((entry, extent.size, memory[index * each : (index + 1) * each]))
        self._stored: dict[int, bytearray] = {}

    def of(self, extents: range) -> list[memoryview]:
        """Memory for some extents of the file."""
        return list(map(self._memory, extents))

    def _memory(self, number: int) -> memoryview:
        entry, size, into = self._places[number]
        if not entry.codec:
            return into
        if number not in self._stored:
            self._stored[number] = bytearray(size)
        return memoryview(self._stored[number])

    def read(self, row: list[_Batch]) -> None:
        """Unpack the compressed extents, which were read and checked."""
        for number in {number for batch in row for number in batch.extents}:
            entry, _, into = self._places[number]
            if entry.codec:
                try:
                    unpack_into(self._stored.pop(number), into, entry.codec, entry.chunk)
                except Unpackable as error:
                    raise damaged(self._file, f"tensor {entry.name!r}: {error}") from error


# What is read in one go ------------------------------------------------------------------------------

_Part = tuple[int, int, int]
"""The number of an extent, or _GAP, and from where to where in it."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """A part of the file that one call reads."""

    offset: int
    size: int
    whole: range | None
    """The extents, if all parts are whole ones in the order of their numbers; else"""
    parts: list[_Part]
    """the parts that are read."""

    @property
    def extents(self) -> Iterable[int]:
        """The numbers of the extents that it holds a part of."""
        return self.whole or [number for number, *_ in self.parts if number != _GAP]


class _Planner:
    """Divides a file, from the user block to its end but without the manifest, into batches."""

    def __init__(self, structure: ManifestStructure) -> None:
        self.rows: list[list[_Batch]] = []
        self._sizes = structure.listed.sizes
        self._start = self._end = USER_BLOCK
        self._parts: list[_Part] = []

    def add(self, number: int, size: int) -> None:
        """Add the next part; a large part in pieces that are read and checked one by one."""
        begin = 0
        if size > PIECE:
            self.flush()  # its pieces make a row of their own, without its neighbours
        while begin < size:
            if self._end - self._start >= PIECE or len(self._parts) >= MOST_BUFFERS:
                self.flush()
            end = size if size - begin <= PIECE else begin + PIECE
            self._parts.append((number, begin, end))
            self._end += end - begin
            begin = end

    def add_run(self, numbers: range, ends: Numbers) -> None:
        """Add the next extents, which follow each other without a gap, with the end of each in the file."""
        self.flush()
        done = 0
        while done < len(numbers):
            full = int(np.searchsorted(ends, self._start + PIECE)) + 1
            upto = min(full, done + MOST_BUFFERS, len(numbers))
            self._end = int(ends[upto - 1])
            self.rows.append([_Batch(self._start, self._end - self._start, numbers[done:upto], [])])
            self._start, done = self._end, upto

    def skip(self, size: int) -> None:
        """Leave out a part that was read and checked before."""
        self.flush()
        self._start = self._end = self._end + size

    def flush(self) -> None:
        """End a batch here."""
        if self._parts:
            first, begin, _ = self._parts[0]
            whole = range(first, first + len(self._parts))
            same = [(n, 0, int(self._sizes[n])) for n in whole if 0 <= n < len(self._sizes)] == self._parts
            batch = _Batch(self._start, self._end - self._start, whole if same else None, self._parts)
            if begin:
                self.rows[-1].append(batch)
            else:
                self.rows.append([batch])
        self._start, self._parts = self._end, []


@dataclass(frozen=True, slots=True)
class _Plan:
    """The plan for reading a file; the next file of the same structure uses it again."""

    rows: list[list[_Batch]]
    """Batches that are read one after the other: those of one large tensor, or only one."""
    empty: list[int]
    """The extents without bytes."""


def _planned(structure: ManifestStructure) -> _Plan:
    planner, position = _Planner(structure), USER_BLOCK
    for numbers, offset, ends in _runs(structure):
        if offset > position:
            planner.add(_GAP, offset - position)
        position = int(ends[-1])
        if numbers.start == _MANIFEST:
            planner.skip(position - offset)
        elif len(numbers) > 1:
            planner.add_run(numbers, ends)
        else:
            planner.add(numbers.start, position - offset)
    planner.add(_GAP, structure.file_size - position)
    planner.flush()
    return _Plan(planner.rows, np.flatnonzero(structure.listed.sizes == 0).tolist())


def _runs(structure: ManifestStructure) -> Iterator[tuple[range, int, Numbers]]:
    """The manifest and all extents that have bytes, in the file's order: the beginning of each item, and the
    end of each extent. Small neighbours in the order of their numbers are one item, others one item each."""
    used = np.flatnonzero(structure.listed.sizes)
    numbers = np.append(used, _MANIFEST)
    offsets = np.append(structure.listed.offsets[used], structure.offset)
    sizes = np.append(structure.listed.sizes[used], structure.size)
    order = np.argsort(offsets, kind="stable")
    numbers, offsets, sizes = numbers[order], offsets[order], sizes[order]
    ends, small = offsets + sizes, (sizes < PIECE) & (numbers >= 0)
    joined = (numbers[1:] == numbers[:-1] + 1) & (offsets[1:] == ends[:-1]) & small[1:] & small[:-1]
    cuts = [0, *(np.flatnonzero(~joined) + 1).tolist(), len(numbers)]
    for begin, end in pairwise(cuts):
        first = int(numbers[begin])
        yield range(first, first + end - begin), int(offsets[begin]), ends[begin:end]


# Reading ---------------------------------------------------------------------------------------------


def _read(file: Reader, manifest: Manifest, target: _Plain | _Packed) -> None:
    structure = manifest.structure
    plan = structure.prepared.get("plan")
    if not isinstance(plan, _Plan):
        plan = structure.prepared["plan"] = _planned(structure)
    checker, left = _Checker(file, manifest), iter(plan.rows)
    if structure.file_size < WORTH_A_THREAD:
        _read_rows(file, left, target, checker)
    else:
        with ThreadPoolExecutor(1) as thread:  # the two take the next row in turn
            beside = thread.submit(_read_rows, file, left, target, checker)
            _read_rows(file, left, target, checker)
        beside.result()
    checker.finish(plan.empty)


def _read_rows(
    file: Reader, left: Iterator[list[_Batch]], target: _Plain | _Packed, checker: _Checker
) -> None:
    try:
        for row in left:
            for batch in row:
                buffers = _buffers(batch, target)
                file.fill(buffers, batch.offset, batch.size)
                checker.check(batch, buffers)
            target.read(row)
    finally:
        deque(left, maxlen=0)  # if one thread fails, the other one stops reading


def _buffers(batch: _Batch, target: _Plain | _Packed) -> list[memoryview]:
    if batch.whole is not None:
        return target.of(batch.whole)
    return [
        memoryview(bytearray(end - begin))
        if number == _GAP
        else target.of(range(number, number + 1))[0][begin:end]
        for number, begin, end in batch.parts
    ]


class _Checker:
    """Compares what was read with its checksums."""

    def __init__(self, file: Reader, manifest: Manifest) -> None:
        from xxhash import xxh3_128

        self._file = file
        self._manifest = manifest
        self._new = xxh3_128
        self._around: list[tuple[int, int, memoryview]] = []
        """The bytes around the tensors, with their places."""
        self._begun: dict[int, Any] = {}

    def check(self, batch: _Batch, buffers: list[memoryview]) -> None:
        if batch.whole is not None and self._fit(batch.whole, buffers):
            return
        sizes = self._manifest.structure.listed.sizes
        parts = batch.parts or [(number, 0, int(sizes[number])) for number in batch.whole or ()]
        for place, ((number, begin, end), buffer) in enumerate(zip(parts, buffers, strict=True)):
            if number == _GAP:
                self._around.append((batch.offset, place, buffer))
                continue
            state = self._new() if begin == 0 else self._begun.pop(number)
            state.update(buffer)
            if end < sizes[number]:
                self._begun[number] = state
            elif state.digest() != self._expected(range(number, number + 1)):
                raise self._damaged(number)

    def finish(self, empty: Sequence[int]) -> None:
        """After everything was read, check the empty extents and the bytes that do not belong to a tensor."""
        nothing = bytes.fromhex(digest_of(b""))
        for number in empty:
            if self._expected(range(number, number + 1)) != nothing:
                raise self._damaged(number)
        around = digest_of_all(buffer for *_, buffer in sorted(self._around, key=itemgetter(0, 1)))
        if around != self._manifest.structure.metadata:
            raise damaged(self._file, "the checksum of what is around its tensors does not fit")

    def _fit(self, numbers: range, buffers: list[memoryview]) -> bool:
        from xxhash import xxh3_128_digest

        return b"".join(map(xxh3_128_digest, buffers)) == self._expected(numbers)

    def _expected(self, numbers: range) -> bytes:
        return self._manifest.digests[_SUM * numbers.start : _SUM * numbers.stop]

    def _damaged(self, number: int) -> Exception:
        name = self._manifest.structure.listed.owner_of(number)
        return damaged(self._file, f"the checksum of tensor {name!r} does not fit")
