"""Metrics that are a formula of counts per class: Precision, Recall, F-beta, Dice.

Not torchmetrics': its multi-class counts go through torch.bincount, which waits for the GPU at every step,
and a step with its own value costs the host 435 us of CPU where this one costs 176 (Precision, batch of 32).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..errors import OutputError, StateError
from .base import Input, Metric, Scalar
from .decisions import SAID, TRUE, Decision, Threshold
from .tensors import exact_dtype

Reduction = Literal["micro", "macro", "weighted"]
REDUCTIONS = ("micro", "macro", "weighted")


class ClassCounts(Metric):
    """A formula of how often each class was right, answered and due. Subclasses give `formula`.

    The counts are whole numbers and stay on the device; the epoch's value is the formula of their sums,
    which is another number than the mean of the batches' values. A step's weight is its answers.
    """

    higher_is_better = True
    needs = ("output", "targets")
    scale: ClassVar[float] = 100.0

    def __init__(self, decision: Decision, reduction: Reduction, input: Input | None) -> None:
        super().__init__(input=input)
        check_reduction(type(self).__name__, reduction)
        self.decision = decision
        self.reduction = reduction
        self._counts: Tensor | None = None

    @property
    def suffix(self) -> str:
        """How answers are made and averaged, in the name. Of two answers, yes and no, there is no average."""
        binary = isinstance(self.decision, Threshold) and not self.decision.labels
        return f"@ {self.decision.text}" + ("" if binary else f" [{self.reduction.capitalize()}]")

    def formula(self, right: Tensor, said: Tensor, due: Tensor) -> Tensor:
        """The value, in 0 to 1, of these counts, elementwise."""
        raise NotImplementedError(f"{type(self).__name__} must define formula(right, said, due)")

    def counted(self, output: Tensor, targets: Tensor) -> Tensor:
        """The step's counts."""
        return self.decision.counts(output, targets)

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Count on the device; nothing waits for the result."""
        counts = self.counted(item.output, item.targets)
        before = self._counts
        if before is None:
            self._counts = counts
        elif before.shape != counts.shape:
            raise OutputError(
                f"{self.name} counted {before.shape[1]} classes in this epoch so far, but this output has "
                f"{counts.shape[1]}; give every step an output with the same classes"
            )
        else:
            # A state from a file comes on the CPU.
            self._counts = (before if before.device == counts.device else before.to(counts.device)) + counts
        return self.reduced(counts), item.targets.numel()

    def reduced(self, counts: Tensor) -> Tensor:
        """One number from a table of counts, in double precision."""
        exact = counts.to(exact_dtype(counts.device))
        if self.reduction == "micro":
            return self.scale * self.formula(*exact.sum(1))
        scores = self.formula(*exact)
        if self.reduction == "weighted":
            weights = exact[TRUE]
        else:
            weights = ((exact[SAID] + exact[TRUE]) > 0).to(exact.dtype)
        return self.scale * (scores * weights).sum() / weights.sum()

    def per_class(self) -> list[float]:
        """The epoch's value of each class so far. Waits for the device."""
        if self._counts is None:
            return []
        values: list[float] = (self.scale * self.formula(*self._counts.cpu().double())).tolist()
        return values

    def compute(self) -> Scalar | None:
        """The value of all counts."""
        return float("nan") if self._counts is None else self.reduced(self._counts.cpu())

    def reset(self) -> None:
        """Forget the counts."""
        self._counts = None

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"counts": self._counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        self._counts = checked_counts(self.name, state["counts"])

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what another one counted (its `state_dict`), on other samples: the sum of counts."""
        theirs = checked_counts(self.name, state["counts"])
        if theirs is None or self._counts is None:
            self._counts = theirs if self._counts is None else self._counts
            return
        self._counts = self._counts + theirs.to(self._counts.device)


def check_reduction(metric: str, reduction: str) -> None:
    """Raise where it is none."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"{metric}(reduction={reduction!r}): choose one of {', '.join(map(repr, REDUCTIONS))}"
        )


def checked_counts(metric: str, counts: Any) -> Tensor | None:
    """The table of a state, if it is one: a file may have been made by another version, or by hand."""
    if counts is None:
        return None
    if isinstance(counts, Tensor) and counts.ndim == 2 and counts.dtype == torch.int64 and len(counts) == 3:
        return counts
    raise StateError(f"the state of {metric} holds no table of counts")


def share(part: Tensor, whole: Tensor) -> Tensor:
    """The quotient, and 0 for 0 of 0, as scikit-learn and Burn have it."""
    return torch.where(whole > 0, part / whole, torch.zeros_like(part))
