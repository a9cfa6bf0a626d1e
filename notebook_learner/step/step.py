"""One batch through the model: device, precision, gradients on or off, and the user's own function.

This is the hot path of training. An option that is not used costs one `is None`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from ..data.batch import is_on, move
from .output import TrainOutput, as_item, loss_of
from .update import Update

StepFunction = Callable[[Any, Any], Any]
"""fn(model, batch) -> output: a step that is not a method of the model."""


@runtime_checkable
class TrainStep(Protocol):
    """A model that defines how it is trained on a batch.

    Return any object with a `.loss`, and the learner runs backward. Or run backward yourself and return
    `TrainOutput(self, item.loss.backward(), item)`, as in Burn.
    """

    def train_step(self, batch: Any, /) -> Any:
        """Return the output of one training batch."""


@runtime_checkable
class ValidStep(Protocol):
    """A model that defines how it is validated. It runs without gradients and in eval mode."""

    def valid_step(self, batch: Any, /) -> Any:
        """Return the output of one validation batch."""


class StepObserver(Protocol):
    """Looks at training steps as they are taken."""

    def after_backward(self, batch: Any, output: Any) -> None:
        """Called when the gradients of this batch are complete."""

    def after_step(self) -> None:
        """Called when the step is done."""


class _Runner:
    """The common part of both kinds of step: the batch's way to the device, and the precision."""

    def __init__(
        self, function: Callable[[Any], Any], device: torch.device, precision: torch.dtype | None
    ) -> None:
        self.function = function
        self.device = device
        # One autocast object is entered again and again: a new one costs 5 us.
        self.autocast = None if precision is None else torch.autocast(device.type, precision)
        self.moves = True
        """Whether batches have to be moved: decided at the first one of a run, not at each."""
        self.notes: list[tuple[str, Any]] | None = None
        """What a step logs by name while it is only recorded."""
        self.notice = ""
        """A text that the user should see at the next boundary."""

    def look_again(self) -> None:
        """At the start of a run: the user may have changed anything."""
        self.moves = True

    def _forward(self, batch: Any) -> Any:
        __tracebackhide__ = True
        if self.moves:
            batch = self._moved(batch)
        if self.autocast is None:
            return as_item(self.function(batch))
        with self.autocast:
            return as_item(self.function(batch))

    def _moved(self, batch: Any) -> Any:
        if is_on(batch, self.device):
            self.moves = False
            return batch
        return move(batch, self.device)


class TrainingStep(_Runner):
    """Forward, backward, and the optimizer when its window is full."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        device: torch.device,
        precision: torch.dtype | None,
        update: Update,
    ) -> None:
        super().__init__(function, device, precision)
        self.update = update
        self.look: StepObserver | None = None
        self.stage = "forward"
        """How far a step came, for the error message if it cannot be undone."""

    def __call__(self, batch: Any, last: bool) -> Any:
        __tracebackhide__ = True
        update = self.update
        self.stage = "forward"
        update.begin()
        if update.together is not None:
            update.closes = last or update.count + 1 == update.window
        output = self._forward(batch)
        self.stage = "backward"
        if type(output) is TrainOutput:
            gradients, output = output.grads, output.item
            update.adopt(gradients, output, batch)
        else:
            update.backward(loss_of(output), output, batch)
        look = self.look
        if look is not None:
            look.after_backward(batch, output)
        self.stage = "update"
        update.finish(last)
        if look is not None:
            look.after_step()
        return output

    def in_step(self, batch: Any, last: bool) -> None:
        """Take a step for which this rank has no sample, in time with the other ranks. It counts for
        nothing."""
        __tracebackhide__ = True
        update = self.update
        self.stage = "forward"
        update.begin()
        update.closes = last or update.count + 1 == update.window
        output = self._forward(batch)
        self.stage = "backward"
        if type(output) is TrainOutput:
            update.adopt(output.grads, output.item, batch)
        else:
            update.backward(loss_of(output), output, batch, counts=False)
        self.stage = "update"
        update.finish(last)

    def without_samples(self, last: bool) -> None:
        """Take a step for which this rank has no sample: its part of the sum is zero."""
        update = self.update
        update.begin()
        update.skip()
        self.stage = "update"
        update.finish(last)

    def without_update(self, batch: Any, last: bool, between: Callable[[], None] | None = None) -> Any:
        """Run the step up to its update, and keep the graph, for an observer. The gradients are those that
        the optimizer would get, but not clipped.

        Args:
            batch: the batch as the loader gave it.
            last: whether it is the last one of its epoch.
            between: called between forward and backward.
        """
        update = self.update
        update.begin()
        update.closes = False
        update.keeps_graph = True
        try:
            output = self._forward(batch)
            if between is not None:
                between()
            if type(output) is TrainOutput:
                gradients, output = output.grads, output.item
                update.adopt(gradients, output, batch)
            else:
                update.backward(loss_of(output), output, batch)
        finally:
            update.keeps_graph = False
        update.as_before_clipping(last)
        return output


class ValidationStep(_Runner):
    """Forward without gradients."""

    stage = "forward"

    def __call__(self, batch: Any, last: bool) -> Any:
        __tracebackhide__ = True
        with torch.no_grad():
            return self._forward(batch)
