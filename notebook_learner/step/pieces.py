"""A batch that goes through the model in parts, and what its parts gave, as if it had gone as a whole."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from ..data.batch_parts import parts_of, rebuilt
from ..errors import StepError, a_kind
from .output import weight_of

_OWN_WEIGHT = "weight"
"""The field of an output that counts samples: those of the parts add up."""


class Pieces:
    """One batch in parts. Iterate over them, and give each one's output to `took`.

    >>> pieces = Pieces(torch.arange(4.0), 2)
    >>> for part in pieces:
    ...     pieces.took({"loss": part.mean(), "output": part}, part)
    >>> pieces.joined()
    {'loss': tensor(1.5000), 'output': tensor([0., 1., 2., 3.])}
    """

    def __init__(self, batch: Any, count: int) -> None:
        self._parts = parts_of(batch, count)
        self._rows: list[int] = []
        self._outputs: list[Any] = []
        self._weights: list[Any] = []
        self._logged: dict[str, tuple[Any, int]] = {}

    def __iter__(self) -> Iterator[Any]:
        while self._parts:
            part, rows = self._parts.pop(0)
            self._rows.append(rows)
            yield part

    @property
    def begins(self) -> bool:
        """Whether the part of now is the first one of its batch."""
        return len(self._rows) == 1

    def took(self, output: Any, part: Any) -> None:
        """Keep what a part gave, without its graph, whose memory the next part needs."""
        self._outputs.append(_detached(output))
        weight = weight_of(output, part)
        self._weights.append(weight.detach() if isinstance(weight, Tensor) else weight)

    def logged(self, name: str, value: Any) -> Any:
        """The mean, over the samples so far, of what the parts logged by a name; `value` is the latest."""
        if not isinstance(value, (int, float)) and not (isinstance(value, Tensor) and value.numel() == 1):
            return value  # a metric object keeps its own sums; anything else is refused where it is logged
        value = value.detach() if isinstance(value, Tensor) else value
        total, rows = self._logged.get(name, (0.0, 0))
        total, rows = total + value * self._rows[-1], rows + self._rows[-1]
        self._logged[name] = total, rows
        return total / max(1, rows)

    def joined(self) -> Any:
        """What the whole batch gave: rows one below the other, and the mean of what is one number. A loss
        counts by its samples. What is neither is None."""
        return self._outputs[0] if len(self._outputs) == 1 else self._join(self._outputs, "", 0)

    def _join(self, values: Sequence[Any], name: str, depth: int) -> Any:
        first = values[0]
        if name != _OWN_WEIGHT and all(each is first for each in values):
            return first
        if any(type(each) is not type(first) for each in values):
            return None
        if isinstance(first, Tensor):
            return self._rows_of(values, name)
        if isinstance(first, Mapping):
            if any(each.keys() != first.keys() for each in values):
                return None
            joined = {key: self._join([each[key] for each in values], str(key), depth + 1) for key in first}
            inner = iter(joined.values())
            return rebuilt(first, lambda _: next(inner))
        if isinstance(first, (list, tuple)):
            return self._join_lists(values, depth)
        if isinstance(first, float) or name == _OWN_WEIGHT:
            return self._mean(values, name)
        if (is_dataclass(first) and not isinstance(first, type)) or (
            not depth and hasattr(first, "__dict__")
        ):
            return self._join_fields(values, depth)
        if not depth:
            raise StepError(
                f"split_batch() joins what the step returns for each part, and cannot join {a_kind(first)}; "
                "return ClassificationOutput(loss, output, targets), a dict with a loss, or any plain object "
                "with `.loss`; or write learner.split_batch(1)"
            )
        return (
            first if isinstance(first, (str, bytes, int)) and all(each == first for each in values) else None
        )

    def _rows_of(self, values: Sequence[Tensor], name: str) -> Any:
        if not any(each.ndim for each in values):
            numeric = values[0].is_floating_point() or values[0].is_complex() or name == _OWN_WEIGHT
            return self._mean(values, name) if numeric else None
        shapes = [each.shape for each in values]
        times, rest = divmod(shapes[0][0] if shapes[0] else 0, self._rows[0])
        fits = [shape and shape[0] == times * rows for shape, rows in zip(shapes, self._rows, strict=True)]
        alike = len({shape[1:] for shape in shapes}) == 1
        return torch.cat([*values]) if all(fits) and not rest and alike else None

    def _mean(self, values: Sequence[Any], name: str) -> Any:
        if name == _OWN_WEIGHT:
            return sum(values[1:], values[0])
        weighted = [value * weight for value, weight in zip(values, self._weights, strict=True)]
        total = sum(self._weights[1:], self._weights[0])
        return sum(weighted[1:], weighted[0]) / total

    def _join_lists(self, values: Sequence[Any], depth: int) -> Any:
        first = values[0]
        listed = not any(isinstance(each, (Tensor, Mapping, list, tuple)) for each in first)
        if listed and [*map(len, values)] == self._rows:
            return type(first)(each for value in values for each in value)
        if any(len(each) != len(first) for each in values):
            return None
        inner = iter([self._join(each, "", depth + 1) for each in zip(*values, strict=True)])
        return rebuilt(first, lambda _: next(inner))

    def _join_fields(self, values: Sequence[Any], depth: int) -> Any:
        other = copy.copy(values[0])
        for name in _names(other):
            joined = self._join([getattr(each, name, None) for each in values], name, depth + 1)
            object.__setattr__(other, name, joined)
        return other


def _names(value: Any) -> list[str]:
    declared = [each.name for each in fields(value)] if is_dataclass(value) else []
    return [*dict.fromkeys([*declared, *getattr(value, "__dict__", ())])]


def _detached(value: Any, depth: int = 0) -> Any:
    """The same values without a graph."""
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, (Mapping, list, tuple)):
        return rebuilt(value, lambda each: _detached(each, depth + 1))
    if (is_dataclass(value) and not isinstance(value, type)) or (not depth and hasattr(value, "__dict__")):
        other = copy.copy(value)
        for name in _names(other):
            object.__setattr__(other, name, _detached(getattr(value, name), depth + 1))
        return other
    return value
