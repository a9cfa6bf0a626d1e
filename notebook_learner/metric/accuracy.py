"""Accuracy, top-k accuracy and Hamming score: the share of right answers."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import OutputError
from .base import Input, Ratio, Scalar
from .tensors import Alike, RightAnswers


class Accuracy(RightAnswers):
    """The share of right answers, in percent; over an epoch, exactly the share of all its answers.

    `output` has a score per class (`[batch, classes]`, `[batch, classes, ...]` or `[batch, ..., classes]`)
    and `targets` the class indices. Targets equal to `pad_token` are left out. Without a `pad_token`, those
    equal to the output's `ignore_index` are left out, if it has one. An output with one score per answer
    (binary, multi-label) needs a `threshold`: 0.0 for logits, 0.5 for probabilities. The metric does not
    guess which of them it gets.

    >>> Accuracy(pad_token=0).name
    'Accuracy'
    >>> accuracy = Accuracy(input=lambda item: (item.logits, item.labels))
    """

    name = "Accuracy"

    def __init__(
        self,
        pad_token: int | None = None,
        *,
        threshold: float | None = None,
        class_dim: int | None = None,
        input: Input | None = None,
    ) -> None:
        super().__init__(pad_token, class_dim, input=input)
        self.threshold = threshold

    def hits(self, output: Tensor, targets: Tensor, dim: int) -> Tensor:
        """Compare the best class, or the side of the threshold, with the target."""
        if self.threshold is None:
            return output.argmax(dim) == targets
        return (output.reshape(targets.shape) > self.threshold) == targets

    def look(self, output: Tensor, targets: Tensor) -> int:
        """Find the class dimension. With a threshold there is no such dimension, and scores pair with
        targets."""
        if self.threshold is None:
            return super().look(output, targets)
        if _squeezed(output) != _squeezed(targets):
            raise OutputError(
                f"{self.name} with a threshold got `output` of shape {list(output.shape)} and `targets` of "
                f"{list(targets.shape)}: it compares one score with one target of 0 or 1; leave the "
                "threshold out for an output with a score per class"
            )
        return 1


def _squeezed(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


class TopKAccuracy(RightAnswers):
    """The share of answers whose target class is among the `k` best scores, in percent.

    Shapes and `pad_token` are as in `Accuracy`.

    >>> TopKAccuracy(5).name
    'Top-K Accuracy @ TopK(5)'
    """

    def __init__(
        self,
        k: int,
        pad_token: int | None = None,
        *,
        class_dim: int | None = None,
        input: Input | None = None,
    ) -> None:
        if k < 1:
            raise ValueError(
                f"TopKAccuracy(k={k}): k counts the best classes to look at, so it is at least 1"
            )
        super().__init__(pad_token, class_dim, input=input)
        self.k = k
        self.name = f"Top-K Accuracy @ TopK({k})"

    def hits(self, output: Tensor, targets: Tensor, dim: int) -> Tensor:
        """Look for each target among the k best classes."""
        best = output.topk(self.k, dim, sorted=False).indices
        return (best == targets.unsqueeze(dim)).any(dim)

    def look(self, output: Tensor, targets: Tensor) -> int:
        """Find the class dimension, which must have k classes."""
        dim = super().look(output, targets)
        if output.shape[dim] < self.k:
            raise OutputError(
                f"{self.name} got `output` of shape {list(output.shape)}: it has {output.shape[dim]} "
                "classes, fewer than k; choose a smaller k"
            )
        return dim


class HammingScore(Ratio):
    """The share of right labels, of all labels of all samples, in percent: the accuracy per label.

    Scores and targets of 0 or 1 have one shape, as in `MultiLabelClassificationOutput`. Over the epoch it is
    the share of all its labels; a step's weight is its number of labels (samples times labels).

    Args:
        threshold: above it the answer is yes: 0.0 for logits, 0.5 for probabilities.
        pad_token: targets equal to it are left out.
        input: takes `output` and `targets` out of another output.

    >>> HammingScore(0.5).name
    'Hamming Score @ Threshold(0.5)'
    """

    unit = "%"
    higher_is_better = True
    needs = ("output", "targets")
    scale: ClassVar[float] = 100.0

    def __init__(self, threshold: float, *, pad_token: int | None = None, input: Input | None = None) -> None:
        super().__init__(input=input)
        self.threshold = threshold
        self.pad_token = pad_token
        self.name = f"Hamming Score @ Threshold({threshold:g})"
        self._alike = Alike(self.name)

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Count right labels on the device."""
        targets = item.targets
        right = (self._alike(item.output, targets) > self.threshold) == (targets > 0)
        if self.pad_token is None:
            return torch.sum(right), targets.numel()
        real = targets != self.pad_token
        return torch.sum(right & real), torch.sum(real)
