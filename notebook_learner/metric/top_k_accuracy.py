"""The share of answers whose target class is among the k best-scored ones."""

from __future__ import annotations

from torch import Tensor

from ..errors import OutputError
from .base import Input
from .classes import RightAnswers


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
