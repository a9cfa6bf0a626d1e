"""From an HDF5 file of ours to tensors, without libhdf5: every byte is read once and checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .digest import digest_of
from .durable import MOST_BUFFERS, Reader
from .hdf5_codecs import Unpackable, unpack_into
from .hdf5_columns import Entry, Numbers
from .hdf5_image import USER_BLOCK
from .hdf5_manifest import Manifest, Structure, damaged
from .tensors import memories_of

PIECE = 1 << 20
"""Bytes that are read and checked at a time: still in the processor's cache when they are checked."""
LARGE_PIECE = 4 << 20
"""The same, where a second thread checks."""
WORTH_A_THREAD = 32 << 20
"""From here on, checking beside reading saves more than a thread costs: a fifth of the time."""

_SUM = 16
_GAP, _MANIFEST = -1, -2


def empty_tensors(manifest: Manifest) -> list[Tensor]:
    """Tensors to read into: as much memory as the file justifies, which the manifest was checked for."""
    listed = manifest.structure.listed
    return [
        torch.empty(shape, dtype=dtype) for shape, dtype in zip(listed.shapes, listed.dtypes, strict=True)
    ]


def read_into(file: Reader, manifest: Manifest, tensors: Sequence[Tensor]) -> None:
    """Read the whole file, the tensors into contiguous tensors of theirs, and check every byte of it.

    Raises:
        DamagedError: naming the tensor that is. What was read until then is in the tensors.
    """
    memories = memories_of(tensors)
    if not manifest.structure.listed.packed:
        _read(file, manifest, memories)
        return
    views: list[memoryview] = []
    for entry, memory in zip(manifest.tensors, memories, strict=True):
        sizes = [extent.size for extent in entry.extents]
        views.extend([memoryview(bytearray(size)) for size in sizes] if entry.codec else [memory])
    _read(file, manifest, views)
    stored = iter(views)
    for entry, memory in zip(manifest.tensors, memories, strict=True):
        for index, data in enumerate([next(stored) for _ in entry.extents]):
            if entry.codec:
                _unpack(file, entry, data, memory[index * entry.chunk : (index + 1) * entry.chunk])


def _unpack(file: Reader, entry: Entry, data: memoryview, into: memoryview) -> None:
    try:
        unpack_into(bytearray(data), into, entry.codec, entry.chunk)
    except Unpackable as error:
        raise damaged(file, f"tensor {entry.name!r}: {error}") from error


# What is read in one go ------------------------------------------------------------------------------

_Part = tuple[int, int, int]
"""The number of an extent, or _GAP, and from where to where in it."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """A stretch of the file that one call reads."""

    offset: int
    size: int
    whole: range | None
    """The extents, where all parts are whole ones, and in the order of their numbers; else"""
    parts: list[_Part]
    """what is read."""


class _Planner:
    """Divides a file, from the user block to its end and but for the manifest, into batches."""

    def __init__(self, structure: Structure, piece: int) -> None:
        self.batches: list[_Batch] = []
        self._sizes = structure.listed.sizes
        self._piece = piece
        self._start = self._end = USER_BLOCK
        self._parts: list[_Part] = []

    def add(self, number: int, size: int) -> None:
        """What comes next; a large stretch in pieces that are read and checked one by one."""
        begin = 0
        while begin < size:
            if self._end - self._start >= self._piece or len(self._parts) >= MOST_BUFFERS:
                self.flush()
            end = size if size - begin <= self._piece else begin + self._piece
            self._parts.append((number, begin, end))
            self._end += end - begin
            begin = end

    def add_run(self, numbers: range, ends: Numbers) -> None:
        """Extents that come next, side by side, with where in the file each ends."""
        self.flush()
        done = 0
        while done < len(numbers):
            full = int(np.searchsorted(ends, self._start + self._piece)) + 1
            upto = min(full, done + MOST_BUFFERS, len(numbers))
            self._end = int(ends[upto - 1])
            self.batches.append(_Batch(self._start, self._end - self._start, numbers[done:upto], []))
            self._start, done = self._end, upto

    def skip(self, size: int) -> None:
        """Leave out what was read and checked before."""
        self.flush()
        self._start = self._end = self._end + size

    def flush(self) -> None:
        """End a batch here."""
        if self._parts:
            first = self._parts[0][0]
            whole = range(first, first + len(self._parts))
            same = [(n, 0, int(self._sizes[n])) for n in whole if 0 <= n < len(self._sizes)] == self._parts
            self.batches.append(
                _Batch(self._start, self._end - self._start, whole if same else None, self._parts)
            )
        self._start, self._parts = self._end, []


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a file is read; the next one of the same structure is read alike."""

    piece: int
    batches: list[_Batch]
    empty: list[int]
    """The extents without bytes."""


