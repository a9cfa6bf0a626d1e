"""Metrics of the order of scores, which only a whole epoch has: AUROC and AUC-PR."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import OutputError, StateError
from .appended_rows import Appended, Part
from .base import Input, Metric, Scalar
from .class_counts import Reduction, check_reduction
from .classes import class_dimension
from .tensors import Alike, widened

Kind = Literal["binary", "multiclass", "multilabel"]

TOGETHER = 4 << 20
"""Scores whose columns are taken apart at a time: one by one, each would come from memory line by line."""


class Ranking(Metric):
    """Keeps the scores of the epoch; subclasses give `area`. Steps have no value of their own.

    The scores stay on the device (4 bytes each). Captured states hold the same memory, without a copy.
    """

    append_only = True

    unit = "%"
    higher_is_better = True
    needs = ("output", "targets")
    title: str

    def __init__(
        self,
        kind: Kind = "multiclass",
        reduction: Reduction = "macro",
        *,
        logits: bool = True,
        class_dim: int | None = None,
        input: Input | None = None,
    ) -> None:
        super().__init__(input=input)
        check_reduction(type(self).__name__, reduction)
        self.kind = kind
        self.reduction = reduction
        self.logits = logits
        self.class_dim = class_dim
        self.name = self.title if kind == "binary" else f"{self.title} [{reduction.capitalize()}]"
        self._alike = Alike(self.name)
        self._kept = Appended()
        self._columns: int | None = None

    @classmethod
    def binary(cls, *, input: Input | None = None) -> Self:
        """Of yes and no: one score per target of 0 or 1, logit or probability.

        Args:
            input: where the output names things otherwise.
        """
        return cls("binary", input=input)

    @classmethod
    def multiclass(
        cls,
        reduction: Reduction = "macro",
        *,
        logits: bool = True,
        class_dim: int | None = None,
        input: Input | None = None,
    ) -> Self:
        """Of one class among several, each against the rest: a score per class, and class indices.

        Args:
            reduction: how classes become one number.
            logits: scores of different samples compare only as probabilities, so logits go through a
                softmax; say False where the output holds probabilities.
            class_dim: where the classes are, if dimension 1 and the last one both fit.
            input: where the output names things otherwise.
        """
        return cls("multiclass", reduction, logits=logits, class_dim=class_dim, input=input)

    @classmethod
    def multilabel(cls, reduction: Reduction = "macro", *, input: Input | None = None) -> Self:
        """Of several labels at once: scores and targets of 0 or 1, with the labels in dimension 1.

        Args:
            reduction: how labels become one number.
            input: where the output names things otherwise.
        """
        return cls("multilabel", reduction, input=input)

    def area(self, ranks: ScoreRanks) -> float:
        """The area under the curve of one class, in 0 to 1; NaN where it is not defined."""
        raise NotImplementedError(f"{type(self).__name__} must define area(ranks)")

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Keep the scores on the device."""
        output, targets = item.output.detach(), item.targets.detach()
        rows = self._classes if self.kind == "multiclass" else self._pairs
        scores, due = rows(output, targets)
        if self._columns not in (None, scores.shape[1]):
            raise OutputError(
                f"{self.name} saw {self._columns} classes in this epoch so far, but this output "
                f"has {scores.shape[1]}; give every step an output with the same classes"
            )
        # Copies: a compiled model may write its next output into the same place, a loader its next batch.
        self._kept.append(scores, due)
        self._columns = scores.shape[1]
        return float("nan"), 0

    def compute(self) -> Scalar | None:
        """The area of the epoch, in percent. Classes for which it is not defined are left out."""
        parts = self._kept.parts()
        if not parts:
            return float("nan")
        device = parts[-1][0].device  # those of a state from a file came on the CPU
        parts = [(scores.to(device), due.to(device)) for scores, due in parts]
        if any(bool(scores.isnan().any()) for scores, _ in parts):
            return float("nan")  # a score that is none has no rank
        classes = _all_pairs(parts) if self.reduction == "micro" else _each_class(parts)
        areas = [
            (self.area(ranks), ranks.positives if self.reduction == "weighted" else 1)
            for ranks in starmap(ScoreRanks, classes)
        ]
        defined = [(area, weight) for area, weight in areas if not math.isnan(area)]
        total = sum(weight for _, weight in defined)
        return 100.0 * sum(area * weight for area, weight in defined) / total if total else float("nan")

    def reset(self) -> None:
        """Forget the scores."""
        self._kept, self._columns = Appended(), None

    def state_dict(self) -> dict[str, Any]:
        """The scores so far, in a few pieces."""
        parts = self._kept.parts()
        return {"scores": [scores for scores, _ in parts], "targets": [due for _, due in parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._take(_checked(self.name, state))

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what another one kept (its `state_dict`), of other samples."""
        self._take([*self._kept.parts(), *_checked(self.name, state)])

    def _take(self, parts: list[Part]) -> None:
        self._kept = Appended(parts)
        self._columns = parts[0][0].shape[1] if parts else None

    def _classes(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Scores in rows, in the order of the probabilities, and class indices."""
        dim = class_dimension(self.name, output, targets, self.class_dim)
        scores = widened(output).movedim(dim, -1).reshape(-1, output.shape[dim])
        return log_odds(scores) if self.logits else scores, targets.reshape(-1).long()

    def _pairs(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        scores, due = widened(self._alike(output, targets)), targets > 0
        if self.kind == "binary":
            return scores.reshape(-1, 1), due.reshape(-1, 1)
        if targets.ndim < 2:
            raise OutputError(
                f"{self.name} counts labels in dimension 1, but got `targets` of shape "
                f"{list(targets.shape)}; use {type(self).__name__}.binary() for one label"
            )
        labels = targets.shape[1]
        return scores.movedim(1, -1).reshape(-1, labels), due.movedim(1, -1).reshape(-1, labels)


class ScoreRanks:
    """Of one class: how many answers are positive, by score, and how many scores lie below.

    Whole numbers, so nothing is lost however long the epoch is.

    >>> ranks = ScoreRanks(torch.tensor([0.1, 0.5, 0.5, 0.9]), torch.tensor([False, True, False, True]))
    >>> ranks.positive.tolist(), ranks.below.tolist(), ranks.tied.tolist()
    ([1, 1], [1, 3], [2, 1])
    """

    def __init__(self, scores: Tensor, positive: Tensor) -> None:
        self.ordered = _sorted(scores)
        values, self.positive = torch.unique(scores[positive], return_counts=True)
        """Positives with each score that one has, from the lowest score up."""
        self.below = torch.searchsorted(self.ordered, values)
        """Scores, of all answers, that are lower than each of these."""
        self.tied = torch.searchsorted(self.ordered, values, right=True) - self.below
        """Scores, of all answers, that are equal to each of these."""
        self.total = len(scores)
        self.positives = int(self.positive.sum())


def _sorted(scores: Tensor) -> Tensor:
    """On the host by NumPy, in a third of torch's time: torch brings the order along, too."""
    if scores.is_cpu:
        return torch.from_numpy(np.sort(scores.numpy()))
    return scores.sort().values


def log_odds(logits: Tensor) -> Tensor:
    """The logarithm of p / (1 - p) of each class: ordered as the probabilities p of a softmax are.

    These themselves end in ties: in float32 all above 1 - 6e-8 are 1.

    >>> log_odds(torch.tensor([[0.0, 40.0], [0.0, 50.0]])).tolist()
    [[-40.0, 40.0], [-50.0, 50.0]]
    """
    logs = logits.log_softmax(1)
    best = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, best, float("-inf")).logsumexp(1, keepdim=True)
    # 1 - p of all but the best class is at least a half, and loses nothing.
    return (logs - (-logs.exp()).log1p()).scatter(1, best, logits.gather(1, best) - others)


def _all_pairs(parts: Sequence[Part]) -> Iterator[tuple[Tensor, Tensor]]:
    """Every sample with every class, as if all were of one class."""
    due = [_table(due, 0, scores.shape[1]).reshape(-1) for scores, due in parts]
    yield torch.cat([scores.reshape(-1) for scores, _ in parts]), torch.cat(due)


def _each_class(parts: Sequence[Part]) -> Iterator[tuple[Tensor, Tensor]]:
    """One class after the other, so that no more than a few columns are in memory twice."""
    columns, rows = parts[0][0].shape[1], sum(len(due) for _, due in parts)
    step = max(1, TOGETHER // max(1, rows))
    for first in range(0, columns, step):
        last = min(columns, first + step)
        scores = torch.cat([scores[:, first:last] for scores, _ in parts]).T.contiguous()
        due = torch.cat([_table(due, first, last) for _, due in parts]).T.contiguous()
        yield from zip(scores, due, strict=True)


def _table(due: Tensor, first: int, last: int) -> Tensor:
    """Whether each answer is due, with a column per class."""
    if due.ndim == 2:
        return due[:, first:last]
    return due.unsqueeze(1) == torch.arange(first, last, device=due.device)


def _checked(metric: str, state: Mapping[str, Any]) -> list[Part]:
    scores, targets = list(state["scores"]), list(state["targets"])
    lengths = [len(each) if isinstance(each, Tensor) and each.ndim == 2 else -1 for each in scores]
    if len(scores) != len(targets) or lengths != [len(each) for each in targets]:
        raise StateError(f"the state of {metric} holds no scores with their targets")
    return list(zip(scores, targets, strict=True))
