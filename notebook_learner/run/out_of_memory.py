"""What is told of an allocation that failed: how much was asked, what holds the memory, and what to write."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..data.batch_parts import rows_of
from ..errors import StepError
from ..state.state import State, tensors_in
from ..step.optimizers import named_of
from .failure import release_device_memory
from .loop import Loop

_ASKED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")
_HEAD = "Out of memory"


def let_go(error: BaseException, loop: Loop, keyframes: Iterable[State], goes_on: str) -> None:
    """Give the memory of a failed step back. If there was too little, first add to the error what holds it
    now, and the line with which the training goes on.

    Args:
        error: the error, with its traceback, whose frames are cleared where they hold the device's tensors.
        loop: as it was when the error came.
        keyframes: the states that are kept.
        goes_on: what the user does after that line.
    """
    device = loop.current.step.device
    if isinstance(error, torch.OutOfMemoryError) and device.type != "cpu":
        others = [each for each in getattr(error, "__notes__", ()) if not str(each).startswith(_HEAD)]
        note = f"{_HEAD}{_asked(error)}{_table(loop, keyframes, device)}{_advice(loop, goes_on)}"
        # Python 3.10 shows no notes, but code that formats the exception can.
        setattr(error, "__notes__", [*others, note])  # noqa: B010  (3.10 has no such attribute to check)
    release_device_memory(error, device)


def _asked(error: BaseException) -> str:
    found = _ASKED.search(str(error))
    return f": {found[1]} more were asked for. " if found else ". "


def _table(loop: Loop, keyframes: Iterable[State], device: torch.device) -> str:
    held = held_on(device, loop, keyframes)
    rows = "".join(f"\n  {name:20} {said(size):>12}" for name, size in held.items())
    return f"What holds the memory of {device}:{rows}\n"


def held_on(device: torch.device, loop: Loop, keyframes: Iterable[State]) -> dict[str, int]:
    """The bytes on a device by kind; what several tensors share counts once."""
    from ..inspection.memory import Storages, tensors_of_optimizer  # with what draws reports

    update, storages = loop.update, Storages()

    def of(tensors: Iterable[Any]) -> int:
        return storages.of(each for each in tensors if isinstance(each, Tensor) and each.device == device)

    models = [update.model] if update.average is None else [update.model, update.average]
    found = {
        "weights": of(tensor for model in models for tensor in _state_of(model)),
        "gradients": of(parameter.grad for parameter in update.parameters),
        "optimizer": of(
            tensor for each in named_of(update.optimizer).values() for tensor in tensors_of_optimizer(each)
        ),
        "keyframes": of(tensors_in([state.parts for state in keyframes])),
    }
    if device.type == "cuda":
        rest = torch.cuda.memory_allocated(device) - storages.total
        found["activations, other"] = max(0, rest)
    return found


def _state_of(model: torch.nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def said(size: int) -> str:
    """Bytes as text.

    >>> said(3 << 19)
    '1.50 MiB'
    """
    unit = next(each for each in (30, 20, 10, 0) if size >> each or not each)
    name = {30: "GiB", 20: "MiB", 10: "KiB", 0: "bytes"}[unit]
    return f"{size / (1 << unit):.2f} {name}" if unit else f"{size} {name}"


def _advice(loop: Loop, goes_on: str) -> str:
    update = loop.update
    parts = 2 * update.split
    if update.drives:
        return (
            "The step calls optimizer.step() itself: take the batch in parts there, (loss * len(x_i) / "
            "len(x)).backward() for each, and then optimizer.step()"
        )
    if update.together is not None:
        return "Give a smaller batch size, with grads_accumulation(n) in the builder, or more devices"
    try:
        rows = rows_of(loop.batch, parts)
    except StepError:
        return "Give a smaller batch size in the loader, with grads_accumulation(n) in the builder"
    if rows <= update.split:
        return (
            "Each part of the batch is one sample already: a smaller model, precision('bf16'), or torch's "
            "checkpoint() in the model needs less"
        )
    return (
        f"Write learner.split_batch({parts}), and {goes_on}: each batch in {parts} parts, with gradients "
        "accumulated to the same mean"
    )
