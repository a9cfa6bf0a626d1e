"""One batch through the model: device, precision, gradients on or off, and the user's own function.

This is the hot path of training. An option that is not used costs one `is None`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol, runtime_checkable
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.batch import is_record, rebuilt
from ..data.rank_share import is_column, parts_of
from ..data.to_device import ToDevice
from ..errors import StepError
from .optimizer_calls import may_step
from .output import ClassificationOutput, RegressionOutput, TrainOutput, as_item, loss_of, weight_of
from .own_loss import with_named_targets
from .update import Update


@dataclass(slots=True)
class SupervisedOutput:
    """What metrics read if a model has several outputs, or a target several parts."""

    loss: Tensor
    output: Any
    targets: Any


def supervised(
    model: nn.Module, loss: Callable[..., Any], kind: Callable[..., Any] | None, batch: Any
) -> Any:
    """Return `loss(model(x), y)`, wrapped into an output that metrics can read. A dict is taken by its
    keys."""
    if isinstance(batch, Mapping):
        value, output, y = with_named_targets(model, loss, batch)
        return (kind or kind_of(output, y))(value, output, y)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise StepError(_why_no_pair(batch))
    x, y = batch
    output = model(x)
    chosen = kind or kind_of(output, y)
    if chosen is RegressionOutput and getattr(output, "shape", 0) != getattr(y, "shape", 0):
        _tell_of_broadcasting(model, loss, output, y)
    value = loss(output, y)
    return chosen(value, output, y)


def kind_of(output: Any, y: Any) -> Callable[..., Any]:
    """Choose the output class: class numbers have one dimension less than their scores; else values are
    compared."""
    if not isinstance(output, Tensor) or not isinstance(y, Tensor):
        return SupervisedOutput
    classes = not y.is_floating_point() and output.ndim == y.ndim + 1
    return ClassificationOutput if classes else RegressionOutput


_PAIRED = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
_PAIRED_LAYERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
"""Losses of pairs of numbers. If the shapes differ, they compare every number with every other."""
_TOLD: WeakSet[nn.Module] = WeakSet()
"""The models whose user has seen the warning. It comes once, not at each step or for a short last batch."""


def _tell_of_broadcasting(model: nn.Module, loss: Callable[..., Any], output: Any, y: Any) -> None:
    if loss not in _PAIRED and not isinstance(loss, _PAIRED_LAYERS):
        return
    if model in _TOLD or not _broadcast(output, y):
        return
    _TOLD.add(model)
    warnings.warn(_why_broadcast(loss, output.shape, y.shape), UserWarning, stacklevel=2)
    # torch warns about the line below, too, but does not say what to write.
    warnings.filterwarnings("ignore", "Using a target size", UserWarning, f"{__name__}$".replace(".", r"\."))


def _broadcast(output: Any, y: Any) -> bool:
    if not isinstance(output, Tensor) or not isinstance(y, Tensor):
        return False
    try:
        torch.broadcast_shapes(output.shape, y.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch refuses, and the message says what it was given
        return False
    return True


def _why_broadcast(loss: Callable[..., Any], output: torch.Size, y: torch.Size) -> str:
    layer = isinstance(loss, nn.Module)
    pairs = torch.broadcast_shapes(output, y).numel()  # type: ignore[no-untyped-call]
    name = type(loss).__name__ if layer else getattr(loss, "__name__", "the loss")
    said = (
        f"{name} was given an output of shape {tuple(output)} and targets of shape {tuple(y)}, and compares "
        f"every output with every target: {pairs:,} pairs. "
    )
    if output == (*y, 1):
        call = f"nn.{name}()" if layer else f"F.{name}"
        return said + (
            "Give the targets that dimension, TensorDataset(x, y.unsqueeze(-1)), or take it from the output: "
            f".loss(lambda output, y: {call}(output.squeeze(-1), y))"
        )
    if y == (*output, 1):
        return said + "Take the last dimension from the targets: TensorDataset(x, y.squeeze(-1))"
    return said + "Give both the same shape, with view(...) or unsqueeze(...)"


def _why_no_pair(batch: Any) -> str:
    kind = type(batch).__name__
    size = f" with {len(batch)} parts" if isinstance(batch, (tuple, list)) else ""
    if isinstance(batch, Tensor):
        return (
            f"loss(fn) is for (x, y) batches, but this batch is one tensor of shape {tuple(batch.shape)}; "
            "if the data are two tensors, give fit(DataLoader(TensorDataset(x, y), batch_size=32)); else "
            "say how to train on it with train_step(fn) and fn(model, batch)"
        )
    return (
        f"loss(fn) is for (x, y) batches, but this batch is of type {kind}{size}; say how to train on it "
        "with train_step(fn) and fn(model, batch), or with a train_step(self, batch) on the model"
    )


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

    def before_step(self, batch: Any) -> None:
        """Called before the step: it may write to the weights itself."""

    def after_backward(self, batch: Any, output: Any) -> None:
        """Called when the gradients of this batch are complete."""

    def after_step(self) -> None:
        """Called when the step is done."""


class Pieces:
    """One batch in parts. Iterate over them, and give each one's output to `took`."""

    def __init__(self, batch: Any, count: int) -> None:
        self._parts = parts_of(batch, count)
        self._rows: list[int] = []
        self._outputs: list[Any] = []
        self._weights: list[Any] = []
        self._logged: dict[str, tuple[Any, int]] = {}

    def __iter__(self) -> Iterator[Any]:
        for part, rows in self._parts:
            self._rows.append(rows)
            yield part

    @property
    def begins(self) -> bool:
        """Whether the part of now is the first one."""
        return len(self._rows) == 1

    def took(self, output: Any, part: Any) -> None:
        """Keep what a part gave. Its graph holds no memory after its backward pass."""
        self._outputs.append(output)
        self._weights.append(weight_of(output, part))

    def logged(self, name: str, value: Any) -> Any:
        """The mean over the samples so far of what the parts logged by a name."""
        if not isinstance(value, (int, float)) and not (isinstance(value, Tensor) and value.numel() == 1):
            return value  # a metric object has its own sums; other values are refused where they are logged
        value = value.detach() if isinstance(value, Tensor) else value
        total, rows = self._logged.get(name, (0.0, 0))
        total, rows = total + value * self._rows[-1], rows + self._rows[-1]
        self._logged[name] = total, rows
        return total / max(1, rows)

    def joined(self) -> Any:
        """What the whole batch gave: rows below each other, and the mean of numbers, weighted as losses are.
        What is neither is None."""
        with torch.no_grad():
            return self._outputs[0] if self.begins else self._join(self._outputs)

    def _join(self, values: Sequence[Any], name: str = "the output") -> Any:
        first = values[0]
        if name == "weight":  # those of the parts add up
            return sum(values[1:], first)
        if any(type(each) is not type(first) for each in values):
            return None
        if isinstance(first, Tensor):
            return self._tensors(values)
        if isinstance(first, float):
            return self._mean(values)
        if isinstance(first, (list, tuple)) and all(map(is_column, values, self._rows)):
            return type(first)(each for value in values for each in value)
        whole, contains = name == "the output", isinstance(first, (Mapping, list, tuple)) or is_record(first)
        if contains or (whole and hasattr(first, "__dict__")):
            inner = iter([self._join(each, name) for name, each in _inside(values)])
            if contains:
                return rebuilt(first, lambda _: next(inner))
            other = copy.copy(first)
            vars(other).update(zip(vars(first), inner, strict=True))
            return other
        return first if isinstance(first, (str, int)) and all(each == first for each in values) else None

    def _tensors(self, values: Sequence[Tensor]) -> Any:
        first = values[0]
        if not first.ndim:
            return self._mean(values) if first.is_floating_point() else None
        times = len(first) // self._rows[0]  # tokens of a sample may be rows
        fits = [
            each.ndim and len(each) == times * rows for each, rows in zip(values, self._rows, strict=True)
        ]
        return torch.cat([*values]) if all(fits) and len({each.shape[1:] for each in values}) == 1 else None

    def _mean(self, values: Sequence[Any]) -> Any:
        total = sum(value * weight for value, weight in zip(values, self._weights, strict=True))
        return total / sum(self._weights)


