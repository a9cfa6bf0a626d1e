"""What the user changes in options, weights, buffers and the optimizer's state while the run stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..step.options import Groups, groups_now, said_changes

_AS_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LARGE = 4096
_TOLD = 3


class StandingValues(NamedTuple):
    """The options and the tensors of a run at the boundary where it stands; each tensor by the sum of its
    bits, which takes a third of the time of a copy, and no memory.

    >>> model = nn.Linear(2, 1)
    >>> stood = StandingValues.of(model, torch.optim.SGD(model.parameters()))
    >>> model.bias.data += 1
    >>> stood.changed(StandingValues.of(model, torch.optim.SGD(model.parameters())))
    ['bias']
    """

    options: Groups
    sums: dict[str, int]
    weights: frozenset[str] = frozenset()
    """The names of parameters and buffers."""

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer, tensors: bool = True) -> StandingValues:
        """A tensor that is sparse, quantized or spread over processes is not read, and none is where a device
        has no memory left for their sums.

        Args:
            model: whose parameters and buffers are read.
            optimizer: whose options and state are read.
            tensors: whether to read tensors at all.
        """
        options = groups_now(optimizer)
        if tensors:
            with suppress(torch.OutOfMemoryError):
                return cls(options, *_read(model, optimizer))
        return cls(options, {})

    def changed(self, now: StandingValues) -> list[str]:
        """The names of the tensors that have other values now. One that came or went is one of them, too,
        but not where layers or groups did: that is a change of the shape, which is told as such."""
        names = dict.fromkeys([*self.sums, *now.sums])
        if self.weights != now.weights or len(self.options) != len(now.options):
            names = dict.fromkeys(name for name in names if name in self.sums and name in now.sums)
        return [name for name in names if self.sums.get(name) != now.sums.get(name)]

    def said_changes(self, now: StandingValues) -> list[str]:
        """What has changed, in words. New groups are told as a change of the shape."""
        of_options = self.options if len(self.options) == len(now.options) else now.options
        return [*filter(None, (said_changes(of_options, now.options), said_touched(self.changed(now))))]


def said_touched(names: Sequence[str]) -> str:
    """Tensors that were changed by hand, in words; empty without any.

    >>> said_touched(["0.weight", "0.bias", "2.weight", "2.bias"])
    'new values of 0.weight, 0.bias, 2.weight and 1 more'
    """
    if not names:
        return ""
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return f"new values of {', '.join(names[:_TOLD])}{more}"


def _read(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, int], frozenset[str]]:
    """The sums of all tensors, and the names of parameters and buffers."""
    found = {name: each for name, each in _tensors_of(model, optimizer) if _can_be_read(each)}
    sums = [_sum(each) for each in found.values()]
    # All sums of a device cross in one copy.
    devices = {each.device: [other for other in sums if other.device == each.device] for each in sums}
    told = {device: iter(torch.stack(there).tolist()) for device, there in devices.items()}
    read = {name: next(told[each.device]) for name, each in zip(found, sums, strict=True)}
    return read, frozenset(name for name, _ in (*model.named_parameters(), *model.named_buffers()))


def _tensors_of(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    names: dict[Tensor, str] = {}
    for name, each in model.named_parameters():
        names[each] = name
        yield name, each
    yield from model.named_buffers()
    for number, (parameter, held) in enumerate(optimizer.state.items()):
        of = names.get(parameter, f"parameter {number}")
        for key, value in held.items() if isinstance(held, dict) else ():
            if isinstance(value, Tensor):
                yield f"{key} of {of}", value


def _can_be_read(each: Tensor) -> bool:
    ordinary = type(each) in (Tensor, nn.Parameter, nn.Buffer) and each.layout == torch.strided
    return ordinary and not each.is_quantized and each.device.type != "meta"


def _sum(each: Tensor) -> Tensor:
    values = each.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    if values.dtype == torch.bool:
        return values.sum()
    size = values.element_size()
    bits = values.contiguous().view(_AS_WHOLE_NUMBERS[size]).flatten()
    if bits.numel() < _LARGE or bits.storage_offset() * size % 8:
        return bits.sum(dtype=torch.int64)
    # Eight bytes at once are read ten times as fast. The two halves count differently: the same rows in
    # another order are a change.
    half = bits.numel() * size // 16 * 8 // size
    first, second, rest = bits[:half], bits[half : 2 * half], bits[2 * half :]
    return 3 * first.view(torch.int64).sum() + second.view(torch.int64).sum() + rest.sum(dtype=torch.int64)
