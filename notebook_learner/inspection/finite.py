"""Whether values are finite, asked of many tensors and read from the device once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .statistics import bring_over, pieces, values_of, wide


@dataclass(frozen=True, slots=True)
class Finding:
    """What is not finite in some values."""

    low: float = 0.0
    high: float = 0.0
    count: int = 0
    total: int = 0

    @property
    def level(self) -> int:
        """0: all finite; 1: nothing worse than -inf, which masks are made of; 2: NaN or inf."""
        if math.isnan(self.low) or math.isnan(self.high) or self.high == math.inf:
            return 2
        return 1 if self.count else 0

    def __str__(self) -> str:
        return f"{self.count:,} of {self.total:,} values"


class Questions:
    """Tensors asked about now and read later: each question costs two passes and no waiting."""

    def __init__(self) -> None:
        self._asked: list[tuple[Tensor | None, int]] = []

    def ask(self, tensor: Tensor) -> int:
        """Look at a tensor; the number names the question."""
        seen = None
        with suppress(RuntimeError, NotImplementedError):  # a number format this device cannot compare
            seen = _looked_at(tensor)
        self._asked.append((seen, tensor.numel() if seen is not None else 0))
        return len(self._asked) - 1

    def answers(self) -> list[Finding]:
        """What was found, question by question."""
        rows = iter(bring_over([seen for seen, _ in self._asked if seen is not None]))
        return [Finding() if seen is None else _finding(next(rows), total) for seen, total in self._asked]


def worst(findings: Iterable[Finding]) -> Finding:
    """The finding of the highest level."""
    return max(findings, key=lambda finding: finding.level, default=Finding())


@torch.no_grad()
def _looked_at(tensor: Tensor) -> Tensor | None:
    if not tensor.is_floating_point() and not tensor.is_complex():
        return None
    values = values_of(tensor)
    if values is None or not values.numel():
        return None
    return torch.stack([_bounds(piece) for piece in pieces(values)])


def _bounds(values: Tensor) -> Tensor:
    values = values.float() if values.element_size() == 1 else values
    low, high = values.aminmax()  # both are NaN where one value is
    count = values.numel() - values.isfinite().sum()
    return torch.stack([number.to(wide(values.device)) for number in (low, high, count)])


def _finding(rows: np.ndarray[Any, Any], total: int) -> Finding:
    low, high, count = rows.T
    return Finding(float(low.min()), float(high.max()), int(count.sum()), total)  # a NaN among them stays
