"""One replica of the training: the loop and its state. It follows a few commands at step boundaries.

The Learner calls it directly. The replica runs, captures, restores and goes back. It owns no thread,
catches no signal and shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import perf_counter
from typing import Any

from torch import OutOfMemoryError

from ..checkpoint.info import Kind
from ..errors import BusyError, CheckpointError, LoggerError, RankDied, StateError, StoreError
from ..event import Notice, Record, Rewound, with_more
from ..event.position import Position
from ..state.checkpoint_files import Lineage, place_of
from ..state.device_copies import together
from ..state.state import Large, State, require_fit
from ..state.validation import check_sound, rehearse
from .bounds import Sooner, Until
from .breakpoint_watch import Again, BreakpointWatch, Hit, Reached
from .compared import Beyond, ComparedWithLog, options_of
from .failure import explain, explain_keyframe, let_go, stage_of, teach, what_moved
from .loop import Loop, Why, shown_position
from .lost_parts import find_lost, lacks_own
from .replay import ByHand, LeftLine, Replay, cut_at, shape_of
from .replica_state import ReplicaState
from .saving import no_way
from .step_reports import RewindReport
from .step_undo import hold
from .unheard import unheard


class Replica(ReplicaState):
    """Everything in the training of one device."""

    def __init__(self, loop: Loop, *parts: Any) -> None:
        super().__init__(loop, *parts)
        self.watch = BreakpointWatch(loop, self._way_back, self._warn)
        self.hit: Hit | None = None  # the breakpoint that stopped the last run
        loop.boundary = self

    # Commands ----------------------------------------------------------------------------------------

    def run(self, until: Until) -> Why:
        """Move until the bound, a request or the end. After an error the replica stands before that step."""
        __tracebackhide__ = True
        self.measure_again()
        find_lost(self)
        self.carried.begin()
        if self.ranks is not None:
            self.shape.look()
            self.ranks.enter()
        self.rng.enter()
        self.loop.look_around()
        self.timeline.wanted = True
        self.hit = None
        try:
            why = self._watched(until)
            self.settle()
            if self._lost is not None:
                self._save_again(*self._lost)
            return why if self.watch.late is None else self._stopped(self.watch.late)
        except Reached as reached:
            return self._stop_before(reached.hit)
        except (LoggerError, CheckpointError):  # raised at a boundary: there is no step to take back
            raise
        except BaseException as error:
            cause = error if self.ranks is None else self.ranks.fault(error)
            self._take_back(cause)
            if cause is not error:
                raise cause from error
            raise
        finally:
            self.settle()
            self.snapshots.rest()
            self.carried.rest()
            self.rng.leave()
            if self.ranks is not None:
                self.ranks.leave()
            self.loop.rest()

    def restore(self, state: State, reason: str = "restored") -> None:
        """Go exactly to where the state was captured; history and logs follow."""
        self.put_back(state)
        self._stand_at(state, reason)

    def restore_checkpoint(
        self,
        which: int | str,
        opening: Callable[[], None] = lambda: None,
        adapt: Callable[[State], None] = lambda state: None,
    ) -> None:
        """Go to where a checkpoint was saved. If its state is not valid, everything is put back as it was.
        `adapt` may change the state that was read; `opening` comes before any listener gets an event."""
        state, logged = self.saving.load(which)
        adapt(state)
        state, owed = self.with_own_metrics(state)
        before, known, way = self.capture(), self.history.snapshot(), self.saving.lineage
        try:
            self._require_sound(state, self.shaping.in_shape_of(state, before, self.capture), which)
            self.put_back(state)
            opening()
            if not known:  # another process measured this: cut its logs, do not rewrite them
                self.history.restore(logged)
                self._expected = ComparedWithLog(logged, state.position)
            self._stand_at(state, f"checkpoint {which}", self.saving.loaded)
            self.owe(owed)
            self.measure_again()
        except Exception as error:
            self._owed = None
            self.saving.lineage = way
            self.put_back(before)
            self.history.restore(known)
            if isinstance(error, (StateError, StoreError, BusyError, LoggerError)):
                raise
            raise StateError(
                f"checkpoint {which} fits in shape, but cannot be restored: {error!r}"
            ) from error

    def _require_sound(self, state: State, mine: State, which: int | str) -> None:
        """Raise if a file does not hold a valid state of this run."""
        totals: dict[str, int | None] = {split: each.cursor.total for split, each in self.loop.passes.items()}
        require_fit(self.parts, state)
        check_sound(state, mine, totals)
        rehearse(self.parts, state, f"checkpoint {which}")

    def stand_anew(self) -> None:
        """The user changed something at this boundary: earlier keyframes no longer lead to what follows."""
        started = perf_counter()
        self._keep(self.capture(), perf_counter() - started)

    def reshape(self, name: str, function: Callable[[], None]) -> None:
        """Let a function change the shape here. After an error, everything is as it was."""
        self.settle()
        before = self.capture()
        try:
            with self.shaping.in_the_run():
                self.shape.change(name, function)
        except BaseException:
            self.put_back(before)
            raise

    def keep(self, kind: Kind) -> str:
        """Give the state of this boundary to the store, and return its label there."""
        assert self.saving.store is not None
        self.carried.compare_large()
        return self.saving.store.keep(self.capture(), kind)

    def keep_stop(self) -> None:
        """The run stands still for longer: save the state, if that is wanted."""
        if not self.loop.finished and self.saving.due_at_pause(self.loop.position):
            self.saving.take_auto(self.capture())

    def owe(self, why: str) -> None:
        """The sums of this pass, as far as it has come, are not those of these metrics."""
        self._owed = (self.loop.position, why) if why else None

    def measure_again(self) -> None:
        """If metrics came or went in the midst of a pass, take its steps again, and measure them."""
        owed, here = self._owed, self.loop.position
        if owed is None or owed[0].key != here.key:
            return
        begin = replace(here, step=0)
        self.timeline.forget_after(begin)
        try:
            report = self.rewind(here, through=begin)
        except StateError as lost:
            raise StateError(f"{owed[1]}, or from a state before it: {lost}") from lost
        self._owed = None
        told = f"other metrics than the checkpoint's: the steps of this pass were measured again; {report}"
        self.emit(Notice(told, "info" if report.exact else "warning"))

    def rewind(
        self, target: Position, line: LeftLine | None = None, through: Position | None = None
    ) -> RewindReport:
        """Go back to a position: to the nearest keyframe, then forward again in silence. With a line that the
        run has left, the position is one of that. With `through`, the way leads over that position, and what
        is measured on it joins the record."""
        start, by_hand = self.shown_position, self.by_hand if line is None else line.by_hand
        with self._on_line(line):
            keyframe = self.state_before(through or target)
            self.carried.begin()
            if self.ranks is not None:
                self.ranks.enter()
            self.rng.enter()
            try:
                known = self.history.snapshot() if line is None else line.record
                replay = self._return_to(target, keyframe, known, by_hand)
            except BaseException as error:
                cause = error if self.ranks is None else self.ranks.fault(error)
                if line is None:
                    self._fall_back(keyframe)
                explain_keyframe(cause, keyframe.position, f"the way back to {target} was not finished")
                if cause is not error:
                    raise cause from error
                raise
            finally:
                self.carried.rest()
                self.rng.leave()
                if self.ranks is not None:
                    self.ranks.leave()
        reached = self.loop.position
        way, reason = (None, f"rewound from {start}") if line is None else (line.way, f"came from {start}")
        record = cut_at(known, reached)
        if through is not None:
            record = with_more(record, replay.blocks, replay.finals)
        self._rewrite(record, reason, way, leaves=through is None)
        self.timeline.forget_after(reached)
        self.timeline.beyond = Beyond(known, options_of(self.loop.update.optimizer))
        self.watch.forget_after(reached)
        return replay.report(start, reached, self.carried.left_names(), self.causes())

    @contextmanager
    def _on_line(self, line: LeftLine | None) -> Iterator[None]:
        """Inside, keyframes and checkpoints are those of another line. After an error all is as it was."""
        if line is None:
            yield
            return
        before, back = self.capture(), self._turned_to(line)
        try:
            yield
        except BaseException:
            self.put_back(before)
            back()
            raise

    def _turned_to(self, line: LeftLine) -> Callable[[], None]:
        """Have keyframes and checkpoints of another line; return what gives this line's again."""
        way, frames = self.saving.lineage, [*self.timeline.keyframes]
        self.saving.lineage = line.way
        (self.timeline.forget_from if line.edited else self.timeline.forget_after)(line.parted)

        def back() -> None:
            self.saving.lineage, self.timeline.keyframes = way, frames

        return back

    @contextmanager
    def looking_along(self, line: LeftLine | None) -> Iterator[None]:
        """Inside, the past is that of a line that the run has left. It is for a look: afterwards all is as it
        was."""
        if line is None:
            yield
            return
        own, by_hand, back = self.line, self.by_hand, self._turned_to(line)
        self.line, self.by_hand = line.record, line.by_hand
        try:
            yield
        finally:
            self.line, self.by_hand = own, by_hand
            back()

    def let_go(self) -> None:
        """The learner is garbage-collected: end worker processes now. If the garbage collector did it, their
        queues might be gone before the workers are asked to end, and each would cost five seconds."""
        for each in self.loop.passes.values():
            each.cursor.close()
        if self.ranks is not None:
            self.ranks.shut()
        self.saving.close()  # the interpreter's end would stop the writer and lose the save

    @property
    def shown_position(self) -> Position:
        """The position that users see."""
        return shown_position(self.loop, self.history.snapshot())

    def _stand_at(self, state: State, reason: str, way: Lineage | None = None) -> None:
        self.watch.forget_after(state.position)
        if self._rewrite(state.record, reason, way):
            self.timeline.forget_after(state.position)
        else:
            self.timeline.start_over(state)

    # The loop's boundary -----------------------------------------------------------------------------

    def reached(self, position: Position) -> None:
        """The loop stands at a boundary between two blocks."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._tell_of_steps()
        self.saving.check()
        self.snapshots.tidy()
        if self._soon is not None and self.snapshots.idle:
            self.settle()
        if self._lost is not None:
            self._save_again(*self._lost)
        save, keyframe = self.saving.due(position), self.timeline.due(position)
        if save or keyframe:
            started = perf_counter()
            state = self._capture_soon()
            seconds = perf_counter() - started
            if save:
                self.carried.compare_large()
                kind = self.saving.take(state)
                self._saved_soon = None if self._soon is None else (position, kind)
            if keyframe:
                self._keep(state, seconds)
                if self.saving.keeps_start:
                    self.saving.keep_start(state)
        self.watch.refresh()  # after the keyframe, which decides how closely it looks

    def _tell_of_steps(self) -> None:
        for each in self.loop.passes.values():
            notice, each.step.notice = each.step.notice, ""
            if notice:
                self._warn(notice)

    def allowance(self, position: Position) -> int:
        """How many steps the loop may take before it asks again."""
        return min(self.timeline.allowance(position), self.saving.allowance(position))

    def _capture_soon(self) -> State:
        """Like `capture`, but large tensors are copied during the next step; `state.ready()` waits for it."""
        if self.saving.hurried or self.carried.writes_unseen or (self.ranks and self.ranks.in_parts):
            return self.capture()
        self.settle()
        copy = self.snapshots.begin()
        parts = self.unclaimed()
        try:
            with together():
                for name, part in self.parts.items():
                    parts[name] = part.capture(copy) if isinstance(part, Large) else part.capture()
        except BaseException:
            self.snapshots.drop()
            raise
        if self.ranks is not None:
            self.ranks.capture(parts)
        self._soon = self.snapshots.go()
        return State(self.loop.position, parts, self.history.snapshot(), self._soon.wait)

    def _save_again(self, target: Position, kind: Kind) -> None:
        """Save a checkpoint of a passed position whose copy was void: go back, copy, and return."""
        self._lost, loop, known = None, self.loop, self.history.snapshot()
        keyframe = self.timeline.nearest(target) if loop.current.cursor.goes_back else None
        if keyframe is None or self.ranks is not None or loop.position < target:
            self._warn(
                f"no checkpoint of {target}: the training step wrote to parameters while they were copied"
            )
            return
        here, batch, output = self.capture(), loop.batch, loop.output
        try:
            replay = self._return_to(target, keyframe)
            if told := replay.verdict(target, loop.position, self.carried.left_names()):
                self._warn(f"no checkpoint of {target}: {told}")
            elif self.saving.store is not None:
                parts = self.capture().parts
                self.saving.store.keep(State(loop.position, parts, cut_at(known, target)), kind)
        finally:
            self.put_back(here)
            loop.batch, loop.output = batch, output

    def _keep(self, state: State, seconds: float) -> None:
        told = self.timeline.too_large
        self.timeline.add(state, seconds, whole=self.snapshots.settled)
        if self.timeline.too_large and not told:
            self._warn(
                f"the state takes {self.timeline.too_large / 1e9:.2f} GB, more than the memory budget for "
                "keyframes: an error in a step cannot be taken back, and rewind is off; "
                ".keyframes(memory=...) raises it"
            )

    # Going back --------------------------------------------------------------------------------------

    @property
    def reach(self) -> Position:
        """The earliest position that the run can go back to."""
        held = [state.position for state in self.timeline.keyframes]
        return min([*held, *map(place_of, self.saving.kept_on_the_way()), self.loop.position])

    def state_before(self, target: Position) -> State:
        """The nearest state before a position: a keyframe in memory, or else a checkpoint on the disk."""
        self.settle()
        keyframe = self.timeline.nearest(target) or self._checkpoint_before(target)
        if keyframe is None:
            raise StateError(no_way(target, self.reach, self.saving))
        return keyframe

    def _checkpoint_before(self, target: Position) -> State | None:
        """The last whole checkpoint on this run's way, of this process or an earlier one, at or before a
        position."""
        before = [info for info in self.saving.on_the_way() if info.key <= target.key]
        for near in sorted(before, key=lambda info: info.key, reverse=True):
            state, owed = self.with_own_metrics(self.saving.load_on_the_way(near))
            if not owed and not lacks_own(state):
                return self._sound(state, near.label)
        return None

    def _sound(self, state: State, label: str) -> State:
        """This state, if it is a valid one of this run."""
        here = self.shape.look()
        try:
            self._require_sound(state, self.shaping.in_shape_of(state, self.capture(), self.capture), label)
        finally:
            self.shape.back_to(here)
        return state

    def _return_to(
        self, target: Position, keyframe: State, known: Record | None = None, by_hand: ByHand | None = None
    ) -> Replay:
        """Go from a keyframe to a position in silence, and keep more keyframes on the way."""
        timeline, loop, by_hand = self.timeline, self.loop, by_hand or self.by_hand
        timeline.forget_after(target)
        if all(kept is not keyframe for kept in timeline.keyframes):  # the keyframe is from the disk
            self._keep(keyframe, 0.0)

        def leave() -> None:
            with suppress(OutOfMemoryError):  # the way is longer without it
                timeline.leave(State(loop.position, self._captured_parts()))

        replay = Replay(
            self.history.snapshot() if known is None else known,
            keyframe.position,
            target,
            timeline.room_for(keyframe),
            leave,
            self.emit,
            loop.pace.rate,
        )
        loop.passing = True
        try:
            with unheard(), by_hand.code(keyframe.position):
                self.put_back(keyframe)
                loop.emit, loop.boundary, loop.breakable = replay.emit, replay, False
                replay.run(loop, by_hand.edits(keyframe.position, target))
        finally:
            loop.emit, loop.boundary = self.emit, self
            loop.breakable, loop.passing = True, False
            replay.end()
        return replay

    def _rewrite(self, record: Record, reason: str, way: Lineage | None = None, leaves: bool = True) -> bool:
        """Make history and logs hold exactly this record, and inform all listeners. Return whether the record
        was only cut, so that the run still stands on its own earlier way. `way` is the lineage that led here,
        if a checkpoint has it; without `leaves` what was measured beyond is no branch, but wrong.
        """
        position, former = self.loop.position, self.history.snapshot() if leaves else ()
        splits, steps = self.history.restore(record)
        rest = record[splits:]
        is_cut = not rest or (len(rest) == 1 and rest[0].steps == steps)
        if way is None:
            way = self.saving.lineage if is_cut else Lineage()
        self.saving.lineage = way.branched(position.key)
        if self.saving.is_ahead(position):
            self._keep_first(State(position, self.capture().parts, record))
        self.saving.stands_at(position)
        at = (position.epoch, position.split, position.step)
        self.emit(Rewound(*at, record, splits, steps, reason, former))
        return is_cut

    def _keep_first(self, state: State) -> None:
        """Before logs are cut behind the newest checkpoint, save a newer one of the present position."""
        try:
            self.saving.take_auto(state)
            self.saving.wait()
        except CheckpointError as error:
            self.emit(Notice(f"went back to {state.position}, but cannot save it: {error}", "warning"))

    # At a breakpoint ---------------------------------------------------------------------------------

    def _way_back(self, target: Position) -> bool:
        """Whether the run can go back to an earlier step of the present pass."""
        return self.loop.current.cursor.goes_back and self.timeline.nearest(target) is not None

    def _watched(self, until: Until) -> Why:
        __tracebackhide__ = True
        self.watch.careful, taken = False, None
        while True:
            try:
                with self.watch.during():
                    if taken is not None:
                        with unheard():
                            why = self.loop.run(Sooner(until, taken))
                        if why != "budget":
                            return why
                    return self.loop.run(until)
            except Again as again:
                # No listener got the block, and the bound has not counted it.
                self.settle()
                self._go_back_to(again.start)
                self.watch.take_again(again)
                taken = again.start.at(again.last, 0)

    def _stop_before(self, hit: Hit) -> Why:
        """Stop before the update of the step that hit, or after a step of validation."""
        self.settle()
        loop, condition = self.loop, hit.breakpoint.condition
        loop.control.clear()
        if hit.moved and not self._way_back(hit.position):
            self._stay(hit.position, "backward")
            lost = what_moved("backward", loop.current.cursor.goes_back)
            return self._stopped(replace(hit, text=f"{hit.text} ({lost})".lstrip()))
        if hit.moved:
            self._go_back_to(hit.position)
        for _ in range(3):  # how many steps back the cause may lie
            self.whole()
            why = condition.blame(loop.update.model) if hit.before and loop.done else ""
            before = loop.position.at(loop.done - 1, loop.iteration - 1)
            if not why or not self._way_back(before):
                break
            hit = replace(hit, position=before, text=why)
            self._go_back_to(before)
        if hit.before:
            self.whole()
            more = hold(loop, self.parts, condition)
            hit = replace(hit, text="; ".join(part for part in (hit.text, more) if part))
        return self._stopped(hit)

    def _go_back_to(self, target: Position) -> None:
        keyframe = self.timeline.nearest(target)
        assert keyframe is not None
        replay = self._return_to(target, keyframe)
        self._settle(replay, "back to the step that hit a breakpoint")
        self.timeline.forget_after(target)
        if told := replay.verdict(target, self.loop.position, self.carried.left_names()):
            self._warn(f"on the way back to {target}: {told}")

    def _stopped(self, hit: Hit) -> Why:
        hit.breakpoint.hit()
        self.hit = hit
        self.watch.forget_after(hit.position)
        self.watch.stood = self.loop.position.key
        return "breakpoint"

    # After an error ----------------------------------------------------------------------------------

    def _take_back(self, error: BaseException) -> None:
        """Go to the boundary before the failed step, with everything as it was there."""
        self.settle()
        loop = self.loop
        target, step = loop.position, loop.current.step
        failed = loop.batch  # the failed batch; the replay ends on the one before
        loop.output = None
        loop.control.clear()
        teach(error, failed, stage_of(error, step.stage))  # reads the frames that are cleared next
        let_go(error, loop, self.timeline.keyframes, "fit() goes on from there")
        keyframe = self.timeline.nearest(target) if loop.current.cursor.goes_back else None
        if keyframe is None:
            self._stay(target, stage := stage_of(error, step.stage))
            explain(error, target, what_moved(stage, loop.current.cursor.goes_back))
            return
        if isinstance(error, RankDied):  # the replay would need the rank that died
            self._fall_back(keyframe)
            explain_keyframe(error, keyframe.position, "later steps are lost with the rank")
            return
        try:
            replay = self._return_to(target, keyframe)
        except Exception as second:
            cause = second if self.ranks is None else self.ranks.fault(second)
            self._fall_back(keyframe)
            explain_keyframe(error, keyframe.position, f"going back to {target} failed too: {cause!r}")
            return
        loop.batch, loop.output = failed, None  # the failed batch has no output yet
        loop.current.cursor.reopen(loop.done)
        self._settle(replay)
        explain(error, loop.position, replay.verdict(target, loop.position, self.carried.left_names()))

    def _settle(self, replay: Replay, reason: str = "after an error") -> None:
        """Make the record match the committed steps. It may hold more (a split whose end failed) or less
        (steps since the last block was sent)."""
        reached, known = self.loop.position, self.history.snapshot()
        exact = cut_at(known, reached)
        if shape_of(exact) != shape_of(known):
            self._rewrite(exact, reason, leaves=False)
        for block in replay.beyond(exact, reached):
            self.emit(block)

    def _stay(self, target: Position, stage: str) -> None:
        """No keyframe to go back to: keep the committed steps, and put the loader before the batch."""
        self.loop.current.metrics.keep(self.loop.unread)
        self.loop.flush()
        self.loop.update.give_up(gradients_moved=stage not in ("loader", "forward", "reading"))
        if self.loop.current.cursor.goes_back:
            self.loop.current.cursor.stand_at(target.step)

    def _fall_back(self, keyframe: State) -> None:
        self.put_back(keyframe)
        self._rewrite(cut_at(self.history.snapshot(), keyframe.position), "after an error")
