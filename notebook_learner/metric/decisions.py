"""From scores to answers, and from answers to counts per class: the common part of Precision, Recall and
others.

A step only counts, on the device and with as few operations as possible: each takes some microseconds. The
host computes the results from the counts, for a block of steps at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Size, Tensor

from ..errors import OutputError
from .base import Floats
from .tensors import Alike, class_dimension

RIGHT, SAID, TRUE = 0, 1, 2
"""Rows of a table of counts per class: right answers, answers, and targets."""
_SQUARE = 64
"""Up to this many classes, a step counts pairs of classes (32 KB), in one scatter instead of three."""


class Decision(ABC):
    """How scores become answers, and answers become counts."""

    text: str
    """The part of the metric's name, as Burn writes it."""

    @abstractmethod
    def counts(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Return a step's counts as a vector of whole numbers on the device, and the number of classes,
        without a wait for the device."""

    @abstractmethod
    def tables(self, counts: Floats, classes: int) -> Floats:
        """Return, for each step's vector, rows RIGHT, SAID and TRUE with a column per class."""


class TopK(Decision):
    """One class is right; the k best-scored ones are the answers. Padding is not counted."""

    def __init__(self, metric: str, k: int, pad_token: int | None, class_dim: int | None) -> None:
        if k < 1:
            raise ValueError(
                f"{metric}(top_k={k}): it counts the best classes to look at, so it is at least 1"
            )
        self.metric, self.k, self.pad_token, self.class_dim = metric, k, pad_token, class_dim
        self.text = f"TopK({k})"
        self._seen: tuple[Size, Size, torch.device] | None = None
        self._dim = 1
        self._ones = torch.empty(0)

    def counts(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Return how often each class was the answer for each class; with many classes, only the three sums.

        By scatter: torch.bincount reads the result's length from the GPU, and waits. A target that is not a
        class is out of range, which is an error.
        """
        if (output.shape, targets.shape, output.device) != self._seen:
            self._remember(output, targets)
        classes = output.shape[self._dim]
        best = _best(output, self.k, self._dim)
        due = targets.reshape(-1).long()
        if self.k > 1:
            due = due.repeat_interleave(self.k)
        real = self._ones
        if self.pad_token is not None:
            real = (due != self.pad_token).long()
            due = due * real  # a pad (-100) is not an index; it counts 0 times for class 0
        if classes > _SQUARE:
            return _sums(best, due, real, classes), classes
        pairs = torch.zeros(classes * classes, dtype=torch.int64, device=output.device)
        return pairs.scatter_add_(0, torch.add(best, due, alpha=classes), real), classes

    def tables(self, counts: Floats, classes: int) -> Floats:
        """Every answer counts with its target's class, so k answers count that class k times."""
        if classes > _SQUARE:
            tables: Floats = counts.reshape(-1, 3, classes).copy()
        else:
            pairs = counts.reshape(-1, classes, classes)
            tables = np.stack([np.diagonal(pairs, axis1=1, axis2=2), pairs.sum(1), pairs.sum(2)], axis=1)
        tables[:, TRUE] /= self.k
        return tables

    def _remember(self, output: Tensor, targets: Tensor) -> None:
        self._dim = self._look(output, targets)
        answers = targets.numel() * self.k
        self._ones = torch.ones((), dtype=torch.int64, device=output.device).expand(answers)
        self._seen = (output.shape, targets.shape, output.device)

    def _look(self, output: Tensor, targets: Tensor) -> int:
        dim = class_dimension(self.metric, output, targets, self.class_dim)
        if output.shape[dim] < self.k:
            raise OutputError(
                f"{self.metric} got `output` of shape {list(output.shape)}: it has {output.shape[dim]} "
                f"classes, fewer than top_k={self.k}; choose a smaller top_k"
            )
        return dim


def _best(output: Tensor, k: int, dim: int) -> Tensor:
    """The k best classes for each target, one after the other."""
    if k == 1:
        return output.argmax(dim).reshape(-1)
    return output.topk(k, dim, sorted=False).indices.movedim(dim, -1).reshape(-1)


def _sums(best: Tensor, due: Tensor, real: Tensor, classes: int) -> Tensor:
    table = torch.zeros(3, classes, dtype=torch.int64, device=best.device)
    table[RIGHT].scatter_add_(0, due, (best == due).long() * real)
    table[SAID].scatter_add_(0, best, real)
    table[TRUE].scatter_add_(0, due, real)
    return table.reshape(-1)


class Threshold(Decision):
    """Each score has its own answer: above the threshold it is yes. Targets are 0 or 1.

    `labels` says whether dimension 1 counts labels. If so, each label is a class; otherwise there is one
    class. A NaN is not a yes.
    """

    def __init__(self, metric: str, threshold: float, labels: bool, pad_token: int | None) -> None:
        self.metric, self.threshold, self.labels, self.pad_token = metric, threshold, labels, pad_token
        self.text = f"Threshold({threshold:g})"
        self._alike = Alike(metric)

    def counts(self, output: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Compare each score with its target."""
        said = self._alike(output, targets) > self.threshold
        due = targets > 0 if self.pad_token is None else (targets > 0) & (targets != self.pad_token)
        if self.pad_token is not None:
            said = said & (targets != self.pad_token)
        sums = torch.stack([said & due, said, due])
        if not self.labels:
            return sums.reshape(3, -1).sum(1), 1
        if targets.ndim < 2:
            raise OutputError(
                f"{self.metric} counts labels in dimension 1, but got `targets` of shape "
                f"{list(targets.shape)}; use binary(...) for one label"
            )
        labels = targets.shape[1]
        return sums.movedim(2, 1).reshape(3, labels, -1).sum(2).reshape(-1), labels

    def tables(self, counts: Floats, classes: int) -> Floats:
        """Return them reshaped: they are tables already."""
        return counts.reshape(-1, 3, classes)
