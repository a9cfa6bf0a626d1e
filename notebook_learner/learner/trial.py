"""A step that is taken back at once: what it did is looked at, and nothing has happened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import StateError
from .excursion import excursion
from .position import Position
from .replica import Replica
from .step.step import StepFunction
from .until import Trained


@dataclass(frozen=True)
class Trial:
    """Which step was tried, and what it returned."""

    position: Position
    output: Any


def try_step(replica: Replica, function: StepFunction | None) -> Trial:
    """Take the next training step, with another function if one is given, and take it back.

    It costs a step and a copy of the state; where the learner stands in a validation, or before one, the rest
    of that as well.
    """
    __tracebackhide__ = True
    loop = replica.loop
    with excursion(replica, what="a dry step") as trip, _trained_with(replica, function):
        next_one = loop.iteration + 1
        trip.walk(Trained(next_one))
        if loop.iteration < next_one:
            raise StateError("the last training step has been taken, so there is none to try")
        return Trial(loop.position, loop.output)


@contextmanager
def _trained_with(replica: Replica, function: StepFunction | None) -> Iterator[None]:
    step = replica.loop.passes["train"].step
    own, replica.loop.quiet = step.function, True  # a name that is logged makes no metric
    if function is not None:
        step.function = partial(function, replica.loop.update.model)
    try:
        yield
    finally:
        step.function, replica.loop.quiet = own, False
