"""What an exception in a step leaves behind, and what the user reads about it."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from inspect import CO_OPTIMIZED
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ..data.cursor import Cursor
from ..event.position import Position
from ..metric import MetricGroup
from .loop import Loop

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


def what_moved(stage: str, walks_again: bool) -> str:
    """What cannot be undone without a keyframe, depending on how far the step came."""
    why = (
        "no keyframe fits the memory budget"
        if walks_again
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


def _place(error: BaseException) -> str | None:
    """The innermost of the known places that the exception passed through."""
    place = None
    trace = error.__traceback__
    while trace is not None:
        place = _PLACES.get(trace.tb_frame.f_code, place)
        trace = trace.tb_next
    return place


def _replace_note(error: BaseException, note: str) -> None:
    """Replace our earlier note; the exception object may be raised again and again."""
    others = [
        each for each in getattr(error, "__notes__", ()) if not str(each).startswith("The learner stands")
    ]
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
