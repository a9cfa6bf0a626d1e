"""Keyframes of many small tensors, in little memory.

A tensor takes about 1 kB in addition to its numbers: a Python object, a torch object, a piece of memory, and
its entries in dicts and lists. With 1,000 parameters and Adam, a keyframe holds 4,000 tensors. So small ones
are packed into one tensor for each type. Their shapes and places are kept once for all keyframes that are
alike. They are unpacked again when a caller reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors as _laid

SMALL = 4096
"""Bytes up to which a tensor is packed with others."""
_CONSTANT = {str, bool, type(None)}
_UNKNOWN = object()
_Small = defaultdict[torch.dtype, list[Tensor]]


class Compact(Mapping[str, Any]):
    """The parts of a state, with small tensors packed together.

    >>> compact = Compact({"model": [torch.full((2,), float(i)) for i in range(20)], "loop": {"epoch": 3}})
    >>> compact["loop"], compact["model"][7]
    ({'epoch': 3}, tensor([7., 7.]))

    Args:
        parts: what is kept. No code may change any of it later.
        like: another one, whose plan is shared if it is the same.
    """

    __slots__ = ("_flat", "_others", "_plans")

    def __init__(self, parts: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> None:
        known = like._plans if isinstance(like, Compact) else {}
        self._plans: dict[str, Any] = {}
        self._others: dict[str, list[Any]] = {}
        self._flat: dict[str, dict[torch.dtype, Tensor]] = {}
        for name, part in parts.items():
            plan = known.get(name, _UNKNOWN) if is_packed(name) else None
            small, others = _Small(list), list[Any]()
            if plan is _UNKNOWN or not _fits(plan, part, small, others):
                plan, small, others = _plan(part), _Small(list), []
                _fits(plan, part, small, others)
            self._plans[name], self._others[name] = plan, others
            with torch.no_grad():
                self._flat[name] = {dtype: _laid(tensors) for dtype, tensors in small.items()}  # type: ignore[no-untyped-call]

    def held(self) -> list[Any]:
        """The objects that take memory for this one alone."""
        return [*self._flat.values(), *self._others.values()]

    def __getitem__(self, name: str) -> Any:
        flat = {dtype: _BytesReader(tensor) for dtype, tensor in self._flat[name].items()}
        return _put_together(self._plans[name], flat, iter(self._others[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)


def is_packed(name: str) -> bool:
    """Whether this part of a state is packed. Keyframes share the metrics' part, which only grows."""
    return not name.startswith("metrics ")


class _BytesReader:
    def __init__(self, flat: Tensor) -> None:
        self._flat, self._at = flat, 0

    def take(self, shape: torch.Size, stride: tuple[int, ...], count: int) -> Tensor:
        first, self._at = self._at, self._at + count
        return self._flat.as_strided(shape, stride, first)


def _plan(node: Any) -> Any:
    """How to rebuild a value; None for a value that differs from one keyframe to the next."""
    kind = type(node)
    if kind is Tensor and _is_plain(node) and node.nbytes <= SMALL:
        return (Tensor, node.dtype, node.shape, node.stride(), node.numel())
    if kind is dict:
        return (dict, tuple(node), tuple(map(_plan, node.values())))
    if kind is list or kind is tuple:
        return (kind, tuple(map(_plan, node)))
    return (None, node) if kind in _CONSTANT else None


def _is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is only numbers, one after the other."""
    dense = tensor.is_cpu and tensor.layout is torch.strided and tensor.is_contiguous()
    return dense and not (tensor.requires_grad or tensor.is_quantized or tensor.is_complex())


def _fits(plan: Any, node: Any, small: _Small, others: list[Any]) -> bool:
    """Whether this plan rebuilds the value; if so, the tensors and objects that it needs are in the lists."""
    if plan is None:
        others.append(node)
        return True
    kind = plan[0]
    if kind is Tensor:
        if (
            type(node) is not Tensor
            or node.shape != plan[2]
            or node.dtype is not plan[1]
            or not node.is_contiguous()
        ):
            return False
        small[plan[1]].append(node)
        return True
    if kind is None:
        return type(node) is type(plan[1]) and bool(node == plan[1])
    if type(node) is not kind or len(node) != len(plan[-1]):
        return False
    if kind is dict:
        if tuple(node) != plan[1]:
            return False
        node = node.values()
    return all([_fits(part, each, small, others) for part, each in zip(plan[-1], node, strict=True)])


def _put_together(plan: Any, flat: Mapping[torch.dtype, _BytesReader], others: Iterator[Any]) -> Any:
    if plan is None:
        return next(others)
    kind = plan[0]
    if kind is None:
        return plan[1]
    if kind is Tensor:
        return flat[plan[1]].take(plan[2], plan[3], plan[4])
    if kind is dict:
        return {key: _put_together(each, flat, others) for key, each in zip(plan[1], plan[2], strict=True)}
    return kind([_put_together(each, flat, others) for each in plan[1]])
