"""The base classes of metrics: the interface, and the two forms that most metrics have.

A metric reads outputs by field name and never sees the loop. Its `update` runs at every step and may return
tensors. They stay on the device and are read in blocks, about ten times a second. The work on the host
(`values`, `totals`, `mean`) is vectorised over a block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .arguments import checks_arguments

Floats = NDArray[np.float64]
Scalar = Tensor | float | int
Input = Callable[[Any], Any]
"""Turns what a step returned into what a metric needs: see `Metric`."""


class StepContext(Protocol):
    """What a metric may read about the step, in addition to the output. The loop answers."""

    @property
    def batch(self) -> Any:
        """The current batch, as the loader gave it."""

    @property
    def samples(self) -> int:
        """The number of samples in the current batch."""

    @property
    def learning_rates(self) -> list[float]:
        """The learning rate of this step, one for each parameter group."""

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of the gradients before clipping; None if the step had no optimizer step."""

    def rates_of(self, optimizer: str) -> list[float]:
        """The learning rates of one of several optimizers, one for each of its parameter groups.

        Raises:
            StepError: there is no optimizer of this name.
        """

    def norm_of(self, optimizer: str) -> Tensor | None:
        """The norm of the gradients of one of several optimizers; None if it did not step."""

    @property
    def steps_per_second(self) -> float:
        """The speed of the block that is being read."""

    @property
    def data_wait(self) -> float:
        """The percentage of that block's time in which training waited for batches. A learner's loops measure
        it only for a `DataWait`."""

    @property
    def output(self) -> Any:
        """What the last finished step returned; None if there is no such step."""


class Metric:
    """A number for each step, and one for each epoch.

    Subclasses give `name` and `update`. `update` returns the step's value; the epoch's value is the weighted
    mean `Σ value·weight / Σ weight`, where the weight is the number of the batch's samples, so a short last
    batch has a smaller weight. If another number stands behind the value, `update` returns value and weight.
    A metric that is not a mean of steps (AUROC, F1) accumulates in `update`, and returns its value from
    `compute`.

    >>> from notebook_learner.metric import Metric
    >>> class MeanAbsoluteError(Metric):
    ...     name = "Mean Absolute Error"
    ...     higher_is_better = False
    ...     needs = ("output", "targets")
    ...
    ...     def update(self, item):
    ...         return (item.output - item.targets).abs().mean()

    If the step's output has other field names, `input` takes out what the metric `needs`: a tuple in that
    order, or an object or dict with those fields.

    >>> metric = MeanAbsoluteError(input=lambda item: (item.depth, item.wanted))

    Args:
        input: by default the output is used as it is.
    """

    name: str
    """Its name on the screen, and in the log file's name (spaces become `_`)."""
    unit: str = ""
    higher_is_better: bool | None = None
    needs: tuple[str, ...] = ()
    """The fields that the step's output must have; checked once for each kind of output."""
    weighted: ClassVar[bool] = True
    """False: the values are readings, logged without weights and without a final line."""
    append_only: ClassVar[bool] = False
    """True for a metric that keeps every sample and only adds samples. It never writes to the tensors of its
    `state_dict`, or to those that `load_state_dict` got. Captured states then share these tensors; other
    states are copied whole each time."""
    context: StepContext
    """Set by the learner before the first step."""
    input: Input | None = None
    by_reference: ClassVar[tuple[str, ...]] = ("input",)
    """Attributes that a copy shares. Each split has its own copy of the metric, but the user's functions, and
    the objects that they hold (a model, a tokenizer), are not copied."""

    def __init__(self, *, input: Input | None = None) -> None:
        self.input = input

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        checks_arguments(cls)

    def update(self, item: Any) -> Scalar | tuple[Scalar, Scalar]:
        """Take one step's output, without gradients; return its value, or its value and weight.

        A step without a value returns `(float("nan"), 0)`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(item) -> (value, weight)")

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Return the values to show, given what `update` returned: by default the same."""
        return raw

    def totals(self, raw: Floats, weights: Floats) -> Floats:
        """Return what each step adds to the epoch's numerator."""
        return raw * weights

    def mean(self, total: float, weight: float) -> float:
        """Return the epoch's value from the sums of `totals` and weights."""
        return total / weight if weight else float("nan")

    def compute(self) -> Scalar | None:
        """Return the epoch's value from this metric's own state; None (the default) means the mean."""
        return None

    def merged(self, raw: Floats, weights: Floats) -> Floats:
        """Return what `update` would have returned for the whole batch, given what it returned for each
        rank's part (a row for each rank, a column for each step): the weighted mean, or for readings what
        rank 0 returned.

        For a step's value that is not a mean over samples (F1 of a batch), this is an approximation. The
        epoch's value comes from merged states and is exact.
        """
        if not self.weighted:
            return cast(Floats, raw[0])
        total = weights.sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return cast(Floats, np.where(weights != 0, raw * weights, 0.0).sum(0) / total)

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what the same metric accumulated on other samples (its `state_dict`), on another device.

        A metric that keeps a state defines this method, so that it can be measured on several devices.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say how states of several ranks are merged"
        )

    def reset(self) -> None:
        """Forget the epoch. The learner calls it before each split."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `update` accumulated, for captured states: tensors, numbers, lists, dicts."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned."""


