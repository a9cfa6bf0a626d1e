"""Metrics of the order of scores, which need a whole epoch: AUROC and AUC-PR."""

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
from .base import Input, Metric, Scalar
from .class_counts import Reduction, check_reduction
from .rows import Appended, Part
from .tensors import Alike, class_dimension, exact_dtype, widened

Kind = Literal["binary", "multiclass", "multilabel"]

TOGETHER = 4 << 20
"""Scores whose columns are split at once: one column at a time would be read from memory line by line."""


class Ranking(Metric):
    """Keeps the scores of the epoch; subclasses give `area`. Single steps have no value.

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
        """Make it for yes and no: one score per target of 0 or 1, a logit or a probability.

        Args:
            input: takes `output` and `targets` out of another output.
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
        """Make it for one class among several, each against the rest: a score per class, and class indices.

        Args:
            reduction: how the classes' values become one number.
            logits: whether the output holds logits. They go through a softmax, as scores of different samples
                compare only as probabilities. Give False if the output holds probabilities.
            class_dim: the dimension of the classes, if dimension 1 and the last one both fit.
            input: takes `output` and `targets` out of another output.
        """
        return cls("multiclass", reduction, logits=logits, class_dim=class_dim, input=input)

    @classmethod
    def multilabel(cls, reduction: Reduction = "macro", *, input: Input | None = None) -> Self:
        """Make it for several labels at once: scores and targets of 0 or 1, with the labels in dimension 1.

        Args:
            reduction: how the labels' values become one number.
            input: takes `output` and `targets` out of another output.
        """
        return cls("multilabel", reduction, input=input)

    def area(self, ranks: ScoreRanks) -> float:
        """Return the area under the curve of one class, from 0 to 1; NaN if it is not defined."""
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
        # Copies: a compiled model may write its next output into the same memory, and a loader its next
        # batch.
        self._kept.append(scores, due)
        self._columns = scores.shape[1]
        return float("nan"), 0

    def compute(self) -> Scalar | None:
        """Return the area of the epoch, in percent. Classes for which it is not defined are left out."""
        parts = self._kept.parts()
        if not parts:
            return float("nan")
        device = parts[-1][0].device  # those of a state from a file are on the CPU
        parts = [(scores.to(device), due.to(device)) for scores, due in parts]
        if any(bool(scores.isnan().any()) for scores, _ in parts):
            return float("nan")  # a NaN has no rank
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
        """Return the scores so far, in a few pieces."""
        parts = self._kept.parts()
        return {"scores": [scores for scores, _ in parts], "targets": [due for _, due in parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved scores."""
        self._take(_checked(self.name, state))

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the scores of another one (its `state_dict`) on other samples."""
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
    """For one class: the number of positive answers with each score, and the number of lower scores.

    They are whole numbers, so an epoch of any length is exact.

    >>> ranks = ScoreRanks(torch.tensor([0.1, 0.5, 0.5, 0.9]), torch.tensor([False, True, False, True]))
    >>> ranks.positive.tolist(), ranks.below.tolist(), ranks.tied.tolist()
    ([1, 1], [1, 3], [2, 1])
    """

    def __init__(self, scores: Tensor, positive: Tensor) -> None:
        self.ordered = _sorted(scores)
        values, self.positive = torch.unique(scores[positive], return_counts=True)
        """The number of positives with each of their scores, from the lowest score up."""
        self.below = torch.searchsorted(self.ordered, values)
        """The number of scores, of all answers, that are lower than each of these."""
        self.tied = torch.searchsorted(self.ordered, values, right=True) - self.below
        """The number of scores, of all answers, that are equal to each of these."""
        self.total = len(scores)
        self.positives = int(self.positive.sum())


def _sorted(scores: Tensor) -> Tensor:
    """Sort on the host by NumPy, in a third of torch's time: torch returns the order as well."""
    if scores.is_cpu:
        return torch.from_numpy(np.sort(scores.numpy()))
    return scores.sort().values


def log_odds(logits: Tensor) -> Tensor:
    """The logarithm of p / (1 - p) of each class. Its order is that of the softmax probabilities p.

    The probabilities themselves become equal: in float32, all above 1 - 6e-8 are 1.

    >>> log_odds(torch.tensor([[0.0, 40.0], [0.0, 50.0]])).tolist()
    [[-40.0, 40.0], [-50.0, 50.0]]
    """
    logs = logits.log_softmax(1)
    best = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, best, float("-inf")).logsumexp(1, keepdim=True)
    # 1 - p of every class but the best is at least a half, and loses no digits.
    return (logs - (-logs.exp()).log1p()).scatter(1, best, logits.gather(1, best) - others)


def _all_pairs(parts: Sequence[Part]) -> Iterator[tuple[Tensor, Tensor]]:
    """Give every sample with every class, as if all were of one class."""
    due = [_table(due, 0, scores.shape[1]).reshape(-1) for scores, due in parts]
    yield torch.cat([scores.reshape(-1) for scores, _ in parts]), torch.cat(due)


def _each_class(parts: Sequence[Part]) -> Iterator[tuple[Tensor, Tensor]]:
    """Give one class after the other, so that at most a few columns are in memory twice."""
    columns, rows = parts[0][0].shape[1], sum(len(due) for _, due in parts)
    step = max(1, TOGETHER // max(1, rows))
    for first in range(0, columns, step):
        last = min(columns, first + step)
        scores = torch.cat([scores[:, first:last] for scores, _ in parts]).T.contiguous()
        due = torch.cat([_table(due, first, last) for _, due in parts]).T.contiguous()
        yield from zip(scores, due, strict=True)


def _table(due: Tensor, first: int, last: int) -> Tensor:
    """Whether each answer is right, with a column per class."""
    if due.ndim == 2:
        return due[:, first:last]
    return due.unsqueeze(1) == torch.arange(first, last, device=due.device)


def _checked(metric: str, state: Mapping[str, Any]) -> list[Part]:
    scores, targets = list(state["scores"]), list(state["targets"])
    lengths = [len(each) if isinstance(each, Tensor) and each.ndim == 2 else -1 for each in scores]
    if len(scores) != len(targets) or lengths != [len(each) for each in targets]:
        raise StateError(f"the state of {metric} holds no scores with their targets")
    return list(zip(scores, targets, strict=True))


class AUROC(Ranking):
    """The area under the ROC curve, in percent: how often a positive has a higher score than a negative.

    Made by `binary`, `multiclass` (each class against the rest) or `multilabel`; `AUROC()` is `multiclass()`.
    A tie counts half. The value is exact: pairs are counted in whole numbers. (torchmetrics passes logits
    through a sigmoid, in which high ones become equal at 1.)

    An epoch has a value; single steps have none. A class without positives or without negatives has no area
    and is left out of the mean. If no class has an area, or a score is NaN, the epoch's value is NaN.
    Averages (`reduction`): "macro" is the mean over the classes, "micro" takes all pairs of sample and class
    as one class, "weighted" weighs classes by their positives.

    It keeps the scores of the epoch on the device (4 bytes per sample and class). Captured states share them,
    so a keyframe adds only the scores since the one before. A checkpoint inside an epoch holds all of them.

    >>> AUROC.multiclass().name, AUROC.binary().name
    ('AUROC [Macro]', 'AUROC')
    """

    title = "AUROC"

    def area(self, ranks: ScoreRanks) -> float:
        """The share of pairs in the right order, out of all pairs of a positive and a negative."""
        pairs = ranks.positives * (ranks.total - ranks.positives)
        if not pairs:
            return float("nan")
        # Among all answers, positives also pair with each other: this adds positives**2 in any order.
        won_twice = int((ranks.positive * (2 * ranks.below + ranks.tied)).sum()) - ranks.positives**2
        return won_twice / (2 * pairs)


class AUCPR(Ranking):
    """The area under the precision-recall curve as average precision, in percent.

    `Σ (recall_n - recall_{n-1})·precision_n` over all thresholds, as in scikit-learn and Burn, without
    trapezoids. Made by `binary`, `multiclass` (each class against the rest) or `multilabel`; `AUCPR()` is
    `multiclass()`.

    An epoch has a value; single steps have none. A class without positives has no area and is left out of the
    mean. If no class has an area, or a score is NaN, the epoch's value is NaN. It averages and keeps scores
    as `AUROC` does.

    >>> AUCPR.multilabel("micro").name
    'AUC-PR [Micro]'
    """

    title = "AUC-PR"

    def area(self, ranks: ScoreRanks) -> float:
        """The mean precision at each positive."""
        if not ranks.positives:
            return float("nan")
        right = ranks.positives - (ranks.positive.cumsum(0) - ranks.positive)
        exact = exact_dtype(right.device)
        precision = right.to(exact) / (ranks.total - ranks.below).to(exact)
        # Summed with a zero for each score that no positive has: torch adds by place. So the last bit of the
        # sum is the same as in runs that began with earlier versions.
        rises = ranks.ordered.diff() != 0
        places = torch.cat([rises.new_zeros(1), rises]).cumsum(0)
        terms = precision.new_zeros(int(places[-1]) + 1)
        terms[len(terms) - 1 - places[ranks.below]] = ranks.positive.to(exact) * precision
        return float(terms.sum()) / ranks.positives
