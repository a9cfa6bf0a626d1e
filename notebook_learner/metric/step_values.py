"""What a step itself tells: its loss, learning rate, gradient norm, speed and logged values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer

from ..errors import StepError, a_kind
from .base import Floats, Metric, Reading, Scalar


class Loss(Metric):
    """The step's loss; over an epoch, the mean per sample, in which a short last batch has a smaller weight.

    If a loss is a mean over something else than samples (tokens, pixels), put their number into the output's
    field `weight`.
    """

    name = "Loss"
    higher_is_better = False
    needs: tuple[str, ...] = ("loss",)

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the loss and its weight."""
        weight = getattr(item, "weight", None)
        return item.loss.detach(), self.context.samples if weight is None else weight


class LossIfAny(Loss):
    """The loss that is measured if the user has named no metric: a step that runs backward and the optimizer
    itself may return none."""

    needs = ()

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the loss and its weight, or no value."""
        return super().update(item) if isinstance(getattr(item, "loss", None), Tensor) else (float("nan"), 0)


class GradNorm(Metric):
    """The gradients' norm before clipping; over an epoch, its mean per optimizer step.

    Steps that only accumulate gradients have no value. Of several optimizers, this is the norm of all
    gradients that a step has applied.

    >>> GradNorm().name, GradNorm("critic").name
    ('Gradient Norm', 'Gradient Norm critic')

    Args:
        optimizer: the name of one of several optimizers, for the norm of its gradients.
    """

    name = "Gradient Norm"

    def __init__(self, optimizer: str | None = None) -> None:
        super().__init__()  # no `input`: it reads no output
        self.optimizer = optimizer
        if optimizer is not None:
            self.name = f"Gradient Norm {optimizer}"

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the context's value; the output is not read."""
        norm = self.context.grad_norm if self.optimizer is None else self.context.norm_of(self.optimizer)
        return (float("nan"), 0) if norm is None else (norm, 1)


class LearningRate(Metric):
    """The learning rate of each step, for one of the optimizer's parameter groups.

    >>> LearningRate().name, LearningRate(1).name, LearningRate(optimizer="critic").name
    ('Learning Rate', 'Learning Rate 1', 'Learning Rate critic')

    Args:
        group: its number from 0, as in `optimizer.param_groups`; each group has its own metric.
        optimizer: the name of the optimizer, if there are several; without it, the groups of all are counted.
    """

    name = "Learning Rate"
    weighted = False

    def __init__(self, group: int = 0, optimizer: str | None = None) -> None:
        super().__init__()  # no `input`: it reads no output
        if isinstance(group, bool) or not isinstance(group, int) or group < 0:
            raise ValueError(f"LearningRate({group!r}): give a parameter group's number, counted from 0")
        self.group, self.optimizer = group, optimizer
        told = optimizer or "", str(group or "")
        self.name = " ".join(["Learning Rate", *filter(None, told)])

    @classmethod
    def per_group(cls, optimizer: Optimizer | Mapping[str, Optimizer]) -> list[LearningRate]:
        """Make one metric for each parameter group: `.metrics(*LearningRate.per_group(optimizer))`. Of
        several optimizers, give the mapping.

        >>> from torch import nn, optim
        >>> groups = [{"params": nn.Linear(1, 1).parameters()}, {"params": nn.Linear(1, 1).parameters()}]
        >>> [metric.name for metric in LearningRate.per_group(optim.SGD(groups, lr=0.1))]
        ['Learning Rate', 'Learning Rate 1']
        """
        if isinstance(optimizer, Mapping):
            named = [(name, len(each.param_groups)) for name, each in optimizer.items()]
            return [cls(group, name) for name, count in named for group in range(count)]
        return [cls(group) for group in range(len(optimizer.param_groups))]

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the context's value; the output is not read."""
        context, name = self.context, self.optimizer
        rates = context.learning_rates if name is None else context.rates_of(name)
        if self.group >= len(rates):
            raise StepError(
                f"LearningRate({self.group}): the optimizer has {len(rates)} parameter groups, counted from "
                "0; LearningRate.per_group(optimizer) makes one metric for each"
            )
        return rates[self.group], 1


class Logged(Metric):
    """What `learner.log(name, value)` becomes: a metric with a value for each step that logged one.

    Its epoch's value is the mean over the samples of those steps.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._value: Scalar | None = None

    def put(self, value: Any) -> None:
        """Take the value of the current step; a second one in the same step replaces it."""
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.is_complex():
                raise StepError(
                    f"log({self.name!r}, ...) was given a tensor of shape {tuple(value.shape)} and "
                    f"{value.dtype}; log one real number: reduce it with .mean() or .norm()"
                )
            # A copy, since a parameter or a running mean changes before the block is read.
            self._value = value.detach().reshape(()).clone()
        else:
            try:
                self._value = float(value)
            except (TypeError, ValueError):
                raise StepError(
                    f"log({self.name!r}, ...) was given {a_kind(value)}; log a number or a tensor "
                    "with one element"
                ) from None

    def compute(self) -> Scalar | None:
        """Return what was logged of the whole epoch, after its last step."""
        return self._value

    def drop(self) -> None:
        """Forget a value that a step logged and that was never counted."""
        self._value = None

    def reset(self) -> None:
        """Begin an epoch."""
        self.drop()

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the step's value and its samples, or no value."""
        value, self._value = self._value, None
        return (float("nan"), 0) if value is None else (value, self.context.samples)


class IterationSpeed(Reading):
    """Steps per second, over the steps since the last reading."""

    name = "Iteration Speed"
    unit = "iter/sec"
    higher_is_better = True

    def sample(self) -> float:
        """Return the context's value."""
        return self.context.steps_per_second


class SamplesPerSecond(Metric):
    """Samples per second, over the steps since the last reading; a short last batch has fewer samples.

    >>> SamplesPerSecond().unit
    'samples/sec'
    """

    name = "Samples Per Second"
    unit = "samples/sec"
    higher_is_better = True
    weighted = False

    def __init__(self) -> None:
        super().__init__()  # no `input`: it reads no output

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Count the batch's samples; the output is not read."""
        return self.context.samples, 1

    def merged(self, raw: Floats, weights: Floats) -> Floats:
        """Return the samples of all ranks."""
        samples: Floats = np.nansum(raw, axis=0)
        return samples

    def values(self, raw: Floats, weights: Floats) -> Floats:
        """Return the block's mean batch size at the block's speed, for each of its steps."""
        return np.full(len(raw), raw.mean() * self.context.steps_per_second)


class DataWait(Reading):
    """The share of the time in which training waited for the next batch, in percent, since the last reading.

    Above a few percent, more workers or a faster dataset would help. On several devices it is the value of
    rank 0. It costs two reads of the clock for each batch.

    >>> DataWait().unit
    '%'
    """

    name = "Data Wait"
    unit = "%"
    higher_is_better = False

    def sample(self) -> float:
        """Return the context's value."""
        return self.context.data_wait
