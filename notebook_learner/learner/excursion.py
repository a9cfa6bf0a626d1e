"""Steps that nobody hears of and that are all taken back: to try something, and have done nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import Paused, StateError
from ..event import Event, MetricBlock
from ..event.values import Floats
from ..metric.transfer import to_host
from .comparison import Course
from .loop import Loop
from .position import Position
from .replica import Replica
from .state import State
from .step.step import TrainingStep
from .until import FAR, Until

AfterStep = Callable[[int, float], None]


class EndOfWalk(Exception):
    """Raised by a walk's `after`: it has seen enough."""


@dataclass
class _Tape:
    """Stands in for sinks, boundary and look: hears everything, tells nobody."""

    loop: Loop
    after: AfterStep | None
    blocks: list[MetricBlock] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        """Take what a block measured."""
        if isinstance(event, MetricBlock) and event.split == "train":
            self.blocks.append(event)

    def reached(self, position: Position) -> None:
        """No keyframe, no checkpoint."""

    def allowance(self, position: Position) -> int:
        """No bound; but somebody who wants to end a walk is heard at every step."""
        return FAR if self.after is None else 1

    def after_backward(self, batch: Any, output: Any) -> None:
        """Note the loss."""
        self.places.append((self.loop.epoch, self.loop.done + 1))
        self.losses.append(output.loss.detach())

    def after_step(self) -> None:
        """Tell whoever wants to know; that waits for the device."""
        if self.after is not None:
            self.after(len(self.losses), float(self.losses[-1]))

    def course(self) -> Course:
        """What was measured."""
        (losses,) = to_host([self.losses])
        names = dict.fromkeys(name for block in self.blocks for name in block.columns)
        return Course(tuple(self.places), {"loss": losses, **{name: self._column(name) for name in names}})

    def _column(self, name: str) -> Floats:
        nothing = [np.full(block.count, np.nan) for block in self.blocks]
        found = [block.columns.get(name) for block in self.blocks]
        return np.concatenate(
            [rows if column is None else column.values for column, rows in zip(found, nothing, strict=True)]
        )


class Excursion:
    """Walks from one place. Made by `excursion`."""

    def __init__(self, replica: Replica, start: State) -> None:
        self.start = start
        self._replica = replica

    def walk(self, until: Until, after: AfterStep | None = None) -> Course:
        """Go on to a bound; what was measured on the way.

        Args:
            until: how far.
            after: told the number (from 1) and the loss of every training step. It may end the walk by
                raising EndOfWalk.
        """
        __tracebackhide__ = True
        loop = self._replica.loop
        loop.look_around()
        tape = _Tape(loop, after)
        step = loop.passes["train"].step
        assert isinstance(step, TrainingStep)
        loop.emit, loop.boundary, step.look = tape.emit, tape, tape
        try:
            if loop.run(until) == "pause":
                raise Paused(str(self.start.position))
        except EndOfWalk:
            pass  # in the middle of a step, which nobody will miss
        finally:
            step.look = None
        return tape.course()

    def back(self) -> None:
        """Stand where it began."""
        self._replica.put_back(self.start)

    def train_only(self) -> None:
        """From here on there is no validation, no policy and no last epoch."""
        loop = self._replica.loop
        if loop.split == "valid":
            loop.skip_validation()
        loop.passes = {"train": loop.passes["train"]}
        loop.policies, loop.num_epochs = (), FAR


@contextmanager
def excursion(replica: Replica, *, what: str) -> Iterator[Excursion]:
    """Inside, the run moves unheard; afterwards everything is as it was, to the bit: also where it failed
    or was interrupted. It costs a copy of the state, and putting it back.

    Raises:
        StateError: the run cannot be moved, or not be brought back.
    """
    loop = replica.loop
    if replica.ranks is not None:
        raise StateError(
            f"{what} cannot be done on several devices yet; build a learner with one device from "
            "learner.save()'s checkpoint, and ask that one"
        )
    _require_a_way_back(loop, what)
    replica.settle()
    update = loop.update
    seen = loop.batch, loop.output, loop.pace.steps, loop.pace.rate
    setting = loop.emit, loop.boundary, loop.passes, loop.policies, loop.num_epochs, loop.schedule
    shown, hiding = [p.grad for p in update.parameters], update.hides
    with replica.rng.lent(), loop.modes.kept():
        start = replica.capture()
        loop.passing = True
        try:
            yield Excursion(replica, start)
        finally:
            loop.passing = False
            loop.emit, loop.boundary, loop.passes, loop.policies, loop.num_epochs, loop.schedule = setting
            update.schedule = loop.schedule
            replica.put_back(start)
            loop.batch, loop.output, loop.pace.steps, loop.pace.rate = seen
            if update.count == 0 or hiding:
                update.show(shown)


def _require_a_way_back(loop: Loop, what: str) -> None:
    if loop.finished:
        raise StateError(
            f"{what}: training is finished, so there is no step to try; fit(epochs=n) trains more"
        )
    if not all(each.cursor.walks_again for each in loop.passes.values()):
        raise StateError(
            f"{what} tries steps and takes them back, but a loader can be walked only once; give a list, a "
            "DataLoader, or an object whose __iter__ starts anew"
        )
