"""Explains an error of torch to a user who sees it for the first time: the shapes and types that the step
got, and the line to write if that is certain.

All of it is read from the traceback after the failure, so it costs a step nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler

from ..errors import NotebookLearnerError
from ..step.supervised_step import supervised

_HEAD = "What the step was given"
_FUNCTIONAL = functional.__file__
_CLASS_LOSSES = ("cross_entropy", "nll_loss")
_BINARY_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
_TORCH = os.path.dirname(torch.__file__) + os.sep
_WORDS = ("shape", "size", "dtype", "dimension", "same device")
_NOT_THE_BATCH = ("loader", "reading", "end")
_SHOWN = 4
"""How many parts of a batch are described."""


def teach(error: BaseException, batch: Any, stage: str) -> None:
    """Add to an exception of a step what the step got, and what is likely to help.

    It skips our own errors, which already say so, interrupts, which are not mistakes, and exceptions that the
    user's code raises on purpose.

    Args:
        error: the exception, with its traceback.
        batch: the current one, as the loader gave it.
        stage: how far the step came; an error of the loader is about another batch.
    """
    if not isinstance(error, Exception) or isinstance(error, NotebookLearnerError):
        return
    frames = list(_frames(error))
    note = _of_schedule(error, frames)
    if not note and stage not in _NOT_THE_BATCH and _is_torchs(error, frames):
        note = f"{_HEAD}: {_given(frames, batch)}.{_spaced(_of_samples(batch) or _advice(error, frames))}"
    if not note:
        return
    others = [each for each in getattr(error, "__notes__", ()) if not str(each).startswith(_HEAD)]
    if note not in others:
        # Python 3.10 shows no notes, but code that formats the exception can.
        setattr(error, "__notes__", [*others, note])  # noqa: B010  (3.10 has no such attribute to check)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """The frames, from where the exception was raised outwards."""
    trace, found = error.__traceback__, []
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    yield from reversed(found)


def _is_torchs(error: Exception, frames: list[FrameType]) -> bool:
    """Whether torch found the error: in its own code, or called by the user's, if the message shows it."""
    within = bool(frames) and frames[0].f_code.co_filename.startswith(_TORCH)
    of_one_sample = isinstance(error, IndexError) and bool(frames) and frames[0].f_code.co_name == "weight"
    return within or of_one_sample or any(word in str(error) for word in _WORDS)


# What was given --------------------------------------------------------------------------------------


def _given(frames: list[FrameType], batch: Any) -> str:
    loss = _of_loss(frames)
    said = f"a batch of {described(batch)}"
    if loss is None:
        return said
    name, output, targets = loss
    return f"{said}; {name} an output of {described(output)} and targets of {described(targets)}"


def described(value: Any, depth: int = 2) -> str:
    """A value in a few words.

    >>> described((torch.zeros(8, 3), torch.zeros(8, dtype=torch.long)))
    '(shape (8, 3) float32, shape (8,) int64)'
    """
    if isinstance(value, Tensor):
        where = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"shape {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}{where}"
    kind = type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{kind} of shape {tuple(value.shape)} {value.dtype}"
    if depth and isinstance(value, (tuple, list)):
        more = ", ..." if len(value) > _SHOWN else ""
        return f"({', '.join(described(each, depth - 1) for each in value[:_SHOWN])}{more})"
    if depth and isinstance(value, Mapping):
        items = [f"{key!r}: {described(each, depth - 1)}" for key, each in list(value.items())[:_SHOWN]]
        return "{" + ", ".join(items) + (", ..." if len(value) > _SHOWN else "") + "}"
    return f"type {kind}"


def _of_loss(frames: list[FrameType]) -> tuple[str, Tensor, Tensor] | None:
    """The loss that failed, with its two arguments, read from torch's own frame or from that of `.loss`."""
    for frame in frames:
        here = frame.f_locals
        if frame.f_code.co_filename == _FUNCTIONAL:
            output, targets = here.get("input"), here.get("target")
            name = frame.f_code.co_name
        elif frame.f_code is supervised.__code__ and "output" in here:
            output, targets = here.get("output"), here.get("y")
            name = "the loss"
        else:
            continue
        if isinstance(output, Tensor) and isinstance(targets, Tensor):
            return name, output, targets
    return None


# What helps ------------------------------------------------------------------------------------------


def _spaced(advice: str) -> str:
    return f" {advice}" if advice else ""


def _advice(error: Exception, frames: list[FrameType]) -> str:
    """The line to write, if only one is right; the shapes and types alone prove each of these."""
    loss = _of_loss(frames)
    rules: list[Callable[[], str]] = [lambda: _of_layer(frames), lambda: _of_devices(error)]
    if loss is not None:
        rules.insert(0, lambda: _of_targets(*loss))
    return next((said for rule in rules if (said := rule())), "")


