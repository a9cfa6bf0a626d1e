"""Whether two values are equal to the bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from itertools import starmap
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

_COMPARED = {int, float, bool, complex, str, bytes}


def alike(one: Any, other: Any) -> bool:
    """Whether two references are to one object, or to plain values that are equal to the bit."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other) or kind not in _COMPARED:
        return False
    return bool(
        (one == other and (one or kind is not float or repr(one) == repr(other))) or one != one != other
    )


def all_alike(ones: Collection[Any], others: Collection[Any]) -> bool:
    """The same for each pair of two rows."""
    return len(ones) == len(others) and (
        all(map(is_, ones, others)) or all(starmap(alike, zip(ones, others, strict=True)))
    )


def same_values(one: Any, other: Any) -> bool:
    """Whether two nested values are equal to the bit."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return same_tensors(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and same_arrays(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(same_values, one, other))
    return alike(one, other) or (type(one) not in _COMPARED and bool(one == other))


def same_tensors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bytes, so that a NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return bool(torch.equal(one, other))
    one, other = one.detach(), other.detach()
    if one.device != other.device:
        one, other = one.cpu(), other.cpu()
    return torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (one, other)))


def same_arrays(one: Any, other: Any) -> bool:
    """Whether two arrays of one type and shape have the same bytes."""
    if one.dtype.hasobject:
        return all_alike(tuple(one.flat), tuple(other.flat))
    raw = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other)]
    return bool(np.array_equal(raw[0], raw[1]))
