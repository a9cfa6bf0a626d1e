"""A value that a step logs by name, without a registered metric."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import StepError, a_kind
from .base import Metric, Scalar


class Logged(Metric):
    """What `learner.log(name, value)` becomes: a metric with a value for each step that logged one.

    Its epoch's value is the mean over the samples of those steps.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._value: Scalar | None = None

    def put(self, value: Any) -> None:
        """Take the value of the current step; a second one in the same step replaces it."""
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.is_complex():
                raise StepError(
                    f"log({self.name!r}, ...) was given a tensor of shape {tuple(value.shape)} and "
                    f"{value.dtype}; log one real number: reduce it with .mean() or .norm()"
                )
            # A copy, since a parameter or a running mean changes before the block is read.
            self._value = value.detach().reshape(()).clone()
        else:
            try:
                self._value = float(value)
            except (TypeError, ValueError):
                raise StepError(
                    f"log({self.name!r}, ...) was given {a_kind(value)}; log a number or a tensor "
                    "with one element"
                ) from None

    def reset(self) -> None:
        """Forget a value that a step logged and that was never counted."""
        self._value = None

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the step's value and its samples, or no value."""
        value, self._value = self._value, None
        return (float("nan"), 0) if value is None else (value, self.context.samples)
