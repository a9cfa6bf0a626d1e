"""What an exception in a step leaves behind, and what the user reads about it."""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from inspect import CO_OPTIMIZED
from itertools import chain, islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler

from ..data.cursor import Cursor
from ..data.rank_share import rows_of
from ..errors import NotebookLearnerError, StepError
from ..event.position import Position
from ..metric import MetricGroup
from ..state.state import State, tensors_in
from ..step.optimizers import named_of
from ..step.step import supervised
from .loop import Loop

_HEAD, _MEMORY = "What the step was given", "Out of memory"
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
    frames = list(_frames_outwards(error))
    note = _of_schedule(error, frames)
    if not note and stage not in _NOT_THE_BATCH and _is_torchs(error, frames):
        note = f"{_HEAD}: {_given(frames, batch)}.{_spaced(_of_samples(batch) or _advice(error, frames))}"
    if note:
        _replace_note(error, note, _HEAD)


def _frames_outwards(error: BaseException) -> Iterator[FrameType]:
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
    if given.ndim == 0:
        return f"{here}: one number without a dimension; give it a row, x.reshape(1, -1)"
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


_DRAWN = "random generators and running statistics (BatchNorm) may have moved"
_MOVED = {
    "loader": "the loader may have drawn random numbers; nothing else has moved",
    "forward": f"{_DRAWN}; parameters and the optimizer have not",
    "backward": f"{_DRAWN}; parameters and the optimizer have not; the window's gradients were dropped",
    "update": f"{_DRAWN}, and the optimizer step may be half applied: go back to a checkpoint",
    "metrics": f"{_DRAWN}, and the optimizer step was applied: going on takes this batch again",
    "reading": "nothing has moved; the values of the last steps may be missing",
    "end": "what the end of a split moves (the scheduler, for one) may have moved, and moves again",
}

# Where an exception passed through: the innermost match says what failed.
_PLACES = {
    Cursor.fetch.__code__: "loader",
    MetricGroup.collect.__code__: "metrics",
    MetricGroup.read.__code__: "reading",
    Loop._close_split.__code__: "end",
    Loop._steps.__code__: "step",
}

_STANDS = {
    "loader": "The learner stands at {where}, before the batch that could not be loaded.",
    "step": "The learner stands before this step, at {where}; it was not counted.",
    "metrics": "The learner stands before this step, at {where}; it was not counted.",
}
_HAS_BATCH = ("step", "metrics")


def stage_of(error: BaseException, stage: str) -> str:
    """How far the loop came: the stage of its step, or the place outside of the step where it failed.

    Args:
        error: the exception, with its traceback.
        stage: what the step object says; valid only if the exception came from there.
    """
    place = _place(error)
    return stage if place in (None, "step") else str(place)


def what_moved(stage: str, goes_back: bool) -> str:
    """What cannot be undone without a keyframe, depending on how far the step came."""
    why = (
        "no keyframe fits the memory budget"
        if goes_back
        else "the loader can be walked only once, so the steps before cannot be taken again"
    )
    return f"not taken back, because {why}: {_MOVED[stage]}"


def explain(error: BaseException, where: Position, more: str) -> None:
    """Add to the exception where the learner stands now; Python prints notes below the traceback."""
    place = _place(error)
    note = _STANDS.get(place or "", "The learner stands at {where}.").format(where=where)
    if more:
        note += f" ({more})"
    note += _how_to_go_on(error)
    if place in _HAS_BATCH and not isinstance(error, KeyboardInterrupt):
        note += " learner.batch is the batch at hand."
    _replace_note(error, note)


def explain_keyframe(error: BaseException, keyframe: Position, why: str) -> None:
    """Add to the exception that the learner stands at an earlier keyframe, and why not before the step."""
    note = f"The learner stands at {keyframe}, the last keyframe before this step: {why}."
    _replace_note(error, note + _how_to_go_on(error))