def _of_samples(batch: Any) -> str:
    """The advice for a target without any dimension, which belongs to one sample."""
    parts = batch if isinstance(batch, (tuple, list)) else ()
    if not any(isinstance(part, Tensor) and part.ndim == 0 for part in parts):
        return ""
    return (
        "The batch is a single sample, without a dimension that counts samples: load the data in batches, "
        "DataLoader(dataset, batch_size=32)"
    )


def _of_targets(name: str, output: Tensor, targets: Tensor) -> str:
    if name in _CLASS_LOSSES:
        return _of_classes(name, output, targets)
    if name not in _BINARY_LOSSES:
        return ""
    if not targets.is_floating_point():
        return f"{name} compares with numbers from 0 to 1, not with whole numbers: write y.float()"
    if output.shape == (*targets.shape, 1):
        return "The output has one dimension more than the targets: write output.squeeze(-1)"
    return ""


def _of_classes(name: str, output: Tensor, targets: Tensor) -> str:
    classes = (*output.shape[:1], *output.shape[2:])
    wanted = f"{name} wants the number of a class for each sample, whole numbers of shape {classes}"
    if tuple(targets.shape) == (*classes, 1):
        return f"{wanted}: write y.squeeze(-1)"
    if targets.shape == output.shape and not targets.is_floating_point():
        return f"{wanted}, or probabilities as floats; these look one-hot: write y.argmax(1)"
    if output.ndim > 1 and len(output) != len(targets):
        return (
            f"The output has {len(output)} samples and the targets have {len(targets)}: look for a "
            "view(...), reshape(...) or transpose in the model that mixes samples"
        )
    if tuple(targets.shape) != classes:
        return ""
    if targets.dtype not in (torch.int64, torch.uint8):
        return f"{wanted}: write y.long()"
    return _of_range(output, targets)


def _of_range(output: Tensor, targets: Tensor) -> str:
    """The advice for class numbers beyond the output. Not on an accelerator: its failed assertion makes it
    unusable."""
    if targets.device.type != "cpu" or output.ndim < 2 or not targets.numel():
        return ""
    low, high, count = int(targets.min()), int(targets.max()), output.shape[1]
    if low >= 0 and high < count:
        return ""
    return (
        f"The targets run from {low} to {high}, but an output with {count} scores per sample has the classes "
        f"0 to {count - 1}: give the last layer an output for each class, or count the classes from 0"
    )


def _of_layer(frames: list[FrameType]) -> str:
    """The advice for a layer that got an input which it cannot take."""
    for frame in frames:
        layer, given = frame.f_locals.get("self"), frame.f_locals.get("input")
        if isinstance(layer, nn.Linear) and isinstance(given, Tensor) and frame.f_code.co_name == "forward":
            return _of_linear(layer, given)
        if isinstance(layer, nn.Module) and type(given).__module__ == "numpy":
            return "A model takes tensors, not NumPy arrays: write torch.from_numpy(x)"
    return ""


def _of_linear(layer: nn.Linear, given: Tensor) -> str:
    size, dtype = layer.in_features, layer.weight.dtype
    here = f"Linear(in_features={size}, ...) was given shape {tuple(given.shape)}"
    if given.shape[-1:] != (size,):
        if given.ndim > 2 and given[0].numel() == size:
            return f"{here}, which has {size} numbers a sample: put nn.Flatten() before it"
        return f"{here}; the last number has to be {size}: write in_features={given.shape[-1]}, or change x"
    if given.dtype != dtype and not torch.is_autocast_enabled(given.device.type):
        return (
            f"The model computes in {_short(dtype)} and was given {_short(given.dtype)} (NumPy's floats are "
            f"float64): write x.to({dtype})"
        )
    return ""


def _of_devices(error: Exception) -> str:
    if "same device" not in str(error):
        return ""
    return (
        "The learner moves every batch to the model's device. Other tensors that the step or the model makes "
        "must be made there: torch.zeros(..., device=x.device), or register_buffer in the model"
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _of_schedule(error: Exception, frames: list[FrameType]) -> str:
    """The advice if OneCycleLR is stepped more often than it was set up for. Only this one counts steps."""
    owners = (frame.f_locals.get("self") for frame in frames)
    scheduler = next((owner for owner in owners if isinstance(owner, LRScheduler)), None)
    steps = getattr(scheduler, "total_steps", None)
    if steps is None or "total steps" not in str(error):
        return ""
    return (
        f"{type(scheduler).__name__} was made for {steps} optimizer steps, and training takes more: make it "
        "with total_steps = epochs * len(train_loader) (divided by grads_accumulation, rounded up each epoch)"
    )
