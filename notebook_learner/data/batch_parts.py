"""A batch in parts along its first dimension, for a step that has no memory for the whole of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, strided

from ..errors import StepError, a_kind

_NO_ROWS = (str, bytes, int, float, complex, type(None))
"""What every part has as it is."""


def parts_of(batch: Any, count: int) -> list[tuple[Any, int]]:
    """The batch in so many parts, each with its number of samples; in less if it has less samples.

    Tensors, arrays and lists with an entry for each sample are cut. Numbers and texts are in every part.

    >>> import torch
    >>> [(part["x"].tolist(), size) for part, size in parts_of({"x": torch.arange(3), "name": "a"}, 2)]
    [([0, 1], 2), ([2], 1)]

    Raises:
        StepError: the number of samples is not known, or not the same everywhere.
    """
    rows = rows_of(batch, count)
    count = max(1, min(count, rows))
    if count == 1:
        return [(batch, rows)]
    small, more = divmod(rows, count)
    sizes = [small + (number < more) for number in range(count)]
    starts = [sum(sizes[:number]) for number in range(count)]
    return [
        (_cut(batch, rows, slice(start, start + size)), size)
        for start, size in zip(starts, sizes, strict=True)
    ]


def rows_of(batch: Any, count: int) -> int:
    """The number of samples of a batch that is to be cut into so many parts."""
    lengths = dict(_lengths(batch, "batch", count))
    if not lengths:
        raise StepError(
            f"split_batch({count}) cuts a batch along the first dimension of its tensors, and this batch, "
            f"{a_kind(batch)}, has none; write learner.split_batch(1), and a smaller batch size in the loader"
        )
    first = next(iter(lengths))
    for place, length in lengths.items():
        if length != lengths[first]:
            raise StepError(
                f"split_batch({count}) cuts a batch along its first dimension, but {first} has "
                f"{lengths[first]} entries there and {place} has {length}; give each an entry for every "
                "sample, or write learner.split_batch(1), and a smaller batch size in the loader"
            )
    return lengths[first]


def _lengths(value: Any, place: str, count: int) -> Iterator[tuple[str, int]]:
    """The place and the length of everything that has an entry for each sample."""
    if _is_array(value):
        if not value.ndim or (isinstance(value, Tensor) and (value.layout is not strided or value.is_nested)):
            kind = "without dimensions" if not value.ndim else "that is not dense"
            raise StepError(
                f"split_batch({count}) cannot cut {place}, a tensor {kind}; make it a number, or give it an "
                "entry for every sample, or write learner.split_batch(1)"
            )
        yield place, len(value)
    elif _is_listed(value):
        yield place, len(value)
    elif (inner := _inside(value)) is not None:
        for step, each in inner:
            yield from _lengths(each, f"{place}{step}", count)
    elif not isinstance(value, _NO_ROWS):
        raise StepError(
            f"split_batch({count}) cannot cut {place}, {a_kind(value)}: only its class knows how; write "
            "learner.split_batch(1), and a smaller batch size in the loader"
        )


def _cut(value: Any, rows: int, part: slice) -> Any:
    if _is_array(value) or _is_listed(value):
        return value[part]
    if _inside(value) is None:
        return value
    return rebuilt(value, lambda each: _cut(each, rows, part))


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor) or (type(value).__module__ == "numpy" and hasattr(value, "ndim"))


def _is_listed(value: Any) -> bool:
    """Whether it is a list of one number, text or the like for each sample."""
    plain = type(value) in (list, tuple) and len(value) > 0
    return plain and all(type(each) in _NO_ROWS for each in value)


def _inside(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, with the path to it; None if it is not a container."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", each) for key, each in value.items()]
    if hasattr(value, "to"):  # PackedSequence, the batch of a graph library
        return None
    if isinstance(value, (list, tuple)):
        return [(f"[{number}]", each) for number, each in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{each.name}", getattr(value, each.name)) for each in fields(value)]
    return None


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container like this one, of the same type, with what it holds changed.

    >>> rebuilt((1, 2), lambda each: each + 1)
    (2, 3)
    """
    if isinstance(value, Mapping):
        changed = {key: change(each) for key, each in value.items()}
        if not isinstance(value, MutableMapping):
            return type(value)(changed)  # type: ignore[call-arg]  # every read-only view takes a dict
        other = copy.copy(value)  # a defaultdict keeps its default
        for key, each in changed.items():
            other[key] = each
        return other
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(change, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(change, value))
    other = copy.copy(value)
    for each in fields(value):
        object.__setattr__(other, each.name, change(getattr(value, each.name)))
    return other
