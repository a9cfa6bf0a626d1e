"""The position of training: a value that belongs to the state, not a loop counter."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import StateError
from . import Record, steps_before
from .values import Split

_ORDER = {"train": 0, "valid": 1}


@dataclass(frozen=True, slots=True)
class Position:
    """A boundary between two steps.

    `step` counts the finished steps of this split in this epoch, so step 0 is the split's start and
    `step == total` its end. `iteration` counts the finished training steps of the whole run.

    >>> print(Position(3, "train", 117, total=240))
    epoch 3, train, step 117 of 240
    >>> Position(3, "valid", 0) > Position(3, "train", 240)
    True
    """

    epoch: int = 1
    split: Split = "train"
    step: int = 0
    iteration: int = 0
    total: int | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """The key that orders positions."""
        return (self.epoch, _ORDER[self.split], self.step)

    def __lt__(self, other: Position) -> bool:
        return self.key < other.key

    def __le__(self, other: Position) -> bool:
        return self.key <= other.key

    def __gt__(self, other: Position) -> bool:
        return self.key > other.key

    def __ge__(self, other: Position) -> bool:
        return self.key >= other.key

    def at(self, step: int, iteration: int) -> Position:
        """The position at another step of the same split and epoch."""
        return replace(self, step=step, iteration=iteration)

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total}"
        return f"epoch {self.epoch}, {self.split}, step {self.step}{of}"


def steps_back(record: Record, n: int, of: Split | None = None) -> Position:
    """The position n steps ago: in training or validation, or of one split alone."""
    counted = record if of is None else tuple(part for part in record if part.split == of)
    walk = list(steps_before(counted, n))
    if not walk:
        kind = "validation step" if of == "valid" else "step"
        raise StateError(f"rewind({n}): no {kind} was taken yet, so there is none to take back")
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