def _how_to_go_on(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return " fit() goes on from there."
    return " Fix the cause and call fit() to go on."


def release_device_memory(error: BaseException, device: torch.device) -> None:
    """Clear the traceback's frames that hold tensors of an accelerator, and free the memory.

    IPython keeps the last traceback. It would otherwise hold the failed step's activations. Frames on the CPU
    stay unchanged, for `%debug`.
    """
    if device.type == "cpu":
        return
    for frame in _frames(error):
        seen = frame.f_locals
        if any(_on(value, device) for value in seen.values()):
            with suppress(RuntimeError):  # a frame that still runs, which is the loop's own
                frame.clear()
            if type(seen) is dict and frame.f_code.co_flags & CO_OPTIMIZED:
                # Before Python 3.13 the frame keeps this copy of a function's variables, and with it the
                # tensors. For a notebook cell it is the notebook's own variables.
                seen.clear()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def let_go(error: BaseException, loop: Loop, keyframes: Iterable[State], then: str) -> None:
    """Give the memory of a failed step back. If there was too little, first add to the error how much was
    asked, what holds it, and the line after which the user may go on with `then`."""
    device = loop.current.step.device
    if told := out_of_memory(error, device):
        told = f"{told} What holds it on {device}:"
        rows = (f"  {name:20}{size / (1 << 20):12,.2f} MiB" for name, size in _held(device, loop, keyframes))
        _replace_note(error, "\n".join([told, *rows, less_memory(loop, loop.batch, then)]), _MEMORY)
    release_device_memory(error, device)


def out_of_memory(error: BaseException, device: torch.device) -> str:
    """How much a device could not give; "" if the error is another one."""
    if not isinstance(error, torch.OutOfMemoryError) or device.type == "cpu":
        return ""
    asked = re.search(r"[Tt]ried to allocate ([\d.]+ ?\w+)", str(error))
    return f"{_MEMORY}: {asked[1] if asked else 'more'} was asked for."


def _held(device: torch.device, loop: Loop, keyframes: Iterable[State]) -> Iterator[tuple[str, int]]:
    """The bytes on a device by kind; what several tensors share counts once."""
    from ..inspection.memory import Storages, tensors_of_optimizer  # with what draws reports

    update, storages = loop.update, Storages()
    models = [each for each in (update.model, update.average) if each is not None]
    kinds: dict[str, Iterable[Any]] = {
        "weights": [tensor for each in models for tensor in (*each.parameters(), *each.buffers())],
        "gradients": [parameter.grad for parameter in update.parameters],
        "optimizer": chain(*map(tensors_of_optimizer, named_of(update.optimizer).values())),
        "keyframes": tensors_in([state.parts for state in keyframes]),
    }
    for name, tensors in kinds.items():
        yield name, storages.of(each for each in tensors if each is not None and each.device == device)
    if device.type == "cuda":
        yield "activations, other", max(0, torch.cuda.memory_allocated(device) - storages.total)


def less_memory(loop: Loop, batch: Any, then: str) -> str:
    """The line after which a training step on this batch takes less memory; `then` is what follows."""
    update, parts = loop.update, 2 * loop.update.split
    with suppress(StepError):
        if not update.drives and update.together is None and rows_of(batch, parts) > update.split:
            return (
                f"Write learner.split_batch({parts}), and {then}: each batch in {parts} parts, with "
                "gradients accumulated to the same mean"
            )
    return "Give a smaller batch size, with grads_accumulation(n) in the builder, or a smaller model"


def _place(error: BaseException) -> str | None:
    """The innermost of the known places that the exception passed through."""
    place = None
    trace = error.__traceback__
    while trace is not None:
        place = _PLACES.get(trace.tb_frame.f_code, place)
        trace = trace.tb_next
    return place


def _replace_note(error: BaseException, note: str, head: str = "The learner stands") -> None:
    """Replace our earlier note with this head; the exception object may be raised again and again."""
    notes = getattr(error, "__notes__", ())
    others = [each for each in notes if each != note and not str(each).startswith(head)]
    # Python 3.10 shows no notes, but code that formats the exception can.
    setattr(error, "__notes__", [*others, note])  # noqa: B010  (3.10 has no such attribute to check)


def _frames(error: BaseException | None) -> Iterator[types.FrameType]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace = error.__traceback__
        while trace is not None:
            yield trace.tb_frame
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


_DEPTH, _WIDTH = 3, 16
_FIELDS = ("loss", "output", "targets", "logits", "item")


def _on(value: Any, device: torch.device, depth: int = _DEPTH) -> bool:
    """Whether a local variable holds a tensor of the device, searched as deep as batches and outputs go."""
    if isinstance(value, Tensor):
        return value.device.type == device.type
    if not depth:
        return False
    return any(_on(each, device, depth - 1) for each in _inside(value))


def _inside(value: Any) -> Iterator[Any]:
    """The tensors that a batch or a step's output may hold, without walking whole modules."""
    if isinstance(value, (list, tuple)):
        yield from value[:_WIDTH]
    elif isinstance(value, Mapping):
        yield from islice(value.values(), _WIDTH)
    else:
        for name in _FIELDS:
            with suppress(Exception):  # a property of the user's object may raise anything
                yield getattr(value, name, None)
