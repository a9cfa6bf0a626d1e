"""The speed of the steps."""

from __future__ import annotations

from .base import Reading


class IterationSpeed(Reading):
    """Steps per second, over the steps since the last reading."""

    name = "Iteration Speed"
    unit = "iter/sec"
    higher_is_better = True

    def sample(self) -> float:
        """Return the context's value."""
        return self.context.steps_per_second
