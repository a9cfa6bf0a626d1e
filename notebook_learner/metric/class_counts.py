"""Metrics that are a formula of counts per class: Precision, Recall, F-beta, Dice.

They do not use torchmetrics, whose multi-class counts go through torch.bincount: it waits for the GPU at
every step. The cost of a step is in tests/benchmarks/RESULTS.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import OutputError, StateError
from .base import Counted, Floats, Input
from .decisions import Decision, Threshold

Reduction = Literal["micro", "macro", "weighted"]
REDUCTIONS = ("micro", "macro", "weighted")


@dataclass(slots=True)
class KeptClasses:
    """What a step leaves: its counts on the device, their number of classes, and its number of targets."""

    counts: Tensor
    classes: int
    targets: int


class ClassCounts(Counted):
    """A formula of how often each class was right, was the answer, and was the target. Subclasses give
    `formula`.

    A step counts on the device. The whole numbers are read once for each block, and the host computes the
    formula in double precision. The epoch's value is the formula of the summed counts, which differs from the
    mean of the batches' values. A step's weight is its number of targets.
    """

    higher_is_better = True
    needs = ("output", "targets")
    scale: ClassVar[float] = 100.0
    first = 0
    """The first class that counts."""

    def __init__(self, decision: Decision, reduction: Reduction, input: Input | None) -> None:
        super().__init__(input=input)
        check_reduction(type(self).__name__, reduction)
        self.decision = decision
        self.reduction = reduction
        self._classes: int | None = None

    @property
    def suffix(self) -> str:
        """The part of the name that says how answers are made and averaged. Yes and no are not averaged."""
        binary = isinstance(self.decision, Threshold) and not self.decision.labels
        return f"@ {self.decision.text}" + ("" if binary else f" [{self.reduction.capitalize()}]")

    def formula(self, right: Floats, said: Floats, due: Floats) -> Floats:
        """Return the value, from 0 to 1, for these counts, elementwise."""
        raise NotImplementedError(f"{type(self).__name__} must define formula(right, said, due)")

    def keep(self, item: Any) -> KeptClasses:
        """Count on the device, without a wait for the result."""
        counts, classes = self.decision.counts(item.output, item.targets)
        if classes != self._classes:
            self._begin(classes)
        return KeptClasses(counts, classes, item.targets.numel())

    def count(self, kept: Sequence[KeptClasses]) -> Floats:
        """Return each step's table of counts, with its number of targets at the end of the row."""
        if not kept:
            return np.empty((0, 0))
        tables = self.decision.tables(_fetched([each.counts for each in kept]), kept[0].classes)
        rows = tables[:, :, self.first :].reshape(len(kept), -1)
        return np.column_stack([rows, [each.targets for each in kept]])

    def score(self, counts: Floats) -> Floats:
        """Return one number for each table of counts."""
        right, said, due = np.moveaxis(_table(counts), -2, 0)
        if self.reduction == "micro":
            return self.scale * self.formula(right.sum(-1), said.sum(-1), due.sum(-1))
        scores = self.formula(right, said, due)
        weights = due if self.reduction == "weighted" else ((said + due) > 0).astype(np.float64)
        with np.errstate(invalid="ignore"):
            return np.asarray(self.scale * (scores * weights).sum(-1) / weights.sum(-1))

    def weights(self, counts: Floats) -> Floats:
        """Return the numbers of targets."""
        return counts[..., -1]

    def per_class(self) -> list[float]:
        """Return the value of each class, over the epoch's steps that were read so far."""
        if self._sums is None:
            return []
        values: list[float] = (self.scale * self.formula(*_table(self._sums))).tolist()
        return values

    def reset(self) -> None:
        """Forget the counts."""
        super().reset()
        self._classes = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved counts."""
        self._sums = checked_counts(self.name, state["counts"])
        self._classes = self._known

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what another one counted (its `state_dict`) on other samples: the sum of the counts."""
        theirs = checked_counts(self.name, state["counts"])
        if theirs is not None:
            self._sums = theirs if self._sums is None else self._sums + theirs
        self._classes = self._known

    @property
    def _known(self) -> int | None:
        """The number of classes in the epoch's counts."""
        return None if self._sums is None else len(self._sums) // 3 + self.first

    def _begin(self, classes: int) -> None:
        if self._classes is not None:
            raise OutputError(
                f"{self.name} counted {self._classes} classes in this epoch so far, but this output has "
                f"{classes}; give every step an output with the same classes"
            )
        self._classes = classes


def _fetched(counts: Sequence[Tensor]) -> Floats:
    """One row for each step, in one transfer."""
    last = counts[-1].device
    # A step may have run on another device than the others: the model moved.
    rows = torch.stack([each if each.device == last else each.to(last) for each in counts])
    numbers: Floats = rows.cpu().numpy().astype(np.float64)
    return numbers


def _table(counts: Floats) -> Floats:
    """Rows RIGHT, SAID and TRUE, without the number of targets."""
    return counts[..., :-1].reshape(*counts.shape[:-1], 3, -1)


def check_reduction(metric: str, reduction: str) -> None:
    """Raise if it is not a known reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"{metric}(reduction={reduction!r}): choose one of {', '.join(map(repr, REDUCTIONS))}"
        )


def checked_counts(metric: str, counts: Any) -> Floats | None:
    """The counts of a state, if it holds some: the file may come from another version, or be made by hand."""
    if counts is None:
        return None
    numbers = isinstance(counts, list) and all(type(each) in (int, float) and each >= 0 for each in counts)
    if not numbers or len(counts) < 4 or len(counts) % 3 != 1:
        raise StateError(f"the state of {metric} holds no table of counts")
    return np.array(counts, dtype=np.float64)


def share(part: Floats, whole: Floats) -> Floats:
    """The quotient, and 0 for 0 of 0, as in scikit-learn and Burn.

    >>> share(np.array([1.0, 0.0]), np.array([4.0, 0.0])).tolist()
    [0.25, 0.0]
    """
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole > 0))
