"""Find all tensors in a nested value, each with its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

from torch import Tensor

_DEEPEST = 32
_MOST = 10_000
"""Objects visited in one value, at most: an object may refer to half of a program."""


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a nested value with its path, written as Python code.

    It searches lists, tuples, mappings, dataclasses and plain objects, each once.

    >>> import torch
    >>> [path for path, _ in tensors_in({"x": torch.ones(1), "y": [1, torch.ones(2)]})]
    ["['x']", "['y'][1]"]
    """
    if isinstance(value, Tensor):  # the output of most layers
        yield "", value
        return
    seen: set[int] = set()
    # A stack, not recursion: the user's batch may be nested deeper than Python's recursion limit.
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    while waiting and len(seen) < _MOST:
        path, one, depth = waiting.pop()
        if isinstance(one, Tensor):
            yield path, one
            continue
        if id(one) in seen or depth > _DEEPEST:
            continue
        children = _children(one)
        if children:
            seen.add(id(one))
            waiting += [(path + step, child, depth + 1) for step, child in reversed(children)]


def floating_in(value: Any) -> list[Tensor]:
    """Return the tensors of a value that can hold a NaN, in the order in which they are found.

    >>> import torch
    >>> len(floating_in((torch.ones(1), torch.ones(1, dtype=torch.long), {"h": torch.ones(2)})))
    2
    """
    found = (tensor for _, tensor in tensors_in(value))
    return [tensor for tensor in found if tensor.is_floating_point() or tensor.is_complex()]


def _children(value: Any) -> list[tuple[str, Any]]:
    if value is None or isinstance(value, (str, bytes, bytearray, int, float, complex, type, range)):
        return []
    if isinstance(value, Mapping):
        return [(f"[{_key(key)}]", child) for key, child in islice(value.items(), _MOST)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", child) for name, child in zip(value._fields, value, strict=False)]
    if isinstance(value, Sequence):
        return [(f"[{at}]", child) for at, child in enumerate(islice(value, _MOST))]
    if is_dataclass(value):
        return [(f".{f.name}", getattr(value, f.name, None)) for f in fields(value)]
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict) or callable(value):  # a model or a function is not part of a batch
        return []
    return [(f".{name}", child) for name, child in held.items()]


def _key(key: Any) -> str:
    text = repr(key) if isinstance(key, (str, int, float, bool, tuple)) else f"<{type(key).__name__}>"
    return text if len(text) <= 60 else f"{text[:59]}…"
