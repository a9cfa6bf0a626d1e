"""Tensors and arrays: copied as far as a step can change them, and not where they are only read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..state.state import copied
from .kinds import Kind, Part, same_arrays, same_tensors

FREE = 16 << 20
"""Bytes that are copied although no step has changed them yet. What lies beyond is taken to be read only
until it changes: a data set in memory costs no copy."""
_PLACES = 64
"""How many values of a large array are compared at each look."""


class Room:
    """How many bytes may still be copied for objects that no step has changed."""

    def __init__(self) -> None:
        self.left = FREE
        self.unseen = False
        """Whether code that is reached writes to tensors behind torch's back, as through `.data`."""
        self.written: set[int] = set()
        """The objects beyond the room that did change: from then on they are copied."""

    def takes(self, live: Any, nbytes: int) -> bool:
        """Whether an object of this size is copied."""
        if id(live) in self.written:
            return True
        if nbytes > self.left:
            return False
        self.left -= nbytes
        return True


@dataclass(slots=True)
class TensorTaken:
    """A tensor's numbers, and how torch counts its changes."""

    copy: Tensor | None
    """None if it is taken to be read only."""
    version: int
    place: int
    shape: torch.Size
    dtype: torch.dtype
    trains: bool
    grad: Tensor | None


class TensorKind(Kind):
    """A tensor outside of the model."""

    name = "tensor"

    def __init__(self, room: Room) -> None:
        self.room = room

    def take(self, live: Tensor) -> TensorTaken:
        size = live.nbytes if live.layout is torch.strided else 1
        copy = copied(live) if self.room.takes(live, size) else None
        grad = live.grad if live.is_leaf and live.requires_grad else None
        return TensorTaken(
            copy, _version(live), _place(live), live.shape, live.dtype, live.requires_grad, grad
        )

    def same(self, live: Tensor, taken: TensorTaken) -> bool:
        if (
            _version(live) != taken.version
            or live.requires_grad is not taken.trains
            or _place(live) != taken.place
            or live.shape != taken.shape
            or (taken.trains and live.is_leaf and live.grad is not taken.grad)
        ):
            return False
        unseen = self.room.unseen or taken.version < 0
        return taken.copy is None or not unseen or same_tensors(live, taken.copy)

    def put(self, live: Tensor, taken: TensorTaken) -> None:
        if taken.copy is None:
            return  # the user was told when it changed
        with torch.no_grad():
            if live.shape == taken.copy.shape and live.dtype == taken.copy.dtype:
                live.copy_(taken.copy)
            else:
                live.data = taken.copy.to(live.device, copy=True)
        if live.is_leaf:
            if live.requires_grad is not taken.trains:
                live.requires_grad_(taken.trains)
            if taken.trains:
                live.grad = taken.grad
        taken.version, taken.place = _version(live), _place(live)

    def parts(self, live: Tensor, taken: TensorTaken) -> Iterable[Part]:
        return () if taken.grad is None else ((".grad", taken.grad),)

    def tensors(self, taken: TensorTaken) -> Iterable[Tensor]:
        return () if taken.copy is None else (taken.copy,)


def _version(live: Tensor) -> int:
    return -1 if live.is_inference() else live._version


def _place(live: Tensor) -> int:
    return live.data_ptr() if live.layout is torch.strided else 0


@dataclass(slots=True)
class ArrayTaken:
    """An array's numbers."""

    copy: Any
    """None if it is taken to be read only."""
    sample: Any


class ArrayKind(Kind):
    """A NumPy array."""

    name = "array"

    def __init__(self, room: Room) -> None:
        self.room = room

    def take(self, live: Any) -> ArrayTaken:
        if live.flags.writeable and self.room.takes(live, live.nbytes):
            return ArrayTaken(live.copy(), None)
        return ArrayTaken(None, _sample(live))

    def same(self, live: Any, taken: ArrayTaken) -> bool:
        if taken.copy is None:
            return same_arrays(_sample(live), taken.sample)
        return live.shape == taken.copy.shape and same_arrays(live, taken.copy)

    def put(self, live: Any, taken: ArrayTaken) -> None:
        if taken.copy is None:
            return
        if live.shape != taken.copy.shape:
            live.resize(taken.copy.shape, refcheck=False)
        live[...] = taken.copy

    def parts(self, live: Any, taken: ArrayTaken) -> Iterable[Part]:
        if live.dtype.hasobject:
            return ((f"[{number}]", each) for number, each in enumerate(live.flat))
        return ()

    def tensors(self, taken: ArrayTaken) -> Iterable[Tensor]:
        if taken.copy is None or taken.copy.dtype.hasobject or not taken.copy.nbytes:
            return ()
        return (torch.from_numpy(np.ascontiguousarray(taken.copy).reshape(-1).view(np.uint8)),)


def may_change_unseen(live: Any, taken: Any, room: Room) -> bool:
    """Whether it is not copied, and a write to it might not show at a look."""
    if isinstance(taken, TensorTaken):
        plain = live.is_cpu and live.layout is torch.strided and not live.is_quantized
        return taken.copy is None and plain and (room.unseen or taken.version < 0)
    if isinstance(taken, ArrayTaken):
        return taken.copy is None and _is_writable(live)
    return True  # a table


def _is_writable(live: Any) -> bool:
    while isinstance(live, np.ndarray):
        if live.flags.writeable:
            return True
        live = live.base
    return False


def _sample(live: Any) -> Any:
    flat = live.reshape(-1) if live.flags.c_contiguous else live.flat
    apart = max(1, live.size // _PLACES)
    return np.array(flat[::apart])
