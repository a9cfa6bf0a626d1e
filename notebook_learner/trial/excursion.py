"""Steps that are tried and then undone. No listener receives their events, and nothing stays changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ..errors import Paused, StateError
from ..event import Event, MetricBlock
from ..event.position import Position
from ..event.values import Floats
from ..run.bounds import FAR, Until
from ..run.compared import Compared
from ..run.failure import let_go
from ..run.loop import Loop
from ..run.rank_protocol import Ranks
from ..run.replica import Replica
from ..run.unheard import heard, unheard
from ..state.state import State
from .changes import AS_IT_IS, Changes, Course, LossOfStep, changed

AfterStep = Callable[[int, float], None]


class EndOfWalk(Exception):
    """Raised by a walk's `after` when it needs no more steps."""


@dataclass
class _Tape:
    """Stands in for sinks and boundary: it receives every event and passes none on."""

    after: AfterStep | None
    compared: Compared | None = None
    blocks: list[MetricBlock] = field(default_factory=list)
    steps: int = 0

    def emit(self, event: Event) -> None:
        """Keep what a block measured, and call `after` if there is one."""
        if isinstance(event, MetricBlock) and self.compared is not None:
            self.compared.take(event)
        if isinstance(event, MetricBlock) and event.split == "train":
            self.blocks.append(event)
            self.steps += event.count
            if self.after is not None:
                self.after(self.steps, float(event.columns[LossOfStep.name].values[-1]))

    def reached(self, position: Position) -> None:
        """Take no keyframe and write no checkpoint."""

    def allowance(self, position: Position) -> int:
        """No bound; but with an `after`, which may end the walk, one step at a time."""
        return FAR if self.after is None else 1

    def course(self) -> Course:
        """Return what was measured."""
        places = [(block.epoch, step) for block in self.blocks for step in range(block.first, block.last + 1)]
        names = dict.fromkeys(name for block in self.blocks for name in block.columns)
        names.pop(LossOfStep.name, None)
        values = {"loss": self._column(LossOfStep.name), **{name: self._column(name) for name in names}}
        return Course(tuple(places), values)

    def _column(self, name: str) -> Floats:
        rows: list[Floats] = [np.empty(0)]
        for block in self.blocks:
            column = block.columns.get(name)
            rows.append(np.full(block.count, np.nan) if column is None else column.values)
        return np.concatenate(rows)


class Excursion:
    """Walks that start from one place. `excursion` makes it."""

    def __init__(self, replica: Replica, start: State) -> None:
        self.start = start
        self._replica = replica

    def walk(
        self,
        until: Until,
        after: AfterStep | None = None,
        changes: Changes = AS_IT_IS,
        compared: Compared | None = None,
    ) -> Course:
        """Go on to a bound, and return what was measured on the way.

        Args:
            until: how far.
            after: called with the number (from 1) and the loss of every training step. It may raise EndOfWalk
                to end the walk.
            changes: what is different on the way.
            compared: takes what is measured on the way.
        """
        __tracebackhide__ = True
        loop, ranks = self._replica.loop, self._replica.ranks
        tape = _Tape(after, compared)
        with changed(loop, changes):
            loop.look_around()
            loop.emit, loop.boundary = tape.emit, tape
            try:
                if ranks is not None:
                    ranks.walk(changes)
                why = loop.run(until)
            except EndOfWalk:
                why = "budget"
            except BaseException as error:
                let_go(error, loop, self._replica.timeline.keyframes, "call it again")
                cause = error if ranks is None else ranks.fault(error)
                if cause is not error:
                    raise cause from error
                raise
        if why == "pause":
            raise Paused(str(self.start.position))
        return tape.course()

    def back(self) -> None:
        """Go back to the start."""
        self._replica.put_back(self.start)


@contextmanager
def excursion(replica: Replica, *, what: str, past: bool = False, first: bool = False) -> Iterator[Excursion]:
    """Inside, the run takes steps without events: the next ones, or those of the `past` of a run that may be
    finished. Afterwards everything is as it was before, bit for bit, also after an error or an interrupt. It
    costs a copy of the state, and the time to put the copy back. What the steps print is not shown, unless
    this is the `first` time that this code runs.

    Raises:
        StateError: the run cannot be moved, or cannot be brought back.
    """
    loop = replica.loop
    _require_a_way_back(loop, what, past)
    replica.settle()
    update = loop.update
    seen = loop.batch, loop.output, loop.pace.steps, loop.pace.rate
    setting = loop.emit, loop.boundary
    shown, hiding = [p.grad for p in update.parameters], update.hides
    with heard(first), unheard(), _with_others(replica.ranks), replica.rng.lent(), loop.modes.kept():
        start = replica.capture()
        loop.passing = True
        try:
            with replica.carried.moving():
                try:
                    yield Excursion(replica, start)
                finally:
                    replica.put_back(start)
        finally:
            loop.passing = False
            loop.emit, loop.boundary = setting
            loop.batch, loop.output, loop.pace.steps, loop.pace.rate = seen
            if update.count == 0 or hiding:
                update.show(shown)


@contextmanager
def _with_others(ranks: Ranks | None) -> Iterator[None]:
    """Inside, the other ranks take the same steps."""
    if ranks is None:
        yield
        return
    ranks.enter()
    try:
        yield
    finally:
        ranks.leave()


def _require_a_way_back(loop: Loop, what: str, past: bool) -> None:
    if loop.finished and not past:
        raise StateError(
            f"{what}: training is finished, so there is no step to try; fit(epochs=n) trains more"
        )
    if not all(each.cursor.goes_back for each in loop.passes.values()):
        raise StateError(
            f"{what} tries steps and takes them back, but a loader can be walked only once; give a list, a "
            "DataLoader, or an object whose __iter__ starts anew"
        )
