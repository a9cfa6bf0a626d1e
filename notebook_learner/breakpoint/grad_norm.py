"""Stops the training when gradients grow above a bound."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from .base import Measured, Moment, Stage


class GradNorm(Measured):
    """Stop before an update if the norm of all gradients together, before clipping, is above a bound."""

    needs_whole = True
    stage: ClassVar[Stage] = "update"

    def __init__(self, above: float) -> None:
        if not above > 0:
            raise ValueError(f"GradNorm(above={above!r}): give a number above 0")
        self.above = above

    def measure(self, moment: Moment) -> Tensor | None:
        # Torch cannot compute the norm of a sparse gradient, which an embedding may have.
        gradients = [g.coalesce().values() if g.is_sparse else g for g in moment.gradients]
        return nn.utils.get_total_norm(gradients) if gradients else None

    def says(self, value: float) -> str:
        return f"gradient norm {value:.4g} is above {self.above:g}" if value > self.above else ""

    def __repr__(self) -> str:
        return f"GradNorm(above={self.above:g})"
