"""From scores to answers, and from answers to counts per class: what Precision and its kin share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Size, Tensor

from ..errors import OutputError
from .classes import class_dimension
from .tensors import Alike

RIGHT, SAID, TRUE = 0, 1, 2
"""Rows of a table of counts: right answers, answers given, and answers that were due, per class."""


class Decision(ABC):
    """How scores become answers. The counts are whole numbers on the output's device."""

    text: str
    """In the metric's name, as Burn writes it."""

    @abstractmethod
    def counts(self, output: Tensor, targets: Tensor) -> Tensor:
        """Rows RIGHT, SAID and TRUE with a column per class. Nothing here waits for the device."""


class TopK(Decision):
    """One class is right; the k best-scored ones are the answers. Pads count nowhere."""

    def __init__(self, metric: str, k: int, pad_token: int | None, class_dim: int | None) -> None:
        if k < 1:
            raise ValueError(
                f"{metric}(top_k={k}): it counts the best classes to look at, so it is at least 1"
            )
        self.metric, self.k, self.pad_token, self.class_dim = metric, k, pad_token, class_dim
        self.text = f"TopK({k})"
        self._shapes: tuple[Size, Size] | None = None
        self._dim = 1

    def counts(self, output: Tensor, targets: Tensor) -> Tensor:
        """Compare each target with the k best classes.

        By scatter: torch.bincount asks the GPU how long its answer is, and waits.
        """
        if (output.shape, targets.shape) != self._shapes:
            self._dim = self._look(output, targets)
            self._shapes = (output.shape, targets.shape)
        classes = output.shape[self._dim]
        best = _best(output, self.k, self._dim)
        due = targets.reshape(-1).long()
        real = torch.ones_like(due) if self.pad_token is None else (due != self.pad_token).long()
        if self.pad_token is not None:
            due = due * real  # a pad (-100) is no index; it counts 0 times for class 0
        found = (best == due.unsqueeze(1)).any(1).long() * real
        table = torch.zeros(3, classes, dtype=torch.int64, device=output.device)
        table[RIGHT].scatter_add_(0, due, found)
        table[SAID].scatter_add_(0, best.reshape(-1), real.repeat_interleave(self.k) if self.k > 1 else real)
        table[TRUE].scatter_add_(0, due, real)
        return table

    def _look(self, output: Tensor, targets: Tensor) -> int:
        dim = class_dimension(self.metric, output, targets, self.class_dim)
        if output.shape[dim] < self.k:
            raise OutputError(
                f"{self.metric} got `output` of shape {list(output.shape)}: it has {output.shape[dim]} "
                f"classes, fewer than top_k={self.k}; choose a smaller top_k"
            )
        return dim


def _best(output: Tensor, k: int, dim: int) -> Tensor:
    """The k best classes of each answer, in rows."""
    if k == 1:
        return output.argmax(dim).reshape(-1, 1)
    return output.topk(k, dim, sorted=False).indices.movedim(dim, -1).reshape(-1, k)


class Threshold(Decision):
    """Each score stands for itself: above the threshold the answer is yes. Targets are 0 or 1.

    `labels` says whether dimension 1 counts labels, each of which is a class; otherwise there is one class.
    A NaN is no yes.
    """

    def __init__(self, metric: str, threshold: float, labels: bool, pad_token: int | None) -> None:
        self.metric, self.threshold, self.labels, self.pad_token = metric, threshold, labels, pad_token
        self.text = f"Threshold({threshold:g})"
        self._alike = Alike(metric)

    def counts(self, output: Tensor, targets: Tensor) -> Tensor:
        """Compare each score with its target."""
        said = self._alike(output, targets) > self.threshold
        due = targets > 0 if self.pad_token is None else (targets > 0) & (targets != self.pad_token)
        if self.pad_token is not None:
            said = said & (targets != self.pad_token)
        sums = torch.stack([said & due, said, due])
        if not self.labels:
            return sums.reshape(3, -1).sum(1, keepdim=True)
        if targets.ndim < 2:
            raise OutputError(
                f"{self.metric} counts labels in dimension 1, but got `targets` of shape "
                f"{list(targets.shape)}; use binary(...) for one label"
            )
        return sums.movedim(2, 1).reshape(3, targets.shape[1], -1).sum(2)