def _planned(structure: Structure, piece: int) -> _Plan:
    planner, position = _Planner(structure, piece), USER_BLOCK
    for numbers, offset, ends in _runs(structure, piece):
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
    return _Plan(piece, planner.batches, np.flatnonzero(structure.listed.sizes == 0).tolist())


def _runs(structure: Structure, piece: int) -> Iterator[tuple[range, int, Numbers]]:
    """The manifest and all extents that have bytes, in the file's order: small ones that lie side by side
    in the order of their numbers together, others one by one; where they begin, and where each ends."""
    used = np.flatnonzero(structure.listed.sizes)
    numbers = np.append(used, _MANIFEST)
    offsets = np.append(structure.listed.offsets[used], structure.offset)
    sizes = np.append(structure.listed.sizes[used], structure.size)
    order = np.argsort(offsets, kind="stable")
    numbers, offsets, sizes = numbers[order], offsets[order], sizes[order]
    ends, small = offsets + sizes, (sizes < piece) & (numbers >= 0)
    joined = (numbers[1:] == numbers[:-1] + 1) & (offsets[1:] == ends[:-1]) & small[1:] & small[:-1]
    cuts = [0, *(np.flatnonzero(~joined) + 1).tolist(), len(numbers)]
    for begin, end in pairwise(cuts):
        first = int(numbers[begin])
        yield range(first, first + end - begin), int(offsets[begin]), ends[begin:end]


# Reading ---------------------------------------------------------------------------------------------


def _read(file: Reader, manifest: Manifest, views: Sequence[memoryview]) -> None:
    structure = manifest.structure
    large = structure.file_size >= WORTH_A_THREAD
    piece = LARGE_PIECE if large else PIECE
    plan = structure.prepared.get("plan")
    if not isinstance(plan, _Plan) or plan.piece != piece:
        plan = structure.prepared["plan"] = _planned(structure, piece)
    checker = _Checker(file, manifest)
    with ExitStack() as stack:
        thread = stack.enter_context(ThreadPoolExecutor(1)) if large else None
        running: list[Future[None]] = []
        for batch in plan.batches:
            buffers = _buffers(batch, views)
            file.fill(buffers, batch.offset, batch.size)
            if thread is None:
                checker.check(batch, buffers)
            else:
                running.append(thread.submit(checker.check, batch, buffers))
        for one in running:
            one.result()
    checker.finish(plan.empty)


def _buffers(batch: _Batch, views: Sequence[memoryview]) -> list[memoryview]:
    if batch.whole is not None:
        return list(views[batch.whole.start : batch.whole.stop])
    return [
        memoryview(bytearray(end - begin)) if number == _GAP else views[number][begin:end]
        for number, begin, end in batch.parts
    ]


class _Checker:
    """Compares what was read with its checksums."""

    def __init__(self, file: Reader, manifest: Manifest) -> None:
        from xxhash import xxh3_128

        self._file = file
        self._manifest = manifest
        self._new = xxh3_128
        self._around = xxh3_128()
        """Of what is around the tensors."""
        self._begun: dict[int, Any] = {}

    def check(self, batch: _Batch, buffers: list[memoryview]) -> None:
        if batch.whole is not None and self._fit(batch.whole, buffers):
            return
        sizes = self._manifest.structure.listed.sizes
        parts = batch.parts or [(number, 0, int(sizes[number])) for number in batch.whole or ()]
        for (number, begin, end), buffer in zip(parts, buffers, strict=True):
            if number == _GAP:
                self._around.update(buffer)
                continue
            state = self._new() if begin == 0 else self._begun.pop(number)
            state.update(buffer)
            if end < sizes[number]:
                self._begun[number] = state
            elif state.digest() != self._expected(range(number, number + 1)):
                raise self._damaged(number)

    def finish(self, empty: Sequence[int]) -> None:
        """All was read: compare what has no bytes, and what is not of a tensor."""
        nothing = bytes.fromhex(digest_of(b""))
        for number in empty:
            if self._expected(range(number, number + 1)) != nothing:
                raise self._damaged(number)
        if self._around.hexdigest() != self._manifest.structure.metadata:
            raise damaged(self._file, "the checksum of what is around its tensors does not fit")

    def _fit(self, numbers: range, buffers: list[memoryview]) -> bool:
        from xxhash import xxh3_128_digest

        return b"".join(map(xxh3_128_digest, buffers)) == self._expected(numbers)

    def _expected(self, numbers: range) -> bytes:
        return self._manifest.digests[_SUM * numbers.start : _SUM * numbers.stop]

    def _damaged(self, number: int) -> Exception:
        name = self._manifest.structure.listed.owner_of(number)
        return damaged(self._file, f"the checksum of tensor {name!r} does not fit")
