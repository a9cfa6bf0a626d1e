"""The mean absolute error."""

from __future__ import annotations

from torch import Tensor

from .number_errors import MeanError


class MeanAbsoluteError(MeanError):
    """The mean of |output - targets| over all numbers: of a step the batch's, of an epoch all of them.

    `output` and `targets` have one shape, as in `RegressionOutput`. A step's weight is how many numbers it
    holds (samples times outputs). `input` takes them out of an output that names them otherwise.

    >>> MeanAbsoluteError().name
    'Mean Absolute Error'
    """

    name = "Mean Absolute Error"

    def error(self, difference: Tensor) -> Tensor:
        """The distance."""
        return difference.abs()
