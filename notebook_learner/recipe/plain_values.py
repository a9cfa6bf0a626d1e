"""Values of any kind as plain JSON."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import a_kind

_MOST = 64
"""Members of a list or mapping that are kept, and values of a tensor."""
_LONGEST = 2000
_DEEPEST = 6


def plain(value: Any, depth: int = 0) -> Any:
    """A value as plain JSON. What JSON lacks becomes text, without addresses; long values are cut.

    >>> plain({"lr": 1e-3, "betas": (0.9, 0.999), "dtype": torch.bfloat16, "most": float("inf")})
    {'lr': 0.001, 'betas': [0.9, 0.999], 'dtype': 'torch.bfloat16', 'most': 'inf'}
    >>> plain(print), plain(object())
    ('print', 'an object')
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, (str, os.PathLike)):
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
        return str(text)[:_LONGEST]
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        return _of_array(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if depth < _DEEPEST and isinstance(value, Mapping):
        items = list(value.items())[:_MOST]
        return {str(name)[:_LONGEST]: plain(each, depth + 1) for name, each in items}
    if depth < _DEEPEST and isinstance(value, (Sequence, set, frozenset)):
        members = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else list(value[:_MOST])
        return [plain(each, depth + 1) for each in members[:_MOST]]
    if isinstance(value, (torch.dtype, torch.device, slice, range, complex)):
        return str(value)
    return getattr(value, "__name__", None) or a_kind(value)


def own_values(given: Any) -> dict[str, Any]:
    """What a mapping, a dataclass or a namespace holds, as plain JSON.

    Raises:
        TypeError: it is none of them.

    >>> from types import SimpleNamespace
    >>> own_values(SimpleNamespace(width=64)), own_values({"width": 64})
    ({'width': 64}, {'width': 64})
    """
    is_object = dataclasses.is_dataclass(given) and not isinstance(given, type)
    if isinstance(given, type):
        raise TypeError("a class")
    told: dict[str, Any] = plain(given if isinstance(given, Mapping) or is_object else vars(given))
    return told


def config_mistakes(given: Sequence[Any]) -> Iterator[str]:
    """What is wrong with the values of `.config(...)`."""
    for each in given:
        try:
            own_values(each)
        except TypeError:
            yield f"config({each!r:.60}): give a mapping, such as {{'width': 64}}, a dataclass or vars(args)"


def _of_array(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_meta or value.numel() > _MOST or value.device.type != "cpu":
            return f"a tensor of {str(value.dtype)[6:]} {list(value.shape)}"
        value = value.detach().tolist()
    elif value.size > _MOST:
        return f"an array of {value.dtype} {list(value.shape)}"
    else:
        value = value.tolist()
    return plain(value)
