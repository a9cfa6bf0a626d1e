"""The learning rate of each step."""

from __future__ import annotations

from typing import Any

from .base import Metric, Scalar


class LearningRate(Metric):
    """The rate each step was taken with; that of the first parameter group where there are several."""

    name = "Learning Rate"
    weighted = False

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Ask the context; the output is not looked at."""
        return self.context.learning_rates[0], 1
