"""A step that is tried and undone at once: its results stay for a look, and the run is unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import StateError
from ..event.position import Position
from ..run.bounds import Trained
from ..run.replica import Replica
from ..step.step import StepFunction
from .changes import Changes, require_step
from .excursion import excursion


@dataclass(frozen=True)
class Trial:
    """Which step was tried, what it returned, and what the step of a cell left."""

    position: Position
    output: Any
    locals: Mapping[str, Any] = field(default_factory=dict)


def try_step(replica: Replica, function: StepFunction | None) -> Trial:
    """Take the next training step, with another function if one is given, and undo it.

    It costs a step and a copy of the state. If the learner is in a validation, or before one, it also costs
    the rest of that validation.
    """
    __tracebackhide__ = True
    loop = replica.loop
    if function is not None:
        require_step("try_step(function)", function)
    tried = {} if function is None else {"train_step": function}
    with excursion(replica, what="a dry step") as trip:
        next_one = loop.iteration + 1
        trip.walk(Trained(next_one), changes=Changes(tried, quiet=True))  # logged names make no metric
        if loop.iteration < next_one:
            raise StateError("the last training step has been taken, so no step is left to try")
        return Trial(loop.position, loop.output)
