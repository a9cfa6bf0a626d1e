"""The common part of the metrics of predicted numbers: a sum of errors, and their number."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .base import Input, Ratio, Scalar
from .tensors import Alike, exact_dtype, widened


class MeanError(Ratio):
    """The mean of an error per number. Subclasses give `error`.

    The batch's errors are summed in double precision on the device, and the epoch's on the host. So the
    epoch's value is the mean over all its numbers. torchmetrics sums batches in float32, and half precision
    in half precision.
    """

    higher_is_better = False
    needs = ("output", "targets")

    def __init__(self, *, input: Input | None = None) -> None:
        super().__init__(input=input)
        self._alike = Alike(self.name)

    def error(self, difference: Tensor) -> Tensor:
        """Return the error of each difference."""
        raise NotImplementedError(f"{type(self).__name__} must define error(difference)")

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Sum the batch's errors on the device."""
        targets = item.targets
        output = self._alike(item.output, targets)
        errors = self.error(widened(output) - widened(targets))
        return errors.sum(dtype=exact_dtype(errors.device)), targets.numel()
