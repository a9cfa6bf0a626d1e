"""The loss, weighted by the number of samples of each step."""

from __future__ import annotations

from typing import Any

from .base import Metric, Scalar


class Loss(Metric):
    """The step's loss; over an epoch, the mean per sample, in which a short last batch has a smaller weight.

    If a loss is a mean over something else than samples (tokens, pixels), put their number into the output's
    field `weight`.
    """

    name = "Loss"
    higher_is_better = False
    needs = ("loss",)

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the loss and its weight."""
        weight = getattr(item, "weight", None)
        return item.loss.detach(), self.context.samples if weight is None else weight
