"""What a metric is: the contract, and the two shapes most metrics have.

A metric sees outputs by name and never the loop. Its `update` runs at every step and may return
tensors: they stay on the device and are read in blocks, about ten times a second. What happens on the
host (`values`, `totals`, `mean`) is vectorised over a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .arguments import checks_arguments

Floats = NDArray[np.float64]
Scalar = Tensor | float | int
Input = Callable[[Any], Any]
"""From what a step returned to what a metric needs: see `Metric`."""


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

    @property
    def data_wait(self) -> float:
        """The percentage of that block's time in which it stood still for batches. Loops of a learner count
        it where a `DataWait` asks."""

    @property
    def output(self) -> Any:
        """What the last finished step returned; None where there is none."""


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

    Where the step's output names things otherwise, `input` takes out what the metric `needs`: a tuple in
    that order, or an object or dict with those fields.

    >>> metric = MeanAbsoluteError(input=lambda item: (item.depth, item.wanted))

    Args:
        input: by default the output is used as it is.
    """

    name: str
    """Shown to people, and the log file's name (spaces become `_`)."""
    unit: str = ""
    higher_is_better: bool | None = None
    needs: tuple[str, ...] = ()
    """Fields the step's output must have; checked once per kind of output."""
    weighted: ClassVar[bool] = True
    """False: the values are readings, logged without weights and without a final line."""
    append_only: ClassVar[bool] = False
    """True for a metric that keeps every sample and only adds to them: the tensors of its `state_dict`, and
    those that `load_state_dict` was given, are never written to. Captured states then share them, where other
    states are copied whole each time."""
    context: StepContext
    """Set by the learner before the first step."""
    input: Input | None = None
    by_reference: ClassVar[tuple[str, ...]] = ("input",)
    """Attributes that a copy shares: each split has a metric of its own, but the user's functions, and
    what they hold (a model, a tokenizer), are not copied along."""

    def __init__(self, *, input: Input | None = None) -> None:
        self.input = input

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        checks_arguments(cls)

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

    def merged(self, raw: Floats, weights: Floats) -> Floats:
        """What `update` would have returned for the whole batch, from what it returned for each rank's part
        (a row a rank, a column a step): the weighted mean, or for readings what rank 0 returned.

        Of a step that is no mean of its samples (F1 of a batch) that is an approximation; the epoch's value,
        from merged states, is none.
        """
        if not self.weighted:
            return cast(Floats, raw[0])
        total = weights.sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return cast(Floats, np.where(weights != 0, raw * weights, 0.0).sum(0) / total)

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what the same metric accumulated on other samples (its `state_dict`): another device's.

        A metric that keeps a state and is to be measured on several devices says here how two become one.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say how states of several ranks are merged"
        )

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

    def merged(self, raw: Floats, weights: Floats) -> Floats:
        """The sum of the ranks' counts."""
        return cast(Floats, np.where(weights != 0, raw, 0.0).sum(0))

    def mean(self, total: float, weight: float) -> float:
        """The ratio of the summed counts."""
        return self.scale * total / weight if weight else float("nan")


class Counted(Metric):
    """A metric that counts on the host, as texts need it: once a block, and never in a step.

    `keep` runs at every step and returns what is needed later; tensors may stay on the device. `count`
    is given a block of these, and returns the counts of each step. The epoch's counts are their sum, and
    `score` makes the number of either.
    """

    def __init__(self, *, input: Input | None = None) -> None:
        super().__init__(input=input)
        self._sums: Floats | None = None

    def keep(self, item: Any) -> Any:
        """Take one step's output; return what `count` will want of it."""
        raise NotImplementedError(f"{type(self).__name__} must define keep(item)")

    def count(self, kept: Sequence[Any]) -> Floats:
        """The counts of each step, a row a step. May be asked again for the same steps."""
        raise NotImplementedError(f"{type(self).__name__} must define count(kept) -> counts")

    def score(self, counts: Floats) -> Floats:
        """The number that counts (in the last dimension) amount to."""
        raise NotImplementedError(f"{type(self).__name__} must define score(counts)")

    def weights(self, counts: Floats) -> Floats:
        """What stands behind each step's number."""
        raise NotImplementedError(f"{type(self).__name__} must define weights(counts)")

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Set the step aside. The group knows that this is no number yet."""
        return cast(Scalar, self.keep(item)), 0

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Each step's number."""
        return self.score(raw)

    def totals(self, raw: Floats, weights: Floats) -> Floats:
        """Nothing: the epoch's value is that of the summed counts."""
        return np.zeros(len(raw))

    def add(self, counts: Floats) -> None:
        """Steps were read: they belong to the epoch from now on."""
        rows = counts if self._sums is None else np.vstack([self._sums, counts])
        # Row by row, so that the sum does not depend on where the blocks were cut.
        self._sums = np.add.accumulate(rows, axis=0)[-1]

    def compute(self) -> Scalar | None:
        """The number of the epoch's counts."""
        if self._sums is None:
            return None
        with np.errstate(all="ignore"):
            return float(self.score(self._sums))

    def reset(self) -> None:
        """Forget the epoch's counts."""
        self._sums = None

    def state_dict(self) -> dict[str, Any]:
        """The epoch's counts."""
        return {"counts": None if self._sums is None else self._sums.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting from there."""
        counts = state["counts"]
        self._sums = None if counts is None else np.array(counts, dtype=np.float64)


class Reading(Metric):
    """A number sampled on the host once a block (CPU use, speed): it stands for the block's steps."""

    weighted: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()  # no `input`: it looks at no output

    def sample(self) -> float:
        """Read it now."""
        raise NotImplementedError(f"{type(self).__name__} must define sample() -> float")


class TextMetric:
    """A line of text sampled on the host once a block: logged and shown, never plotted."""

    name: str
    needs: tuple[str, ...] = ()
    context: StepContext
    input: Input | None = None
    by_reference: ClassVar[tuple[str, ...]] = ("input",)

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        checks_arguments(cls)

    def text(self) -> str:
        """Read it now."""
        raise NotImplementedError(f"{type(self).__name__} must define text() -> str")


class AccumulatedText(TextMetric):
    """A text about all steps of the epoch so far: `update` sees each of them, `text` is asked once a block.

    Its `update` runs as that of `Metric` does, and must not wait for the device either.
    """

    def update(self, item: Any) -> None:
        """Take one step's output (gradients are off)."""
        raise NotImplementedError(f"{type(self).__name__} must define update(item)")

    def reset(self) -> None:
        """Forget the epoch. Called before each split."""

    def state_dict(self) -> dict[str, Any]:
        """What `update` accumulated, as for `Metric.state_dict`."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what the same one accumulated on other samples, as `Metric.merge`."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say how states of several ranks are merged"
        )


AnyMetric = Metric | TextMetric
