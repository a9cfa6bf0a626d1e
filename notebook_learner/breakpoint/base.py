"""The kinds of conditions that a breakpoint can have, and what each of them receives.

A condition never makes the training wait for the device. Its numbers stay on the device and are read with the
block's metrics, about ten times a second. If a value of an earlier step hits, the training goes back to the
boundary before that step. So most conditions have two parts: what to measure at each step, on the device, and
how to judge the numbers, on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import StateError, StepError
from ..event.values import Column, Floats, Split

Run = Callable[[], Any]
Stage = Literal["backward", "update", "after"]


class Found(NamedTuple):
    """Which of the values hit, and the text that the user sees."""

    at: int
    text: str


@dataclass(slots=True)
class Moment:
    """A training step between its backward pass and the optimizer's step, as a condition receives it.

    `step` and `iteration` are this step's numbers: in its epoch, and in the run. Both count from 1.
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
    """Whether gradients carry a loss scale (fp16). With one, they overflow now and then, which is normal."""
    clipped: bool = False
    """Whether gradients are cut to a value before the optimizer gets them."""
    in_parts: bool = False
    """Whether this process has only a part of each gradient."""
    repaired: bool = False
    """Whether code may change gradients just before the optimizer gets them: a hook, or the step itself."""

    @property
    def loss(self) -> Tensor:
        """The loss, without its graph. It is on the device: a read waits for the device."""
        if not self.has_loss:
            raise StepError(
                "this breakpoint looks at the loss, and the step returned none; end it with `return loss`"
            )
        loss: Tensor = self.output.loss
        return loss.detach()

    @property
    def has_loss(self) -> bool:
        """Whether the step returned a loss; one that runs backward and the optimizer itself need not."""
        return isinstance(getattr(self.output, "loss", None), Tensor)

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of all parameters that have one, before clipping."""
        if self.in_parts:
            raise StateError(
                'with strategy("fsdp") no rank has whole gradients, so a condition cannot look at them; go '
                'by the loss or a metric, or use strategy("ddp")'
            )
        return [p.grad for p in self.parameters if p.grad is not None]


class Condition:
    """What a breakpoint waits for: the base class of all conditions. Derive from one of the kinds below.

    `str()` of a condition is its name in lists, in the panel and in the message of a hit.
    """

    needs_whole: ClassVar[bool] = False
    """Whether it reads weights or gradients, of which a rank may have only a part."""

    def explain(self, batch: Any, run: Run, model: nn.Module) -> str:
        """Return more about a hit, found by running the step once more; "" if there is no more to say.

        Args:
            batch: the batch of the step that hit.
            run: the step's forward and backward pass. The caller puts back all that it changes.
            model: the model, in training mode.
        """
        return ""

    def blame(self, model: nn.Module) -> str:
        """Before a step that hit, return what shows that the step before it is the cause; "" if nothing
        does."""
        return ""


class Planned(Condition):
    """A condition on the step's number."""

    def left(self, epoch: int, step: int, iteration: int) -> int | None:
        """Return how many steps lie between here and the step to stop at; None if that step will not come.

        Args:
            epoch: the epoch of the training pass.
            step: the finished steps of that pass.
            iteration: the finished training steps of the run.
        """
        raise NotImplementedError(f"{type(self).__name__} must define left(epoch, step, iteration)")


class Measured(Condition):
    """A condition on a number that is measured on the device at each step."""

    stage: ClassVar[Stage] = "backward"
    """When it measures: after each backward pass; before each update, with the gradients that the optimizer
    is about to get (unscaled, divided by the window, not clipped yet); or after each step."""

    def attach(self, model: nn.Module) -> None:
        """Add hooks and buffers, at the start of a run."""

    def detach(self) -> None:
        """Remove all hooks, at the end of the run."""

    def prepare(self, moment: Moment) -> None:
        """For the stage "after": called before the update is applied."""

    def measure(self, moment: Moment) -> Tensor | float | None:
        """Return one number, left on its device; None if this step has no number."""
        raise NotImplementedError(f"{type(self).__name__} must define measure(moment)")

    def lasts(self, moment: Moment) -> bool:
        """Return whether everything that `measure` finds can still be seen at the end of a block. If so, each
        step calls only `glance`. If `traces` then finds something, the block runs again and each step is
        measured.

        Args:
            moment: what is known before the first step.
        """
        return False

    def glance(self, moment: Moment) -> Tensor | float:
        """In place of `measure`: return a number that is not finite if this step certainly hits."""
        raise NotImplementedError(f"{type(self).__name__} must define glance(moment)")

    def traces(self, moment: Moment, open_window: bool) -> bool:
        """At the end of a block whose steps called only `glance`, return whether one of them may have hit.

        Args:
            moment: with the model, the optimizer and the parameters.
            open_window: whether gradients wait for more batches before they are applied.
        """
        raise NotImplementedError(f"{type(self).__name__} must define traces(moment, open_window)")

    def _trace(self, moment: Moment, open_window: bool) -> Tensor | None:
        """A scalar on the device that is finite only if `traces` would find nothing: it is read together with
        the block's metrics, and `traces` is then not called."""
        return None

    def judge(self, iterations: Sequence[int], values: Floats) -> Found | None:
        """Return the first value that hits.

        Args:
            iterations: the numbers of the steps, ascending. A step may come again after the run went back.
            values: what the steps measured.
        """
        for index, value in enumerate(values):
            if text := self.says(float(value)):
                return Found(index, text)
        return None

    def says(self, value: float) -> str:
        """Return what is wrong with a value; "" if nothing is. `judge` calls this for each value."""
        raise NotImplementedError(f"{type(self).__name__} must define says(value)")

    def forget_after(self, iteration: int) -> None:
        """Forget the steps after this one: the run went back and has undone them."""


class FromMetrics(Condition):
    """A condition on the values of metrics."""

    def judge(self, split: Split, columns: Mapping[str, Column]) -> Found | None:
        """Return the first step of a block that hits."""
        raise NotImplementedError(f"{type(self).__name__} must define judge(split, columns)")


class Asked(Condition):
    """A condition that is called at every training step, before the update. It may wait for the device, which
    makes the training slower."""

    def asks(self, moment: Moment) -> bool | str:
        """Return whether to stop here, or the reason to stop."""
        raise NotImplementedError(f"{type(self).__name__} must define asks(moment)")
