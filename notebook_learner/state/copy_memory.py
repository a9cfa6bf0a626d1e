"""Reuses the memory of dropped state copies for the next copies.

The first touch of new memory is slow: a copy of 100 MB takes 5 ms into used memory, and 30 ms into new
memory. In a virtual machine whose host had taken the memory back, up to 190 ms were measured. A training that
is saved now and then would pay that each time, and wait for it before its optimizer steps. So the memory of a
copy is kept when the copy is dropped: by the writer of checkpoints, or by keyframes that were thinned out. At
most as much is kept as the last copy took, and between runs nothing is kept.
"""

from __future__ import annotations

import weakref
from collections import Counter
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
        if live.nbytes < LARGE or not _is_plain(live):
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


def _is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is only bytes, shape and strides."""
    special = tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided
    return type(tensor) is Tensor and not special
