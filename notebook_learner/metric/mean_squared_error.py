"""The mean squared error, and its root."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from .base import Floats
from .number_errors import MeanError


class MeanSquaredError(MeanError):
    """The mean of (output - targets)² over all numbers: of the batch for a step, of all batches for an epoch.

    `output` and `targets` have one shape, as in `RegressionOutput`. A step's weight is its number of values
    (samples times outputs). `input` takes them out of an output with other field names.

    >>> MeanSquaredError().name
    'Mean Squared Error'
    """

    name = "Mean Squared Error"

    def error(self, difference: Tensor) -> Tensor:
        """Return the squared distance."""
        return difference.square()


class RMSE(MeanSquaredError):
    """The root of the mean squared error; for an epoch the root of its mean, not the mean of the roots.

    Shapes, weights and `input` are those of `MeanSquaredError`.

    >>> RMSE().name
    'RMSE'
    """

    name = "RMSE"

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Return each step's root."""
        return np.sqrt(super().values(raw, weights))

    def mean(self, total: float, weight: float) -> float:
        """Return the root of the epoch's mean."""
        return math.sqrt(super().mean(total, weight))