def _inside(values: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """The name of each thing that containers of one kind hold, and what it is in each of them."""
    first = values[0]
    if isinstance(first, Mapping):
        return [(key, [each.get(key) for each in values]) for key in first]
    if isinstance(first, (list, tuple)):
        return [("", [*each]) for each in zip_longest(*values)][: len(first)]
    names = [each.name for each in fields(first)] if is_record(first) else vars(first)
    return [(name, [getattr(each, name, None) for each in values]) for name in names]


class _Runner:
    """The common part of both kinds of step: the batch's way to the device, and the precision."""

    def __init__(self, function: Callable[[Any], Any], way: ToDevice, precision: torch.dtype | None) -> None:
        self.function = function
        self.way, self.device = way, way.device
        # One autocast object is entered again and again: a new one costs 5 us.
        self.autocast = None if precision is None else torch.autocast(self.device.type, precision)
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
        if self.way.finds_there(batch):
            self.moves = False
            return batch
        return self.way(batch)


class TrainingStep(_Runner):
    """Forward, backward, and the optimizer when its window is full."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        way: ToDevice,
        precision: torch.dtype | None,
        update: Update,
    ) -> None:
        super().__init__(function, way, precision)
        self.update = update
        self._driving: list[Any] = []
        """The functions that were seen to call `optimizer.step()` themselves."""
        self._known: Any = None
        """The function of which it is known who runs backward and the optimizer: this, or the function."""
        self.look: StepObserver | None = None
        self.stage = "forward"
        """How far a step came, for the error message if it cannot be undone."""

    def __call__(self, batch: Any, last: bool) -> Any:
        __tracebackhide__ = True
        update = self.update
        self.stage = "forward"
        known = self.function is self._known or self._is_known_to_drive()
        update.begin()
        left = None if known else update.before()
        if update.together is not None:
            update.closes = last or update.count + 1 == update.window
            update.attend(batch, known)
        look = None if update.idle else self.look
        if look is not None:
            look.before_step(batch)
        if update.split > 1 and self._divides():
            output = self._in_parts(batch, left)
        else:
            output = self._forward(batch)
            if left is not None or update.stepped:
                self._find_who_steps(output, left)
            if update.drives:
                return self._driven(batch, output)
            if update.together is not None and update.together.driven is not None:
                update.together.driven.rest(own=True)
            output = self._backward(output, batch)
        if look is not None:
            look.after_backward(batch, output)
        self.stage = "update"
        if update.stepped:  # by hooks of the backward pass
            update.follow()
        else:
            update.finish(last)
        if look is not None:
            look.after_step()
        return output

    def _backward(self, output: Any, batch: Any) -> Any:
        """Differentiate the loss, or take the gradients that the step made; return what metrics read."""
        __tracebackhide__ = True
        self.stage = "backward"
        if type(output) is TrainOutput:
            self.update.adopt(output.grads, output.item, batch)
            return output.item
        self.update.backward(loss_of(output), output, batch)
        return output

    def _divides(self) -> bool:
        """Whether the batch is taken in parts: on several devices it is not."""
        update = self.update
        if update.together is None:
            return True
        self.notice = f"split_batch({update.split}) is for one device; several take parts of whole batches"
        update.divide(1)
        return False

    def _in_parts(self, batch: Any, left: Any) -> Any:
        """Forward and backward for each part of the batch, as for the batches of a window."""
        __tracebackhide__ = True
        update, before = self.update, self.update.count
        pieces = update.pieces = Pieces(batch, update.split)
        try:
            for part in pieces:
                self.stage = "forward"
                if update.drives and left is None:
                    update.require_free()
                output = self._forward(part)
                if left is not None or update.stepped:
                    self._find_who_steps(output, left)
                    left = None
                if update.drives:
                    update.require_free()
                pieces.took(self._backward(output, part), part)
                output = None  # the next part needs the memory of this one's graph
        finally:
            update.pieces = None
        update.count = before + 1  # the parts are one batch of the window
        return pieces.joined()

    def _is_known_to_drive(self) -> bool:
        """Whether this function, which has come anew, was seen to drive a step before."""
        known = any(_written(self.function) is each for each in self._driving)
        if known:
            self._known, self.update.drives = self.function, True
        return known

    def _find_who_steps(self, output: Any, left: Any) -> None:
        """Decide whether the function drives the step, or the loop does. It drives if it has stepped an
        optimizer; or has run backward and moved the weights by hand; or if it may step an optimizer later,
        and has run backward, or has returned no loss to run it on.

        Args:
            output: what the function returned.
            left: what was there before it ran; None if it is known already.
        """
        update, function = self.update, _written(self.function)
        ran = left is not None and type(output) is not TrainOutput and update.ran_backward(left)
        trains = _is_trainable(output)
        if update.stepped or (ran and not trains and update.has_moved(left)):
            update.take_over()
            self._known = self.function
            if all(function is not each for each in self._driving):
                self._driving = [*self._driving[-3:], function]
            return
        if type(output) is not TrainOutput and (ran or not trains) and _may_step(function):
            update.take_over()  # and ask again at the next step
            return
        self._known = self.function
        if update.drives:  # another function did
            update.drives = False
            update.clear()

    def _driven(self, batch: Any, output: Any) -> Any:
        """What is left to do if the user's step calls `optimizer.step()` itself."""
        __tracebackhide__ = True
        update, look = self.update, None if self.update.idle else self.look
        update.entered = False
        self.stage = "update"
        if type(output) is TrainOutput:
            output = output.item
        if look is not None:
            look.after_backward(batch, output)
            if not update.stepped and update.look is not None:
                update.look()
        update.follow()
        if look is not None:
            look.after_step()
        return output

    def in_step(self, batch: Any, last: bool) -> None:
        """Take a step for which this rank has no sample, in time with the other ranks. It counts for
        nothing."""
        __tracebackhide__ = True
        self.update.idle = True
        try:
            self(batch, last)
        finally:
            self.update.idle = False

    @property
    def is_the_loops(self) -> bool:
        """Whether it is known that the loop runs backward and the optimizer, and not the function."""
        return self.function is self._known and not self.update.drives

    def without_samples(self, last: bool) -> None:
        """Take a step for which this rank has no sample: its part of the sum is zero."""
        update = self.update
        update.begin()
        update.skip()
        self.stage = "update"
        update.finish(last)

    def without_update(self, batch: Any, last: bool, between: Callable[[], None] | None = None) -> Any:
        """Run the step up to its update, and keep the graph, for an observer. The gradients are those that
        the optimizer would get, but not clipped. A step that drives itself runs to its end: the caller puts
        back what it writes.

        Args:
            batch: the batch as the loader gave it.
            last: whether it is the last one of its epoch.
            between: called between forward and backward.
        """
        update = self.update
        known = self.function is self._known or self._is_known_to_drive()
        update.begin()
        update.closes = False
        update.keeps_graph = update.alone = True
        left = None if known else update.before()
        try:
            output = self._forward(batch)
            if between is not None:
                between()
            update.entered = False
            if left is not None or update.stepped:
                self._find_who_steps(output, left)
            if update.drives:
                return output.item if type(output) is TrainOutput else output
            output = self._backward(output, batch)
        finally:
            update.keeps_graph = update.alone = False
        update.as_before_clipping(last)
        return output


def _written(function: Any) -> Any:
    """What the user wrote: the function without its model; of a cell, its body."""
    while isinstance(function, partial):
        function = function.func
    written = getattr(function, "written", function)
    return getattr(written, "__func__", written)


def _may_step(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and may_step(code)


def _is_trainable(output: Any) -> bool:
    loss = getattr(output, "loss", None)
    return isinstance(loss, Tensor) and loss.requires_grad


class ValidationStep(_Runner):
    """Forward without gradients."""

    stage = "forward"

    def __init__(
        self,
        function: Callable[[Any], Any],
        way: ToDevice,
        precision: torch.dtype | None,
        update: Update | None = None,
    ) -> None:
        super().__init__(function, way, precision)
        self.update = update
        """Knows into how many parts a batch is divided; None where it never is."""

    def __call__(self, batch: Any, last: bool) -> Any:
        __tracebackhide__ = True
        with torch.no_grad():
            if self.update is None or self.update.split == 1:
                return self._forward(batch)
            return self._in_parts(batch, self.update)

    def _in_parts(self, batch: Any, update: Update) -> Any:
        __tracebackhide__ = True
        pieces = update.pieces = Pieces(batch, update.split)
        try:
            for part in pieces:
                pieces.took(self._forward(part), part)
        finally:
            update.pieces = None
        return pieces.joined()
