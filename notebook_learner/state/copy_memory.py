"""The memory of copies that nobody holds any more, for the copies that come after.

The first touch of new memory costs: 100 MB take 5 ms to copy where the memory was used before, 30 where it
is new, and up to 190 were measured in a virtual machine whose host had taken it back. A training that is
saved now and then would pay that each time, and wait for it before its optimizer steps. So a copy's memory
is kept when the copy is dropped: by the writer of checkpoints, or for keyframes that were thinned out. No
more is kept than the last copy took, and between runs nothing is.
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
"""Bytes of a tensor from which it is worth it; smaller ones come from memory the process has in use."""
LONG = 60.0
"""Seconds after which memory that no copy wanted is let go of: who copies that rarely can afford it."""


class CopyMemory:
    """Hands out tensors, and takes back their memory by itself."""

    def __init__(self) -> None:
        self._free: dict[int, list[_Memory]] = {}
        self._asked: Counter[int] = Counter()
        """Pieces of each size since `open`: as many are kept, however many come back."""
        self._open = False
        self._since = 0.0

    def open(self) -> None:
        """The tensors of a copy are about to be asked for."""
        self._open, self._since, self._asked = True, monotonic(), Counter()

    def close(self) -> None:
        """Let go of everything, also of what comes back later."""
        self._open, self._free = False, {}

    def close_if_unused(self) -> None:
        """At a boundary: where nobody has asked for long."""
        if self._open and monotonic() - self._since > LONG:
            self.close()

    @property
    def nbytes(self) -> int:
        """What is kept and not in use."""
        return sum(size * len(pieces) for size, pieces in self._free.items())

    def like(self, live: Tensor) -> Tensor:
        """A tensor of the same type, shape and strides, with any values."""
        if live.nbytes < LARGE or not _is_plain(live):
            return torch.empty_like(live)
        size = live.nbytes
        self._asked[size] += 1
        free = self._free.get(size)
        memory = free.pop() if free else torch.empty(size, dtype=torch.uint8).numpy()
        # Whatever shares a tensor's memory holds this array, from C++ too: it is gone when all of them are.
        lent = memory[:]
        weakref.finalize(lent, self._take_back, memory).atexit = False
        form = live if live.is_contiguous() else torch.empty_like(live, device="meta")
        return torch.from_numpy(lent).view(live.dtype).as_strided(form.shape, form.stride())

    def _take_back(self, memory: _Memory) -> None:
        """In whichever thread dropped the last copy."""
        free = self._free.setdefault(memory.nbytes, [])
        if self._open and len(free) < self._asked[memory.nbytes]:
            free.append(memory)


def _is_plain(tensor: Tensor) -> bool:
    """Whether it is nothing but bytes, shape and strides."""
    special = tensor.is_nested or tensor.is_quantized or tensor.layout is not torch.strided
    return type(tensor) is Tensor and not special
