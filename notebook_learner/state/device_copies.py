"""Copies between a device and the host, many small tensors at a time, as each copy waits for the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

_SMALL = 1 << 20
"""Bytes up to which the wait for the device is a large part of a copy's time."""
_PACK = 1 << 25
"""Bytes of one pack, which takes device memory for the duration of the copy."""


def copy_to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of each on the host. The memory format is kept: a channels-last weight comes back as one."""
    found: list[Tensor | None] = [None] * len(tensors)
    with torch.no_grad():
        for pack in _packs(tensors, tensors):
            there = _packed([tensors[number] for number in pack])
            here = there.cpu() if not there.is_cpu else there
            for number, view in zip(pack, _views(here, [tensors[number] for number in pack]), strict=True):
                found[number] = view.clone()
        return [
            tensor.detach().to("cpu", copy=True) if copy is None else copy
            for tensor, copy in zip(tensors, found, strict=True)
        ]


def spread_on_devices(live: Sequence[Tensor], saved: Sequence[Tensor]) -> list[Tensor]:
    """The saved values, ready to be copied into the live ones; those of small tensors are on the device
    already."""
    found = [*saved]
    for pack in _packs(live, saved):
        here = _packed([saved[number] for number in pack])
        there = here.to(live[pack[0]].device)
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
