"""Stops the training by number: at one step, or at every n-th step."""

from __future__ import annotations

from .base import Planned


class AtStep(Planned):
    """Stop at one training step, before its update.

    >>> AtStep(1234), AtStep(117, epoch=3)
    (AtStep(1234), AtStep(117, epoch=3))

    Args:
        step: the step's number, from 1: in the whole run, or in `epoch`.
        epoch: the epoch in which `step` counts; without it, `step` counts from the start of the run.
    """

    def __init__(self, step: int, *, epoch: int | None = None) -> None:
        for name, number in (("step", step), ("epoch", 1 if epoch is None else epoch)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"AtStep({name}={number!r}): steps and epochs are counted from 1")
        self.step, self.epoch = step, epoch

    def left(self, epoch: int, step: int, iteration: int) -> int | None:
        if self.epoch is not None:
            return self.step - 1 - step if epoch == self.epoch and step < self.step else None
        return self.step - 1 - iteration if iteration < self.step else None

    def __repr__(self) -> str:
        return f"AtStep({self.step})" if self.epoch is None else f"AtStep({self.step}, epoch={self.epoch})"


class EveryNSteps(Planned):
    """Stop at every n-th training step of the run, before its update."""

    def __init__(self, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"EveryNSteps({n!r}): give a number of steps, from 1")
        self.n = n

    def left(self, epoch: int, step: int, iteration: int) -> int | None:
        return self.n - 1 - iteration % self.n

    def __repr__(self) -> str:
        return f"EveryNSteps({self.n})"