class Ratio(Metric):
    """A metric whose `update` returns a count and its total, such as right answers out of all answers.

    Counts are exact in a double, and quotients are not. So the epoch's value is exact, too.
    """

    scale: ClassVar[float] = 1.0

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Return each step's ratio."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.scale * raw / weights

    def totals(self, raw: Floats, weights: Floats) -> Floats:
        """Return the counts themselves."""
        return raw

    def merged(self, raw: Floats, weights: Floats) -> Floats:
        """Return the sum of the ranks' counts."""
        return cast(Floats, np.where(weights != 0, raw, 0.0).sum(0))

    def mean(self, total: float, weight: float) -> float:
        """Return the ratio of the summed counts."""
        return self.scale * total / weight if weight else float("nan")


class Counted(Metric):
    """A metric that counts on the host (texts need that): once for each block, and never in a step.

    `keep` runs at every step and returns what is needed later; tensors may stay on the device. `count`
    receives a block of these, and returns the counts of each step. The epoch's counts are their sum. `score`
    turns the counts of a step or of the epoch into a number.
    """

    def __init__(self, *, input: Input | None = None) -> None:
        super().__init__(input=input)
        self._sums: Floats | None = None

    def keep(self, item: Any) -> Any:
        """Take one step's output, and return what `count` needs of it."""
        raise NotImplementedError(f"{type(self).__name__} must define keep(item)")

    def count(self, kept: Sequence[Any]) -> Floats:
        """Return the counts of each step, one row for each. It may be called again for the same steps."""
        raise NotImplementedError(f"{type(self).__name__} must define count(kept) -> counts")

    def score(self, counts: Floats) -> Floats:
        """Return the number for these counts, which are in the last dimension."""
        raise NotImplementedError(f"{type(self).__name__} must define score(counts)")

    def weights(self, counts: Floats) -> Floats:
        """Return the weight of each step's number."""
        raise NotImplementedError(f"{type(self).__name__} must define weights(counts)")

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Keep the step for later. The group knows that the result is not a number yet."""
        return cast(Scalar, self.keep(item)), 0

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Return each step's number."""
        return self.score(raw)

    def totals(self, raw: Floats, weights: Floats) -> Floats:
        """Return zeros: the epoch's value comes from the summed counts."""
        return np.zeros(len(raw))

    def add(self, counts: Floats) -> None:
        """Add steps that were read to the epoch."""
        rows = counts if self._sums is None else np.vstack([self._sums, counts])
        # Row by row, so that the sum does not depend on the borders of the blocks.
        self._sums = np.add.accumulate(rows, axis=0)[-1]

    def compute(self) -> Scalar | None:
        """Return the number for the epoch's counts."""
        if self._sums is None:
            return None
        with np.errstate(all="ignore"):
            return float(self.score(self._sums))

    def reset(self) -> None:
        """Forget the epoch's counts."""
        self._sums = None

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch's counts."""
        return {"counts": None if self._sums is None else self._sums.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved counts."""
        counts = state["counts"]
        self._sums = None if counts is None else np.array(counts, dtype=np.float64)


class Reading(Metric):
    """A number that is read on the host once for each block (CPU use, speed), for all of the block's
    steps."""

    weighted: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()  # no `input`: it reads no output

    def sample(self) -> float:
        """Return the current value."""
        raise NotImplementedError(f"{type(self).__name__} must define sample() -> float")


class TextMetric:
    """A line of text that is read on the host once for each block: logged and shown, never plotted."""

    name: str
    needs: tuple[str, ...] = ()
    context: StepContext
    input: Input | None = None
    by_reference: ClassVar[tuple[str, ...]] = ("input",)

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        checks_arguments(cls)

    def text(self) -> str:
        """Return the current text."""
        raise NotImplementedError(f"{type(self).__name__} must define text() -> str")


class AccumulatedText(TextMetric):
    """A text about all steps of the epoch so far. `update` runs at each step, `text` once for each block.

    Its `update` runs like that of `Metric`, and must not wait for the device either. At the end of an epoch
    the panel gets the whole text, or what `picture` returns, in a tab of its own.
    """

    def update(self, item: Any) -> None:
        """Take one step's output, without gradients."""
        raise NotImplementedError(f"{type(self).__name__} must define update(item)")

    def picture(self) -> Any:
        """Return what the panel shows of the epoch at its end: a matplotlib figure, the bytes of a PNG file,
        or None (the default) for the text. It may wait for the device."""
        return None

    def reset(self) -> None:
        """Forget the epoch. The learner calls it before each split."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `update` accumulated, as `Metric.state_dict` does."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned."""

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what the same text metric accumulated on other samples, as `Metric.merge` does."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say how states of several ranks are merged"
        )


AnyMetric = Metric | TextMetric


def own_copy(metric: AnyMetric) -> AnyMetric:
    """Return another metric that measures the same."""
    free = copy.copy(metric)
    with suppress(AttributeError):
        del free.context  # it refers to a loop, and to everything in the loop
    given = [getattr(free, name, None) for name in free.by_reference]
    return copy.deepcopy(free, {id(each): each for each in given if each is not None})
