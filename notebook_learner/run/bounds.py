"""Bounds: how far a run goes. This is the only difference between fit, step, replay and run_until."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any, Protocol

from ..errors import ConfigurationError, StepError, a_kind, wrong_arguments
from ..event.position import Position

FAR = 1 << 40


class Until(Protocol):
    """A bound that the loop asks at every boundary."""

    def allowance(self, position: Position) -> int:
        """How many steps may be taken before the next call; 0 means: stop here."""

    def took(self, steps: int) -> None:
        """Count the steps that were taken."""


class End:
    """No bound: train until the last epoch is over."""

    def allowance(self, position: Position) -> int:
        return FAR

    def took(self, steps: int) -> None:
        pass


def counted(verb: str, n: Any, instead: str, what: str = "") -> int:
    """Check a number of steps that the user gave, or of epochs by an argument of that name: a whole number
    from 1, also of NumPy.

    >>> counted("step", 3, "rewind(n) goes back")
    3
    """
    try:
        count = 0 if isinstance(n, bool) else index(n)
    except TypeError:
        count = 0
    if count < 1:
        if what:
            raise ValueError(f"{verb}({what}={n!r}): {instead}; give a whole number, from 1")
        raise ValueError(f"{verb}({n!r}): give a whole number of steps, from 1; {instead}")
    return count


class Steps:
    """A number of steps, in training and validation.

    >>> bound = Steps(3)
    >>> bound.took(2)
    >>> bound.allowance(Position())
    1
    """

    def __init__(self, count: int) -> None:
        self.left = count

    def allowance(self, position: Position) -> int:
        return self.left

    def took(self, steps: int) -> None:
        self.left -= steps


class Trained(End):
    """A number of training steps of the whole run; validation steps do not count.

    >>> Trained(10).allowance(Position(1, "train", 4, iteration=4))
    6
    """

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def allowance(self, position: Position) -> int:
        left = max(0, self.iteration - position.iteration)
        return left if position.split == "train" or not left else FAR


class At(End):
    """A position: stop there, or at the first boundary after it.

    >>> At(Position(2, "train", 5)).allowance(Position(2, "train", 3))
    2
    """

    def __init__(self, target: Position) -> None:
        self.target = target

    def allowance(self, position: Position) -> int:
        if position >= self.target:
            return 0
        if (position.epoch, position.split) == (self.target.epoch, self.target.split):
            return self.target.step - position.step
        return FAR


class Sooner(At):
    """A position, or another bound that comes before it.

    >>> Sooner(Steps(2), Position(2, "train", 5)).allowance(Position(2, "train", 1))
    2
    """

    def __init__(self, other: Until, target: Position) -> None:
        super().__init__(target)
        self._other = other

    def allowance(self, position: Position) -> int:
        here = super().allowance(position)
        return min(here, self._other.allowance(position)) if here else 0  # a condition is asked once a step

    def took(self, steps: int) -> None:
        self._other.took(steps)


class EpochDone(At):
    """The end of the epoch that the run stands in."""

    def __init__(self, position: Position) -> None:
        super().__init__(Position(position.epoch + 1, "train", 0))


class WhenTrue(End):
    """A condition, checked after every step, so each block has only one step."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self.condition = condition
        self._moved = False

    def allowance(self, position: Position) -> int:
        return 0 if self._moved and self.condition() else 1

    def took(self, steps: int) -> None:
        self._moved = True


def as_condition(condition: Callable[[Any], Any]) -> Callable[[Any], bool]:
    """The condition that `run_until` asks, from the user's function of the learner.

    >>> as_condition(lambda learner: 1)("a learner")
    True
    """
    if why := wrong_arguments(condition, "the learner"):
        raise ConfigurationError(
            [f"the condition: {why}; write lambda learner: learner.output.loss < 0.1"],
            "run_until() cannot go by this",
        )

    def asked(learner: Any) -> bool:
        answer = condition(learner)
        try:
            return bool(answer)
        except (RuntimeError, ValueError) as refused:  # an array of several values
            raise StepError(
                f"the condition of run_until() gave {a_kind(answer)} that is neither true nor false "
                f"({refused}); make one of it, with .any() or .all()"
            ) from refused

    return asked


def as_position(target: Any) -> Position:
    """A position as users write it: a Position, an (epoch, step) in training, or an (epoch, split, step).

    >>> print(as_position((3, 117)))
    epoch 3, train, step 117
    >>> print(as_position((3, "valid", 0)))
    epoch 3, valid, step 0
    """
    if isinstance(target, Position):
        return target
    if isinstance(target, tuple) and len(target) == 2:
        target = (target[0], "train", target[1])
    if not _is_place(target):
        raise ValueError(
            f"{target!r:.100} is not a position; give (epoch, step), counted from epoch 1 and step 0, or "
            "(epoch, 'train' or 'valid', step)"
        )
    return Position(*target)


def _is_place(target: Any) -> bool:
    if not isinstance(target, tuple) or len(target) != 3:
        return False
    epoch, split, step = target
    numbers = all(isinstance(n, int) and not isinstance(n, bool) for n in (epoch, step))
    return numbers and epoch >= 1 and step >= 0 and split in ("train", "valid")
