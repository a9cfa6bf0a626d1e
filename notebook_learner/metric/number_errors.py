"""How far numbers are from their targets: mean absolute and squared error, RMSE and R2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import OutputError, StateError
from .base import Floats, Input, Metric, Ratio, Scalar
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


class _Moments(NamedTuple):
    """For each output: the mean of the targets, and their squared distances from it and from the
    predictions."""

    samples: int
    mean: Tensor
    spread: Tensor
    error: Tensor


class R2(Metric):
    """The coefficient of determination: 1 is perfect, 0 is no better than the targets' mean.

    `output` and `targets` have one shape. If they hold several numbers per sample, the value is the mean over
    these (scikit-learn's "uniform_average"). Targets that do not vary give 1 for an exact prediction and 0
    for any other, as in scikit-learn. Fewer than two samples have no value: NaN.

    A step's value is that of its batch, and its weight the number of samples. The epoch's value is that of
    all samples, from moments that are merged by Chan's method. Sums of squares, as in torchmetrics, lose
    digits if the targets are far from zero.

    Args:
        input: takes `output` and `targets` out of another output.

    >>> R2().name
    'R2'
    """

    name = "R2"
    higher_is_better = True
    needs = ("output", "targets")

    def __init__(self, *, input: Input | None = None) -> None:
        super().__init__(input=input)
        self._alike = Alike(self.name)
        self._moments: _Moments | None = None

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Merge the batch's moments on the device."""
        targets = item.targets
        if targets.ndim == 0 or len(targets) == 0:
            return float("nan"), 0
        exact = exact_dtype(targets.device)
        wanted = widened(targets).to(exact).reshape(len(targets), -1)
        given = widened(self._alike(item.output, targets)).to(exact).reshape(wanted.shape)
        mean = wanted.mean(0)
        batch = _Moments(len(wanted), mean, (wanted - mean).square().sum(0), (wanted - given).square().sum(0))
        self._moments = batch if self._moments is None else _merged(self._moments, batch)
        return _score(batch), batch.samples

    def compute(self) -> Scalar | None:
        """Return the value of all samples."""
        return float("nan") if self._moments is None else _score(self._moments)

    def reset(self) -> None:
        """Forget the moments."""
        self._moments = None

    def state_dict(self) -> dict[str, Any]:
        """Return the moments."""
        return {"moments": None if self._moments is None else self._moments._asdict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved moments."""
        self._moments = _checked(state["moments"])

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the moments of another one (its `state_dict`) on other samples."""
        theirs = _checked(state["moments"])
        if theirs is not None:
            self._moments = theirs if self._moments is None else _merged(self._moments, theirs)


def _merged(ours: _Moments, theirs: _Moments) -> _Moments:
    if ours.mean.shape != theirs.mean.shape:
        raise OutputError(
            f"R2 has seen {len(ours.mean)} numbers per sample in this epoch, and now {len(theirs.mean)}; "
            "give every step targets of one shape"
        )
    ours = _Moments(ours.samples, *(moment.to(theirs.mean.device) for moment in ours[1:]))
    samples = ours.samples + theirs.samples
    apart = theirs.mean - ours.mean
    return _Moments(
        samples,
        ours.mean + apart * (theirs.samples / samples),
        ours.spread + theirs.spread + apart.square() * (ours.samples * theirs.samples / samples),
        ours.error + theirs.error,
    )


def _score(moments: _Moments) -> Tensor:
    if moments.samples < 2:
        return torch.full_like(moments.error, float("nan")).mean()
    # The rounded mean of equal numbers looks like variance, but is not; scikit-learn divides by it (-1e29).
    rounding = 4 * torch.finfo(moments.mean.dtype).eps * moments.mean
    varies = moments.spread > moments.samples * rounding.square()
    missed = (moments.error > 0).to(moments.error.dtype)
    # NaN is neither above 0 nor equal to it: the value must be NaN, not that of an exact prediction.
    undefined = moments.error.isnan() | moments.spread.isnan()
    scores = 1 - torch.where(varies | undefined, moments.error / moments.spread, missed)
    return scores.mean()


def _checked(moments: Any) -> _Moments | None:
    if moments is None:
        return None
    if isinstance(moments, Mapping) and set(moments) == set(_Moments._fields):
        found = _Moments(**moments)
        numbers = [each for each in found[1:] if isinstance(each, Tensor) and each.ndim == 1]
        if isinstance(found.samples, int) and len(numbers) == 3:
            return found
    raise StateError("the state of R2 holds no moments")
