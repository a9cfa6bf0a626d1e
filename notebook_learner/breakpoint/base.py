"""What a breakpoint waits for: the kinds of conditions, and what they are shown.

A condition never makes the training wait for the device. What it measures stays there and is read with the
block's metrics, about ten times a second; when a value of a step long past hits, the training goes back to
the boundary before that step. So most conditions are two things: what to measure at each step, on the
device, and what to make of the numbers, on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import StateError
from ..event.values import Column, Floats, Split

Run = Callable[[], Any]
Stage = Literal["backward", "update", "after"]


class Found(NamedTuple):
    """Which of the values hit, and what to tell a person of it."""

    at: int
    text: str


@dataclass(slots=True)
class Moment:
    """A training step between its backward pass and the optimizer's step, as conditions see it.

    `step` and `iteration` are the numbers of this very step: in its epoch, and in the run, from 1.
    """

    model: nn.Module
    optimizer: Optimizer
    parameters: Sequence[nn.Parameter]
    batch: Any = None
    output: Any = None
    epoch: int = 1
    step: int = 1
    iteration: int = 1
    scaled: bool = False
    """Whether gradients carry a loss scale (fp16): then an overflow is a matter of course."""
    clipped: bool = False
    """Whether gradients are cut to a value before the optimizer gets them."""
    in_parts: bool = False
    """Whether this process has but a part of each."""

    @property
    def loss(self) -> Tensor:
        """The loss, without its graph. It is on the device: to read it is to wait for it."""
        loss: Tensor = self.output.loss
        return loss.detach()

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients there are, of all parameters; before clipping."""
        if self.in_parts:
            raise StateError(
                'with strategy("fsdp") no rank has whole gradients, so a condition cannot look at them; go '
                'by the loss or a metric, or use strategy("ddp")'
            )
        return [p.grad for p in self.parameters if p.grad is not None]


class Condition:
    """What a breakpoint waits for. Derive from one of the kinds below.

    `str()` of it is its name in lists, in the panel and in what is told when it hits.
    """

    needs_whole: ClassVar[bool] = False
    """Whether it looks at weights or gradients, of which a rank may have but a part."""

    def explain(self, batch: Any, run: Run, model: nn.Module) -> str:
        """More about a hit, from running the step once more; nothing where there is no more.

        Args:
            batch: of the step that hit.
            run: the step's forward and backward pass. All it changes is put back afterwards.
            model: in training.
        """
        return ""

    def blame(self, model: nn.Module) -> str:
        """Before a step that hit: what shows that the step before it is to blame; nothing where none does."""
        return ""


class Planned(Condition):
    """A condition on the step's number."""

    def left(self, epoch: int, step: int, iteration: int) -> int | None:
        """How many steps lie between here and the step to stop at; None where it does not come any more.

        Args:
            epoch: of the training pass.
            step: finished steps of that pass.
            iteration: finished training steps of the run.
        """
        raise NotImplementedError(f"{type(self).__name__} must define left(epoch, step, iteration)")


class Measured(Condition):
    """A condition on a number of each step, measured on the device."""

    stage: ClassVar[Stage] = "backward"
    """When it measures: after each backward pass, before each update with the gradients as the optimizer is
    about to get them (unscaled, divided by the window, not clipped yet), or after each step."""

    def attach(self, model: nn.Module) -> None:
        """A run begins: hooks, buffers."""

    def detach(self) -> None:
        """The run is over: no hook may stay."""

    def prepare(self, moment: Moment) -> None:
        """For the stage "after": the update is about to be applied."""

    def measure(self, moment: Moment) -> Tensor | float | None:
        """One number, left on its device; None where this step has none."""
        raise NotImplementedError(f"{type(self).__name__} must define measure(moment)")

    def lasts(self, moment: Moment) -> bool:
        """Whether whatever `measure` would find is still to be seen at the end of a block. Then each step
        is only glanced at; where `traces` finds something, the block is taken again and measured in full.

        Args:
            moment: what is known before the first step.
        """
        return False

    def glance(self, moment: Moment) -> Tensor | float:
        """In place of `measure`: a number that is not finite where this step hits beyond doubt."""
        raise NotImplementedError(f"{type(self).__name__} must define glance(moment)")

    def traces(self, moment: Moment, open_window: bool) -> bool:
        """At the end of a block of which each step was only glanced at: whether one of them may have hit.

        Args:
            moment: its model, optimizer and parameters.
            open_window: whether gradients wait for more batches before they are applied.
        """
        raise NotImplementedError(f"{type(self).__name__} must define traces(moment, open_window)")

    def judge(self, iterations: Sequence[int], values: Floats) -> Found | None:
        """The first value that hits.

        Args:
            iterations: the numbers of the steps, ascending. A step may come again, after a way back.
            values: what they measured.
        """
        for index, value in enumerate(values):
            if text := self.says(float(value)):
                return Found(index, text)
        return None

    def says(self, value: float) -> str:
        """What is wrong with a value; nothing where it is not. `judge` asks this of each."""
        raise NotImplementedError(f"{type(self).__name__} must define says(value)")

    def forget_after(self, iteration: int) -> None:
        """The run stands elsewhere: steps after this one are taken back."""


class FromMetrics(Condition):
    """A condition on what metrics measured."""

    def judge(self, split: Split, columns: Mapping[str, Column]) -> Found | None:
        """The first step of a block that hits."""
        raise NotImplementedError(f"{type(self).__name__} must define judge(split, columns)")


class Asked(Condition):
    """A condition that is asked at every training step, before the update. It may wait for the device, at
    that price."""

    def asks(self, moment: Moment) -> bool | str:
        """Whether to stop here, or why."""
        raise NotImplementedError(f"{type(self).__name__} must define asks(moment)")
