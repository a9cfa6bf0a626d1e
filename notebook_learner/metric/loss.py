"""The loss, weighted by what stands behind it."""

from __future__ import annotations

from typing import Any

from .base import Metric, Scalar


class Loss(Metric):
    """The step's loss; over an epoch the mean per sample, so that a short last batch counts as less.

    A loss that is a mean over something else than samples (tokens, pixels) says how many in a field
    `weight` of the output.
    """

    name = "Loss"
    higher_is_better = False
    needs = ("loss",)

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Take the loss as it is, and its weight."""
        weight = getattr(item, "weight", None)
        return item.loss.detach(), self.context.samples if weight is None else weight
