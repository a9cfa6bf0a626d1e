"""Stops the training when a step changes a weight by too much, or by almost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import Measured, Moment, Stage


class UpdateRatio(Measured):
    """Stop before an update that changes a weight by too large, or too small, a share of its norm.

    About 1e-3 is healthy; 1e-1 destroys what was learned, 1e-7 learns nothing. It looks at weights, which
    have two dimensions or more. It leaves out biases and scales: they begin at 0 or 1, and may change by any
    share. It copies the weights at every step, which costs memory and time.

    Args:
        above: stop if the largest share of all parameters is above this.
        below: stop if the largest share of all parameters is below this.
    """

    needs_whole = True
    stage: ClassVar[Stage] = "after"

    def __init__(self, above: float | None = None, *, below: float | None = None) -> None:
        if above is None and below is None:
            raise ValueError("UpdateRatio(): give above=..., below=..., or both")
        self.above, self.below = above, below
        self._before: list[Tensor] = []

    def attach(self, model: nn.Module) -> None:
        self._before = []

    def detach(self) -> None:
        self._before = []

    def prepare(self, moment: Moment) -> None:
        self._before = [p.detach().clone() for p in _trained(moment.parameters)]

    def measure(self, moment: Moment) -> Tensor | None:
        before, self._before = self._before, []
        if not before:
            return None  # the accumulation window goes on
        moved = torch._foreach_sub([p.detach() for p in _trained(moment.parameters)], before)
        moves, norms = (
            torch.stack([norm.float() for norm in torch._foreach_norm(each)]) for each in (moved, before)
        )
        # A weight that begins at zero (a LoRA's second matrix) changes by an infinite share, and that is
        # right.
        return torch.where(norms > 0, moves / norms, torch.zeros_like(norms)).max()

    def says(self, value: float) -> str:
        if self.above is not None and not value <= self.above:
            return f"the largest update is {value:.3g} of its parameter, above {self.above:g}"
        if self.below is not None and value < self.below:
            return f"the largest update is {value:.3g} of its parameter, below {self.below:g}"
        return ""

    def __repr__(self) -> str:
        bounds = [f"{name}={value:g}" for name, value in self._bounds() if value is not None]
        return f"UpdateRatio({', '.join(bounds)})"

    def _bounds(self) -> Sequence[tuple[str, float | None]]:
        return ("above", self.above), ("below", self.below)


def _trained(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    moved = [p for p in parameters if p.requires_grad and p.grad is not None and not p.grad.is_sparse]
    return [p for p in moved if p.ndim > 1] or moved
