"""One batch through the model: device, precision, gradients on or off, and the user's own function.

The hot path of training. What is not asked for costs one `is None`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from ..data.batch import is_on, move
from .output import TrainOutput, as_item, loss_of
from .update import Update

StepFunction = Callable[[Any, Any], Any]
"""fn(model, batch) -> output: a step that is no method of the model."""


@runtime_checkable
class TrainStep(Protocol):
    """A model that says how it learns from a batch.

    Return anything with a `.loss`, and the learner runs backward; or run it yourself and return
    `TrainOutput(self, item.loss.backward(), item)`, as in Burn.
    """

    def train_step(self, batch: Any, /) -> Any:
        """The output of one training batch."""


@runtime_checkable
class ValidStep(Protocol):
    """A model that says how it is validated; runs without gradients and in eval mode."""

    def valid_step(self, batch: Any, /) -> Any:
        """The output of one validation batch."""


class StepObserver(Protocol):
    """Somebody who looks at training steps as they are taken."""

    def after_backward(self, batch: Any, output: Any) -> None:
        """The gradients of this batch are made."""

    def after_step(self) -> None:
        """The step is done."""


class _Runner:
    """What both kinds of step share: the batch's way to the device, and the precision."""

    def __init__(
        self, function: Callable[[Any], Any], device: torch.device, precision: torch.dtype | None
    ) -> None:
        self.function = function
        self.device = device
        # One autocast object is entered again and again: making one costs 5 us.
        self.autocast = None if precision is None else torch.autocast(device.type, precision)
        self.moves = True
        """Whether batches have to be moved: asked at the first one of a run, not at each."""
        self.notes: list[tuple[str, Any]] | None = None
        """What a step logs by name while it is only recorded."""
        self.notice = ""
        """What somebody should be told of at the next boundary."""

    def look_again(self) -> None:
        """A run begins: a person may have changed anything."""
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
        """How far a step came, for the error message where it cannot be taken back."""

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
        """A step of which this rank has no sample, taken with another rank's: it counts for nothing."""
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
        """A step of which this rank has no sample: its part of the sum is nothing."""
        update = self.update
        update.begin()
        update.skip()
        self.stage = "update"
        update.finish(last)

    def without_update(self, batch: Any, last: bool, between: Callable[[], None] | None = None) -> Any:
        """The step up to its update, with the graph kept: for somebody who looks. The gradients are what
        the optimizer would get, but for clipping.

        Args:
            batch: as the loader gave it.
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
