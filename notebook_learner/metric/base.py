"""What a metric is: the contract, and the two shapes most metrics have.

A metric sees outputs by name and never the loop. Its `update` runs at every step and may return
tensors: they stay on the device and are read in blocks, about ten times a second. What happens on the
host (`values`, `totals`, `mean`) is vectorised over a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Scalar = Tensor | float | int


class StepContext(Protocol):
    """What a metric may ask about the step, beside its output. The loop answers."""

    @property
    def samples(self) -> int:
        """How many samples the current batch holds."""

    @property
    def learning_rates(self) -> list[float]:
        """The rate this step was taken with, one per parameter group."""

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of the gradients before clipping; None where no optimizer step was taken."""

    @property
    def steps_per_second(self) -> float:
        """The rate of the block that is being read."""


class Metric:
    """A number per step, and one per epoch.

    Subclasses give `name` and `update`. `update` returns a value and its weight; the epoch's value is
    the weighted mean `Σ value·weight / Σ weight`, so a short last batch counts as what it is. A metric
    that is no mean of steps (AUROC, F1) accumulates in `update`, and answers in `compute`.

    >>> from notebook_learner.metric import Metric
    >>> class MeanAbsoluteError(Metric):
    ...     name = "Mean Absolute Error"
    ...     higher_is_better = False
    ...     needs = ("output", "targets")
    ...
    ...     def update(self, item):
    ...         error = (item.output - item.targets).abs().mean()
    ...         return error, len(item.targets)
    """

    name: str
    """Shown to people, and the log file's name (spaces become `_`)."""
    unit: str = ""
    higher_is_better: bool | None = None
    needs: tuple[str, ...] = ()
    """Fields the step's output must have; checked once per kind of output."""
    weighted: ClassVar[bool] = True
    """False: the values are readings, logged without weights and without a final line."""
    context: StepContext
    """Set by the learner before the first step."""

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Take one step's output (gradients are off); return its value and weight.

        A step that has no value returns `(float("nan"), 0)`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(item) -> (value, weight)")

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """What `update` returned, as the values to show: by default just that."""
        return raw

    def totals(self, raw: Floats, weights: Floats) -> Floats:
        """What each step adds to the epoch's numerator."""
        return raw * weights

    def mean(self, total: float, weight: float) -> float:
        """The epoch's value from the sums of `totals` and weights."""
        return total / weight if weight else float("nan")

    def compute(self) -> Scalar | None:
        """The epoch's value from this metric's own state; None (the default) means the mean."""
        return None

    def reset(self) -> None:
        """Forget the epoch. Called before each split."""

    def state_dict(self) -> dict[str, Any]:
        """What `update` accumulated: part of every captured state. Tensors, numbers, lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class Ratio(Metric):
    """A metric whose `update` returns a count and what it is out of, such as right answers.

    Keeping counts (exact in a double) instead of quotients makes the epoch's value exact too.
    """

    scale: ClassVar[float] = 1.0

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Each step's ratio."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.scale * raw / weights

    def totals(self, raw: Floats, weights: Floats) -> Floats:
        """The counts themselves."""
        return raw

    def mean(self, total: float, weight: float) -> float:
        """The ratio of the summed counts."""
        return self.scale * total / weight if weight else float("nan")


class Reading(Metric):
    """A number sampled on the host once a block (CPU use, speed): it stands for the block's steps."""

    weighted: ClassVar[bool] = False

    def sample(self) -> float:
        """Read it now."""
        raise NotImplementedError(f"{type(self).__name__} must define sample() -> float")


class TextMetric:
    """A line of text sampled on the host once a block: logged and shown, never plotted."""

    name: str
    context: StepContext

    def text(self) -> str:
        """Read it now."""
        raise NotImplementedError(f"{type(self).__name__} must define text() -> str")


AnyMetric = Metric | TextMetric
