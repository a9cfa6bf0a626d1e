"""The learning rate of each step."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ..errors import StepError
from .base import Metric, Scalar


class LearningRate(Metric):
    """The learning rate of each step, for one of the optimizer's parameter groups.

    >>> LearningRate().name, LearningRate(1).name
    ('Learning Rate', 'Learning Rate 1')

    Args:
        group: its number from 0, as in `optimizer.param_groups`; each group has its own metric.
    """

    name = "Learning Rate"
    weighted = False

    def __init__(self, group: int = 0) -> None:
        super().__init__()  # no `input`: it reads no output
        if isinstance(group, bool) or not isinstance(group, int) or group < 0:
            raise ValueError(f"LearningRate({group!r}): give a parameter group's number, counted from 0")
        self.group = group
        if group:
            self.name = f"Learning Rate {group}"

    @classmethod
    def per_group(cls, optimizer: Optimizer) -> list[LearningRate]:
        """Make one metric for each parameter group: `.metrics(*LearningRate.per_group(optimizer))`.

        >>> from torch import nn, optim
        >>> groups = [{"params": nn.Linear(1, 1).parameters()}, {"params": nn.Linear(1, 1).parameters()}]
        >>> [metric.name for metric in LearningRate.per_group(optim.SGD(groups, lr=0.1))]
        ['Learning Rate', 'Learning Rate 1']
        """
        return [cls(group) for group in range(len(optimizer.param_groups))]

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Return the context's value; the output is not read."""
        rates = self.context.learning_rates
        if self.group >= len(rates):
            raise StepError(
                f"LearningRate({self.group}): the optimizer has {len(rates)} parameter groups, counted from "
                "0; LearningRate.per_group(optimizer) makes one metric for each"
            )
        return rates[self.group], 1
