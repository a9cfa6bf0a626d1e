"""Loop and state together: one replica of the training, obeying a few commands at step boundaries.

The Learner speaks to it by plain calls. It runs, captures, restores and goes back; it owns no thread,
catches no signal and shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter

from ..errors import LoggerError, StateError
from ..event import Event, FanOut, MetricBlock, Notice, Record, Rewound, cut, drift, rows
from ..logger import History
from .failure import explain, release_device_memory, stage_of, what_moved
from .loop import Loop, Why
from .parts import RngPart
from .position import Position, Split
from .reports import RewindReport
from .state import Checks, Part, State
from .timeline import Timeline
from .until import FAR, At, Until

Save = Callable[[int, State], None]
"""Keeps the state that epoch k ended with."""


class Replica:
    """Everything one device's training consists of."""

    def __init__(
        self,
        loop: Loop,
        parts: Mapping[str, Part],
        rng: RngPart,
        timeline: Timeline,
        history: History,
        sinks: FanOut,
        save: Save | None = None,
    ) -> None:
        self.loop = loop
        self.parts = dict(parts)
        self.rng = rng
        self.timeline = timeline
        self.history = history
        self.sinks = sinks
        self.save = save
        self._failure: LoggerError | None = None
        self._saved_epoch = 0
        loop.boundary = self
        loop.emit = self.emit

    # Commands ----------------------------------------------------------------------------------------

    def run(self, until: Until) -> Why:
        """Move until the bound, a request or the end. An error leaves the replica before its step."""
        self.rng.enter()
        self.loop.look_around()
        self.timeline.wanted = True
        try:
            return self.loop.run(until)
        except LoggerError:  # raised at a boundary: there is nothing to take back
            raise
        except BaseException as error:
            self._take_back(error)
            raise
        finally:
            self.rng.leave()
            self.loop.modes.remember()

    def capture(self) -> State:
        """Everything a step can change, at this boundary."""
        parts = {name: part.capture() for name, part in self.parts.items()}
        return State(self.loop.position, parts, self.history.snapshot())

    def restore(self, state: State, reason: str = "restored") -> None:
        """Stand exactly where the state was captured; history and logs follow."""
        self._put_back(state)
        if self._rewrite(state.record, reason):
            self.timeline.forget_after(state.position)
        else:
            self.timeline.start_over(state)

    def rewind(self, target: Position) -> RewindReport:
        """Go back to a position: the nearest keyframe, then forward again in silence."""
        start = self.loop.position
        keyframe = self._keyframe_for(target)
        self.rng.enter()
        try:
            replay = self._return_to(target, keyframe)
        except BaseException as error:
            self._fall_back(keyframe)
            explain(error, keyframe.position, f"on the way back to {target}")
            raise
        finally:
            self.rng.leave()
        reached = self.loop.position
        self._rewrite(_cut(self.history.snapshot(), reached), f"rewound from {start}")
        self.timeline.forget_after(reached)
        return RewindReport(start, reached, replay.steps, replay.gap)

    def let_go(self) -> None:
        """Nobody holds the learner any more: end worker processes now. Left to the garbage collector,
        their queues may be gone before they are told to end, and each costs it five seconds."""
        for each in self.loop.passes.values():
            each.cursor.close()

    @property
    def shown_position(self) -> Position:
        """Where training stands, for people: at the very end that is the last step, not the first of
        an epoch that will not come."""
        loop = self.loop
        if not loop.finished or loop.epoch == 1:
            return loop.position
        split: Split = "valid" if "valid" in loop.passes else "train"
        record = self.history.snapshot()
        steps = record[-1].steps if record and record[-1].split == split else 0
        return Position(loop.epoch - 1, split, steps, loop.iteration, steps)

    def last_values(self) -> tuple[Split, dict[str, float]] | None:
        """The split and the metric values of the last step that was measured."""
        record = self.history.snapshot()
        if not record or not record[-1].blocks:
            return None
        block = record[-1].blocks[-1]
        values = {
            name: float(column.values[-1])
            for name, column in block.columns.items()
            if column.weights is None or column.weights[-1] != 0
        }
        return block.split, values

    # The loop's boundary -----------------------------------------------------------------------------

    def reached(self, position: Position) -> None:
        """The loop stands at a boundary between blocks."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._epoch_to_save(position):
            if self.save is not None:
                self.save(position.epoch - 1, self.capture())
            self._saved_epoch = position.epoch - 1
        if self.timeline.due(position):
            self._keep(position)

    def allowance(self, position: Position) -> int:
        """How far the loop may go before it asks again."""
        return self.timeline.allowance(position)

    def emit(self, event: Event) -> None:
        """Hand an event on. A failing logger has kept it; training ends at the next boundary."""
        try:
            self.sinks.emit(event)
        except LoggerError as failure:
            self._failure = failure

    def _epoch_to_save(self, position: Position) -> bool:
        at_start = position.split == "train" and position.step == 0
        return at_start and position.epoch - 1 > self._saved_epoch

    def _keep(self, position: Position) -> None:
        started = perf_counter()
        told = self.timeline.too_large
        self.timeline.add(self.capture(), perf_counter() - started)
        if self.timeline.too_large and not told:
            self.emit(
                Notice(
                    f"the state takes {self.timeline.too_large / 1e9:.2f} GB, more than the memory budget "
                    "for keyframes: an error in a step cannot be taken back, and rewind is off; "
                    ".keyframes(memory=...) raises it",
                    "warning",
                )
            )

    # Going back --------------------------------------------------------------------------------------

    def _keyframe_for(self, target: Position) -> State:
        keyframe = self.timeline.nearest(target)
        if keyframe is None:
            reach = self.timeline.keyframes[0].position if self.timeline.keyframes else "none"
            raise StateError(f"no keyframe at or before {target}; the earliest one held is: {reach}")
        return keyframe

    def _return_to(self, target: Position, keyframe: State) -> Replay:
        """Go from a keyframe to a position in silence; nobody hears of it but the replay itself."""
        replay = Replay(self.history.snapshot())
        self._put_back(keyframe)
        self.loop.emit, self.loop.boundary, self.loop.breakable = replay.emit, replay, False
        try:
            self.loop.run(At(target))
        finally:
            self.loop.emit, self.loop.boundary, self.loop.breakable = self.emit, self, True
        return replay

    def _put_back(self, state: State) -> None:
        missing = [name for name in self.parts if name not in state.parts]
        if missing:
            raise StateError(
                f"the state lacks {', '.join(missing)}; it was captured from a learner that was built "
                "otherwise (with another precision, average, or without validation)"
            )
        for name, part in self.parts.items():  # all checks first: a refused state changes nothing
            if isinstance(part, Checks):
                part.check(state.parts[name])
        for name, part in self.parts.items():
            part.restore(state.parts[name])

    def _rewrite(self, record: Record, reason: str) -> bool:
        """Make history and logs hold exactly this record, and tell everybody; whether that was a cut,
        so that the run still stands on the line it came along."""
        splits, steps = self.history.restore(record)
        position = self.loop.position
        self._saved_epoch = position.epoch - 1
        self.emit(Rewound(position.epoch, position.split, position.step, record, splits, steps, reason))
        rest = record[splits:]
        return not rest or (len(rest) == 1 and rest[0].steps == steps)

    # After an error ----------------------------------------------------------------------------------

    def _take_back(self, error: BaseException) -> None:
        """Stand before the step that failed, with everything as it was."""
        loop = self.loop
        target, step = loop.position, loop.current.step
        failed = loop.batch  # the batch at hand; the replay ends on the one before
        loop.output = None
        loop.control.clear()
        release_device_memory(error, step.device)
        keyframe = self.timeline.nearest(target) if loop.current.cursor.walks_again else None
        if keyframe is None:
            stage = stage_of(error, step.stage)
            self._stay(target, stage)
            explain(error, target, what_moved(stage, loop.current.cursor.walks_again))
            return
        try:
            replay = self._return_to(target, keyframe)
        except Exception as second:
            self._fall_back(keyframe)
            explain(error, keyframe.position, f"the way back to {target} failed too: {second!r}")
            return
        loop.batch, loop.output = failed, None  # the batch at hand has no output yet
        loop.current.cursor.reopen(loop.done)
        self._settle(replay)
        explain(error, loop.position, replay.verdict(target, loop.position))

    def _settle(self, replay: Replay) -> None:
        """The record may hold more than was committed (a split whose end failed) or less (steps since
        the last block was handed on): make it hold just what was."""
        reached = self.loop.position
        known = self.history.snapshot()
        exact = _cut(known, reached)
        if _shape(exact) != _shape(known):
            self._rewrite(exact, "after an error")
        for block in replay.beyond(exact, reached):
            self.emit(block)

    def _stay(self, target: Position, stage: str) -> None:
        """No keyframe to go back to: what is committed stays, the loader stands before the batch."""
        self.loop.current.metrics.keep(self.loop.unread)
        self.loop.flush()
        self.loop.update.give_up(gradients_moved=stage not in ("loader", "forward", "reading"))
        if self.loop.current.cursor.walks_again:
            self.loop.current.cursor.stand_at(target.step)

    def _fall_back(self, keyframe: State) -> None:
        self._put_back(keyframe)
        self._rewrite(_cut(self.history.snapshot(), keyframe.position), "after an error")


class Replay:
    """Stands in for sinks and boundary while steps are taken again: shows nothing, compares."""

    def __init__(self, known: Record) -> None:
        self.known = {(part.epoch, part.split): part.blocks for part in known}
        self.blocks: list[MetricBlock] = []
        self.steps = 0
        self.gap = 0.0

    def emit(self, event: Event) -> None:
        """Take what a replayed block measured."""
        if isinstance(event, MetricBlock):
            self.steps += event.count
            self.blocks.append(event)
            self._compare(event)

    def reached(self, position: Position) -> None:
        """No keyframe, no checkpoint: they exist already."""

    def allowance(self, position: Position) -> int:
        """No bound."""
        return FAR

    def verdict(self, target: Position, reached: Position) -> str:
        """What a person should know about the way back; nothing if it was exact."""
        if reached.key != target.key:
            return f"interrupted on the way back to {target}"
        return f"{self.steps} steps were taken again and drifted by {self.gap:.3g}" if self.gap else ""

    def beyond(self, record: Record, position: Position) -> list[MetricBlock]:
        """The replayed steps of this position's pass that the record does not hold yet."""
        place = (position.epoch, position.split)
        steps = sum(part.steps for part in record if (part.epoch, part.split) == place)
        return [
            rows(block, max(0, steps + 1 - block.first), block.count)
            for block in self.blocks
            if (block.epoch, block.split) == place and block.last > steps
        ]

    def _compare(self, block: MetricBlock) -> None:
        for old in self.known.get((block.epoch, block.split), ()):
            first, last = max(old.first, block.first), min(old.last, block.last)
            if first <= last:
                mine = rows(block, first - block.first, last - block.first + 1)
                theirs = rows(old, first - old.first, last - old.first + 1)
                self.gap = max(self.gap, drift(mine, theirs))


def _cut(record: Record, position: Position) -> Record:
    return cut(record, position.epoch, position.split, position.step)


def _shape(record: Record) -> list[tuple[int, str, int, bool]]:
    return [(part.epoch, part.split, part.steps, part.finals is None) for part in record]
