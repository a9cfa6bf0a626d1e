"""The share of labels that are right."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .base import Input, Ratio, Scalar
from .tensors import Alike


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
