"""Copies between a device and the host, many small tensors at a time, as each copy waits for the device."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_Memory = np.ndarray[Any, np.dtype[np.uint8]]

LARGE = 1 << 20
"""Bytes of a tensor from which reuse pays; smaller tensors come from memory that the process already uses."""
LONG = 60.0
"""Seconds after which unused memory is released: with copies that rare, new memory costs little."""


class CopyMemory:
    """Hands out tensors, and takes their memory back when they are dropped."""

    def __init__(self) -> None:
        self._free: dict[int, list[_Memory]] = {}
        self._asked: Counter[int] = Counter()
        """Pieces of each size that were requested since `open`: at most this many are kept."""
        self._open = False
        self._since = 0.0

    def open(self) -> None:
        """Begin a copy: its tensors are requested next."""
        self._open, self._since, self._asked = True, monotonic(), Counter()

    def close(self) -> None:
        """Release everything, also what comes back later."""
        self._open, self._free = False, {}

    def close_if_unused(self) -> None:
        """At a boundary: release everything if no copy has used it for long."""
        if self._open and monotonic() - self._since > LONG:
            self.close()

    @property
    def nbytes(self) -> int:
        """The bytes that are kept and not in use."""
        return sum(size * len(pieces) for size, pieces in self._free.items())

    def like(self, live: Tensor) -> Tensor:
        """Return a tensor of the same type, shape and strides, with any values."""
        if not _is_plain(live) or live.nbytes < LARGE:
            return torch.empty_like(live)
        size = live.nbytes
        self._asked[size] += 1
        free = self._free.get(size)
        memory = free.pop() if free else torch.empty(size, dtype=torch.uint8).numpy()
        # Every tensor that shares the memory holds this array, from C++ too: it goes when all of them are
        # gone.
        lent = memory[:]
        weakref.finalize(lent, self._take_back, memory).atexit = False
        form = live if live.is_contiguous() else torch.empty_like(live, device="meta")
        return torch.from_numpy(lent).view(live.dtype).as_strided(form.shape, form.stride())

    def _take_back(self, memory: _Memory) -> None:
        """Runs in the thread that dropped the last copy."""
        free = self._free.setdefault(memory.nbytes, [])
        if self._open and len(free) < self._asked[memory.nbytes]:
            free.append(memory)


def size_of(tensor: Tensor) -> int:
    """The bytes of a tensor's numbers. A sparse tensor has those of its indices and its values.

    >>> size_of(torch.zeros(3)), size_of(torch.eye(3).to_sparse())
    (12, 60)
    """
    if tensor.layout is torch.strided:
        return tensor.nbytes
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer, inner = (
        (tensor.crow_indices(), tensor.col_indices())
        if by_rows
        else (tensor.ccol_indices(), tensor.row_indices())
    )
    return outer.nbytes + inner.nbytes + tensor.values().nbytes


def _is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is only bytes, shape and strides."""
    special = tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided
    return type(tensor) is Tensor and not special


_SMALL = 1 << 20
"""Bytes up to which the wait for the device is a large part of a copy's time."""
_PACK = 1 << 25
"""Bytes of one pack, which takes device memory for the duration of the copy."""


_STAGED = 1 << 28
"""Bytes that cross to the host between two waits: they take as much pinned memory, which torch keeps for the
next copy."""
_asked = threading.local()


@contextmanager
def together() -> Iterator[None]:
    """Inside, `copy_to_host` gives tensors that are filled when this ends, all of them after one wait for
    each device (or for each `_STAGED` bytes). Nothing in here may read them, or change what they are copies
    of."""
    if getattr(_asked, "crossings", None) is not None:
        yield
        return
    _asked.crossings = crossings = list[_Crossing]()
    try:
        yield
    finally:
        _asked.crossings = None
    by_device: dict[torch.device, list[_Crossing]] = {}
    for crossing in crossings:
        by_device.setdefault(crossing.there.device, []).append(crossing)
    for device, alike in by_device.items():
        for load in _loads(alike):
            _cross(load, device)


