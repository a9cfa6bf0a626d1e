"""The mean absolute error."""

from __future__ import annotations

from torch import Tensor

from .number_errors import MeanError


class MeanAbsoluteError(MeanError):
    """The mean of |output - targets| over all numbers: of the batch for a step, of all batches for an epoch.

    `output` and `targets` have one shape, as in `RegressionOutput`. A step's weight is its number of values
    (samples times outputs). `input` takes them out of an output with other field names.

    >>> MeanAbsoluteError().name
    'Mean Absolute Error'
    """

    name = "Mean Absolute Error"

    def error(self, difference: Tensor) -> Tensor:
        """Return the distance."""
        return difference.abs()
