"""Stops the training at a value of a metric."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..event.values import Column, Split
from .base import Found, FromMetrics

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


class MetricIs(FromMetrics):
    """Stop when the value of a metric at one step meets a comparison: `MetricIs("Accuracy", "<", 10)`.

    In training it stops before the update of that step, in validation after the step.

    Args:
        name: the name of a registered or logged metric.
        op: one of > >= < <= == !=.
        value: the number to compare with.
        split: "train" or "valid".
    """

    def __init__(self, name: str, op: str, value: float, *, split: Split = "train") -> None:
        if op not in _OPERATORS:
            raise ValueError(
                f"MetricIs({name!r}, {op!r}, ...): the comparison is one of {' '.join(_OPERATORS)}"
            )
        if split not in ("train", "valid"):
            raise ValueError(f'MetricIs(..., split={split!r}): the split is "train" or "valid"')
        self.name, self.op, self.value, self.split = name, op, value, split

    def judge(self, split: Split, columns: Mapping[str, Column]) -> Found | None:
        column = columns.get(self.name)
        if split != self.split or column is None:
            return None
        hits = np.asarray(_OPERATORS[self.op](column.values, self.value))
        if column.weights is not None:
            hits = hits & (column.weights != 0)  # no value at that step
        if not hits.any():
            return None
        index = int(hits.argmax())
        return Found(index, f"{self.split} {self.name} {column.values[index]:.6g} {self.op} {self.value:g}")

    def __repr__(self) -> str:
        where = "" if self.split == "train" else f", split={self.split!r}"
        return f"MetricIs({self.name!r}, {self.op!r}, {self.value:g}{where})"