def copy_to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each on the host. The memory format is kept: a channels-last weight comes back as one."""
    with torch.no_grad(), together():
        found = [_asked_for(tensor.detach()) if _may_wait(tensor) else None for tensor in tensors]
        left = [number for number, copy in enumerate(found) if copy is None]
        for number, copy in zip(left, _copied_at_once([tensors[number] for number in left]), strict=True):
            found[number] = copy
        return found  # type: ignore[return-value]  # all of them are there now


def _copied_at_once(tensors: Sequence[Tensor]) -> list[Tensor]:
    found: list[Tensor | None] = [None] * len(tensors)
    for pack in _packs(tensors, tensors):
        there = _packed([tensors[number] for number in pack])
        here = there.cpu() if not there.is_cpu else there
        for number, view in zip(pack, _views(here, [tensors[number] for number in pack]), strict=True):
            found[number] = view.clone()
    return [
        tensor.detach().to("cpu", copy=True) if copy is None else copy
        for tensor, copy in zip(tensors, found, strict=True)
    ]


@dataclass(slots=True)
class _Crossing:
    """The bytes of a tensor on a device, and their place on the host."""

    there: Tensor
    here: Tensor


def _may_wait(tensor: Tensor) -> bool:
    return (
        tensor.is_cuda
        and (_is_plain(tensor) or type(tensor) is nn.Parameter)
        and not (tensor.is_conj() or tensor.is_neg())
        and torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    )


def _asked_for(tensor: Tensor) -> Tensor:
    made = torch.empty_like(tensor, device="cpu")
    if made.nbytes:
        _asked.crossings.append(_Crossing(_flat(tensor), _flat(made)))
    return made


def _flat(tensor: Tensor) -> Tensor:
    """The bytes of a tensor without gaps, in the order in which they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _loads(crossings: list[_Crossing]) -> Iterator[list[_Crossing]]:
    """What crosses at a time."""
    load, size = list[_Crossing](), 0
    for crossing in crossings:
        both = zip(torch.split(crossing.there, _STAGED), torch.split(crossing.here, _STAGED), strict=True)
        for there, here in both:
            if size + there.nbytes > _STAGED:
                yield load
                load, size = [], 0
            load.append(_Crossing(there, here))
            size += there.nbytes
    if load:
        yield load


def _cross(load: list[_Crossing], device: torch.device) -> None:
    """By pinned memory, so that no copy waits for the device. Small tensors are put together there first:
    each copy takes longer to begin than their bytes take to cross."""
    load.sort(key=lambda crossing: crossing.there.nbytes)
    with torch.cuda.device(device):  # pinned memory is of a device's context
        pinned = torch.empty(sum(each.there.nbytes for each in load), dtype=torch.uint8, pin_memory=True)
        begin = 0
        for pack in _small([crossing.there for crossing in load]):
            for each in _in_one_piece(pack):
                end = begin + each.nbytes
                pinned[begin:end].copy_(each, non_blocking=True)
                begin = end
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    done.synchronize()
    stages = torch.split(pinned, [each.there.nbytes for each in load])
    for crossing, stage in zip(load, stages, strict=True):
        crossing.here.copy_(stage)


def _in_one_piece(pack: list[Tensor]) -> list[Tensor]:
    try:
        return [torch.cat(pack)] if len(pack) > 1 else pack
    except torch.OutOfMemoryError:
        return pack  # one by one: this needs no memory there


def _small(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors by size: the small ones together, in packs, the others one by one."""
    pack, size = list[Tensor](), 0
    for tensor in tensors:
        if pack and (tensor.nbytes > _SMALL or size + tensor.nbytes > _PACK):
            yield pack
            pack, size = [], 0
        pack.append(tensor)
        size += tensor.nbytes
    if pack:
        yield pack


def spread_on_devices(live: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
    """The saved values, ready to be copied into the live ones; those of small tensors are on the device
    already."""
    found = [*saved]
    for pack in _packs(live, saved):
        here = _packed([saved[number] for number in pack])
        try:
            there = here.to(live[pack[0]].device)
        except torch.OutOfMemoryError:
            break  # they cross one by one, into the live ones' memory
        for number, view in zip(pack, _views(there, [saved[number] for number in pack]), strict=True):
            found[number] = view
    return found


def _packs(there: Sequence[Tensor], packed: Sequence[Tensor]) -> Iterator[list[int]]:
    """The indices of small tensors that are copied together, to or from a device. Tensors with large elements
    come first, so that each tensor begins at an address that its type allows."""
    by_device: dict[torch.device, list[int]] = {}
    for number, (each, value) in enumerate(zip(there, packed, strict=True)):
        if _is_away(each) and _may_be_packed(value):
            by_device.setdefault(each.device, []).append(number)
    for numbers in by_device.values():
        numbers.sort(key=lambda number: -packed[number].element_size())
        pack, size = list[int](), 0
        for number in numbers:
            if pack and size + packed[number].nbytes > _PACK:
                yield pack
                pack, size = [], 0
            pack.append(number)
            size += packed[number].nbytes
        if len(pack) > 1:
            yield pack


def _is_away(tensor: Tensor) -> bool:
    return not tensor.is_cpu


def _may_be_packed(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and 0 < tensor.nbytes <= _SMALL
        and tensor.is_contiguous()
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([each.detach().reshape(-1).view(torch.uint8) for each in tensors])


def _views(pack: Tensor, like: Sequence[Tensor]) -> Iterator[Tensor]:
    parts = torch.split(pack, [each.nbytes for each in like])
    for part, each in zip(parts, like, strict=True):
        yield part.view(each.dtype).view(each.shape)
