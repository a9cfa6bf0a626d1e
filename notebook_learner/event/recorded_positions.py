"""Where the run stood, by what it has recorded since."""

from __future__ import annotations

from ..errors import StateError
from . import Record, steps_before
from .position import Position


def steps_back(record: Record, n: int) -> Position:
    """Where it stood n steps ago, of whichever split."""
    walk = list(steps_before(record, n))
    if not walk:
        raise StateError(f"rewind({n}): no step was taken yet, so there is none to take back")
    part, step = walk[-1]
    return Position(part.epoch, part.split, step)


def after_training_step(record: Record, iteration: int) -> Position:
    """Where it stood when it had taken so many training steps; at an epoch's end, that of the next one."""
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
