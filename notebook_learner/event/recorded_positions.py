"""Finds earlier positions of the run from what it recorded."""

from __future__ import annotations

from ..errors import StateError
from . import Record, steps_before
from .position import Position


def steps_back(record: Record, n: int) -> Position:
    """The position n steps ago, in training or validation."""
    walk = list(steps_before(record, n))
    if not walk:
        raise StateError(f"rewind({n}): no step was taken yet, so there is none to take back")
    part, step = walk[-1]
    return Position(part.epoch, part.split, step)


def after_training_step(record: Record, iteration: int) -> Position:
    """The position after this many training steps; at an epoch's end, the start of the next epoch."""
    left = iteration
    passes = [part for part in record if part.split == "train"]
    for part in passes:
        if 0 <= left < part.steps:
            return Position(part.epoch, "train", left)
        left -= part.steps
    if left == 0 and passes:
        return Position(passes[-1].epoch, "train", passes[-1].steps)
    taken = sum(part.steps for part in passes)
    raise ValueError(f"rewind(to={iteration}): the run has taken {taken} training steps")
