"""Takes steps again, in silence, to go back to an earlier position.

The replay keeps keyframes on its way, so that going back a little further does not need the whole way again:
at 1, 2, 4, 8, ... steps before the end, and at most a sixteenth of the way apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import NamedTuple, Protocol

from ..event import Event, MetricBlock, Record, SetProgress, Split, SplitEnded, cut, rows
from ..event.position import Position
from ..state.checkpoint_files import Lineage
from .bounds import FAR, At
from .compared import Compared
from .loop import Loop
from .step_reports import RewindReport

PATIENCE = 0.5
"""Seconds until the user sees the first progress."""
_AGAIN = 0.1
"""Seconds between later reports of progress."""
_PARTS = 16


Edit = tuple[Position, Callable[[], None]]
"""A change that was made by hand: where, and what makes it again."""


class ByHand(Protocol):
    """What was changed by hand on a way."""

    def edits(self, start: Position, target: Position) -> Sequence[Edit]:
        """The changes between two positions, in their order."""

    def code(self, place: Position) -> AbstractContextManager[None]:
        """Inside, steps run the code that was in force at a place, and then what the edits put in. Afterwards
        the cells of now are in use again."""


class NothingByHand:
    """Nothing is known to have been changed."""

    def edits(self, start: Position, target: Position) -> Sequence[Edit]:
        """None."""
        return ()

    def code(self, place: Position) -> AbstractContextManager[None]:
        """That of now."""
        return nullcontext()


class LeftLine(NamedTuple):
    """A way that the run has come, and left: a branch with what leads to it."""

    record: Record
    way: Lineage
    parted: Position
    """Up to where it is the way that led here."""
    edited: bool
    """Whether something was changed by hand at that place, after the run had left this line."""
    by_hand: ByHand


class Replay:
    """Takes the place of sinks and boundary during a replay: it shows nothing and compares the values.

    Args:
        known: what was measured when the steps were taken for the first time.
        start: the position where the replay begins.
        target: the position where it ends.
        room: how many keyframes fit into memory.
        keep: keeps a keyframe of the present position.
        tell: shows the user the progress.
        rate: how many steps a second took before; 0 if that is not known.
    """

    def __init__(
        self,
        known: Record,
        start: Position,
        target: Position,
        room: int = 0,
        keep: Callable[[], None] = lambda: None,
        tell: Callable[[SetProgress], None] = lambda event: None,
        rate: float = 0.0,
    ) -> None:
        self.compared = Compared(known)
        self.blocks: list[MetricBlock] = []
        self.finals: dict[tuple[int, Split], Mapping[str, float]] = {}
        self.steps = 0
        self._target = target
        self._length = max(0, steps_until(known, target) - steps_until(known, start))
        self._stops = stops(self._length, room)
        self._keep = keep
        self._tell = tell
        self._told = False
        self._next = perf_counter() + (0.0 if self._length > PATIENCE * rate > 0 else PATIENCE)

    def run(self, loop: Loop, edits: Sequence[Edit]) -> None:
        """Take the steps up to the target. What was changed by hand on the way is changed again."""
        for position, repeat in edits:
            loop.run(At(position))
            if loop.position.key != position.key:
                return  # interrupted
            repeat()
        loop.run(At(self._target))

    def emit(self, event: Event) -> None:
        """Compare what a replayed block measured."""
        if isinstance(event, MetricBlock):
            self.steps += event.count
            self.blocks.append(event)
            self.compared.take(event)
        elif isinstance(event, SplitEnded):
            self.finals[event.epoch, event.split] = event.finals

    def reached(self, position: Position) -> None:
        """The loop stands at a boundary between two blocks."""
        left = self._length - self.steps
        if self._stops and left <= self._stops[-1]:
            while self._stops and left <= self._stops[-1]:
                self._stops.pop()
            if self.steps and left > 0:
                self._keep()
        now = perf_counter()
        if left > 0 and now >= self._next:
            self._told, self._next = True, now + _AGAIN
            self._tell(self._progress())

    def allowance(self, position: Position) -> int:
        """How many steps until the next keyframe."""
        return max(1, self._length - self.steps - self._stops[-1]) if self._stops else FAR

    def end(self) -> None:
        """The replay has ended, or was stopped early: remove its progress from the displays."""
        if self._told:
            self._tell(self._progress(over=True))

    def _progress(self, over: bool = False) -> SetProgress:
        what = f"on the way back to {self._target}"
        return SetProgress(what, self.steps, self._length, over, unit="step")

    def verdict(self, target: Position, reached: Position, left: Sequence[str] = ()) -> str:
        """The message to the user about the replay; empty if it was exact. `left` names what steps reach and
        is not in the state."""
        if reached.key != target.key:
            return f"interrupted on the way back to {target}"
        if not self.compared.gap:
            return ""
        found = self.compared.difference(left)
        return f"{self.steps} steps were taken again and drifted by {self.compared.gap:.3g}: {found}"

    def report(
        self, start: Position, reached: Position, left: Sequence[str], changed: Sequence[str]
    ) -> RewindReport:
        """The report about a way back from `start`, the same way; `changed` is what is other than then."""
        found = self.compared
        gap, compared = found.gap, found.values > 0 or not self.steps
        differs = found.difference(left, changed)
        return RewindReport(start, reached, self.steps, gap, found.differs_at, differs, compared)

    def beyond(self, record: Record, position: Position) -> list[MetricBlock]:
        """The replayed steps of this position's pass that the record does not hold yet."""
        place = (position.epoch, position.split)
        steps = sum(part.steps for part in record if (part.epoch, part.split) == place)
        return [
            rows(block, max(0, steps + 1 - block.first), block.count)
            for block in self.blocks
            if (block.epoch, block.split) == place and block.last > steps
        ]


def stops(length: int, room: int) -> list[int]:
    """How many steps before the end of a replay keyframes are kept, nearest first, and at most `room` of
    them.

    >>> stops(100, room=64)
    [1, 2, 4, 8, 15, 22, 29, 36, 43, 50, 57, 64, 71, 78, 85, 92, 99]
    >>> stops(1000, room=3)
    [1, 10, 101]
    >>> stops(0, room=64)
    []
    """
    growth, apart = 2.0, -(-length // _PARTS)
    while True:
        found: list[int] = []
        left = 1
        while left < length:
            found.append(left)
            left = max(left + 1, min(int(left * growth), left + apart))
        if len(found) <= room:
            return found
        if room < 1:
            return []
        growth, apart = growth * 1.1, length


def steps_until(record: Record, position: Position) -> int:
    """How many steps, of training and validation, were taken before a position."""
    return sum(part.steps for part in cut_at(record, position))


def cut_at(record: Record, position: Position) -> Record:
    """What had been measured at a position."""
    return cut(record, position.epoch, position.split, position.step)


def shape_of(record: Record) -> list[tuple[int, str, int, bool]]:
    """The passes of a record, without their values."""
    return [(part.epoch, part.split, part.steps, part.finals is None) for part in record]
