"""The way of a batch to the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .batch import is_on, move


class ToDevice:
    """Brings batches to a device.

    >>> ToDevice(torch.device("meta"))([torch.zeros(2)])[0].device.type
    'meta'
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, batch: Any) -> Any:
        return move(batch, self.device)

    def finds_there(self, batch: Any) -> bool:
        """Whether every tensor of the batch is on the device already."""
        return is_on(batch, self.device)


class ByItsOwnStream(ToDevice):
    """Brings batches to a CUDA device beside what it computes: by pinned memory, on a stream of its own.

    The host is ahead of the device: it hands out the copy of a batch while the device still computes with the
    one before. On the device's main stream the copy would begin only when that is done; here both go on side
    by side. No batch is drawn ahead of its step, so that every random number is the same.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, batch: Any) -> Any:
        there = move(batch, self.device, self._copied)
        # What is computed next waits there for the copies; the host does not.
        torch.cuda.current_stream(self.device).wait_stream(self._stream)
        return there

    def _copied(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            return tensor.to(self.device, non_blocking=True)
        # torch keeps the pinned memory until the copy is done, and uses it for a later batch.
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        with torch.cuda.stream(self._stream):
            there = pinned.to(self.device, non_blocking=True)
        # The memory is the side stream's: without this, a later batch could get it while this one is in use.
        there.record_stream(torch.cuda.current_stream(self.device))
        return there


def way_to(device: torch.device, prefetch: bool) -> ToDevice:
    """The way of a run's batches to its device."""
    return ByItsOwnStream(device) if prefetch and device.type == "cuda" else ToDevice(device)
