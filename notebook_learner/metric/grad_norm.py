"""The norm of the gradients at each optimizer step."""

from __future__ import annotations

from typing import Any

from .base import Metric, Scalar


class GradNorm(Metric):
    """The gradients' norm before clipping; over an epoch, its mean per optimizer step.

    Steps that only accumulate gradients have no value.
    """

    name = "Gradient Norm"

    def __init__(self) -> None:
        super().__init__()  # no `input`: it reads no output

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the context's value; the output is not read."""
        norm = self.context.grad_norm
        return (float("nan"), 0) if norm is None else (norm, 1)
