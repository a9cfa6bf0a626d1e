"""Check whether the values of many tensors are finite, with one read from the device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .statistics import FEW, Rows, read, rows_of, values_in, wide

_MOST_WAITING = 256
"""The most copies of small tensors at a time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How many of some values are not finite, and their range."""

    low: float = 0.0
    high: float = 0.0
    count: int = 0
    total: int = 0

    @property
    def level(self) -> int:
        """0: all finite; 1: -inf, as in masks, but no NaN or inf; 2: NaN or inf."""
        if math.isnan(self.low) or math.isnan(self.high) or self.high == math.inf:
            return 2
        return 1 if self.count else 0

    def __str__(self) -> str:
        return f"{self.count:,} of {self.total:,} values"


_FINITE = Finding()


class Questions:
    """Checks of tensors, started now and read later. Each costs two passes or a copy, and no waiting."""

    def __init__(self) -> None:
        self._totals: list[int] = []
        self._rows: Rows = []
        self._waiting: dict[int, Tensor] = {}

    def ask(self, tensors: Sequence[Tensor]) -> range:
        """Check tensors; return the numbers of the questions."""
        first, together, parts = len(self._totals), 0, dict[int, Tensor]()
        for number, tensor in enumerate(tensors, first):
            size = 0
            if tensor.is_floating_point() or tensor.is_complex():
                for values in values_in([tensor]):
                    parts[number], size = values, values.numel()
            self._totals.append(size)
            together += size
        if together <= FEW:  # it may be overwritten or freed before there are enough
            for number, values in parts.items():
                self._waiting[number] = values.clone()
            if len(self._waiting) > _MOST_WAITING:
                self._look()
        else:
            self._rows += _looked_at(parts)
        return range(first, len(self._totals))

    def answers(self) -> list[Finding]:
        """Return the findings, one for each question."""
        self._look()
        found = [_FINITE] * len(self._totals)
        places, rows = read(self._rows)
        for at in np.flatnonzero(rows[:, 2]) if places else ():
            number, (low, high, count) = places[at], rows[at].tolist()
            known = found[number]
            worse = (float(np.minimum(known.low, low)), float(np.maximum(known.high, high)))  # NaN stays
            found[number] = Finding(*worse, known.count + int(count), self._totals[number])
        return found

    def _look(self) -> None:
        self._rows += _looked_at(self._waiting)
        self._waiting = {}


def worst(findings: Iterable[Finding]) -> Finding:
    """The finding of the highest level."""
    return max(findings, key=lambda finding: finding.level, default=Finding())


def _looked_at(parts: dict[int, Tensor]) -> Rows:
    numbers = [*parts]
    rows = rows_of([*parts.values()], _bounds)
    return [([numbers[at] for at in places], found) for places, found in rows]


def _bounds(values: Tensor) -> Tensor:
    """For each row: least, greatest (both NaN if one value is NaN), and the number of values not finite."""
    values = values.float() if values.element_size() == 1 else values
    low, high = values.aminmax(dim=1)
    count = values.shape[1] - values.isfinite().sum(1)
    return torch.stack([number.to(wide(values.device)) for number in (low, high, count)], 1)
