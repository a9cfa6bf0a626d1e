"""The share of answers whose best-scored class is the target's class."""

from __future__ import annotations

from torch import Tensor

from ..errors import OutputError
from .base import Input
from .classes import RightAnswers


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
