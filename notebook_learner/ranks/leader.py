"""Rank 0's side: it starts the other ranks, tells them what to do, and finds out who failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from ..carried.heap import said_of
from ..cluster import Attached
from ..data.cursor import Cursor
from ..data.rank_share import Share
from ..data.sampling import END
from ..errors import RankDied, StateError
from ..event import Notice
from ..metric.rows import Rows
from ..run.lost_parts import lacks_own
from ..run.rank_protocol import OWN, Alone, Hands, Place, Task
from ..run.replica import Replica
from ..run.unheard import is_unheard
from ..state.state import State, written
from ..step.schedule import rates_of
from ..trial.changes import Changes
from .rank_processes import Crew, Dead, Failed, Lost, Member, crew_for, exception_of, release
from .rank_steps import RankClock, ranked, share_for
from .rank_table import RankTable, of_member, of_this_process
from .rank_tour import RankTour
from .recipe import RecipeSource
from .reduction import Reducer, Severed, reference_for
from .rendezvous import process_group
from .state_transfer import OwnParts, fingerprint, joined, nothing_of, reshaped, seed_of, told_by
from .weight_parts import InParts, Whole

PATIENCE = 10.0
"""Seconds in which a rank has to finish after the user interrupted a step."""


class Fleet:
    """Ranks 1 and up of one learner, from rank 0's side. They start when the learner first moves."""

    def __init__(
        self,
        replica: Replica,
        source: RecipeSource,
        devices: Sequence[torch.device],
        cluster: Attached | None = None,
    ) -> None:
        self.replica = replica
        self.source = source
        self.devices = list(devices)
        self.world = len(devices)
        self.cluster = cluster
        self.crew: Crew | None = None
        self.dead: RankDied | None = None
        self._lock = threading.RLock()
        self._reducer: Reducer = Reducer(None, 1.0)
        self._whole = Whole(self) if source.settings.in_parts else None
        """Collects the weights if they are in parts while the ranks train; else None."""
        self._sized = False
        """Whether the batch size was known when the group was made."""
        self._stale = True
        """Whether the other ranks have a different state from rank 0."""
        self._own = OwnParts()
        self._waiting: list[Member] = []
        """The ranks that have not answered yet."""
        self._rows: list[Rows] = []
        self._beside = self.world if cluster is None else 1
        """How many ranks run on this machine and share its cores."""
        self._threads = torch.get_num_threads()
        self._entered = False
        self._changes: bytes | None = None
        """The changes with which a trial takes its steps; None in a run."""
        self._agreed = 0
        """The last training step that all ranks have reported."""
        self._clock = RankClock(self._reducer)
        self._rates: list[float | None] = [None] * self.world
        """Steps a second of each rank, in the last block that was read."""

    # A run -------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Begin a run: start the other ranks, and give them rank 0's state."""
        if self.dead is not None:
            raise self.dead
        with self._lock:
            try:
                self._heal()
                self.whole()  # a run may have been interrupted before it began
                if self._whole is not None:
                    self._whole.require(self.replica.watch.breakpoints)
                crew = self._crew()
                self._tell_recipe(crew)
                self._synchronise()
                self._ask("enter", None)
                self._entered = True
                if self.devices[0].type == "cpu":
                    self._threads = torch.get_num_threads()
                    torch.set_num_threads(max(1, self._threads // self._beside))
                crew.watch.begin()
            except (Severed, Lost) as error:
                cause = self.fault(error)
                self.whole(at_last=True)
                raise cause from error

    def leave(self) -> None:
        """End the run."""
        self._changes = None
        self.whole(at_last=True)
        if not self._entered:
            return
        if self.devices[0].type == "cpu":
            torch.set_num_threads(self._threads)
        with self._lock:  # a thread that asks for the ranks' table waits
            self._entered = False
            if self.crew is not None:
                self.crew.watch.end()
                self._dismiss()

    def _dismiss(self) -> None:
        if self.dead is None and not self._broken:
            try:
                self._ask("leave")
            except (Severed, Lost) as error:  # the next verb reports it
                self.fault(error)

    def release(self) -> None:
        """Let the other ranks go. They begin again in new processes, with what each had of its own."""
        with self._lock:
            own = self._owned(self.replica.parts["window"].capture())
            self.shut()
            self.dead = None
            self._own.are(own)

    def lost(self) -> bool:
        """Whether the other ranks ended with what each of them had of its own."""
        with self._lock:
            if self._waiting:  # a command was interrupted
                self.fault(Severed("broken off"))
            return self._own.lost

    def begin_anew(self) -> None:
        """Have each rank begin with values that follow from rank 0's, as in a new run."""
        self._own = OwnParts()

    @contextmanager
    def tour(self, task: Task, cursors: Callable[..., Cursor]) -> Iterator[RankTour]:
        """Have the other ranks walk through a set too, while this context is open.

        Afterwards every rank has its earlier state again, to the bit: each rank restores itself, and rank 0
        later sends a rank that could not its own part.

        Raises:
            Alone: the other ranks cannot, because they do not have whole weights.
        """
        if self._whole is not None:
            raise Alone('strategy("fsdp") leaves it all weights while the learner stands still')
        packed, cursor, fed = self.source.packed_task(task, cursors)
        stale = self._stale
        self.enter()
        own: list[Any] = []
        try:
            own = self._ask("own")
            yield RankTour(self, task.what, packed, cursor, fed)
        except Severed as error:
            raise self.fault(error) from error
        finally:
            self.leave()
            self._rows = []
            if stale:  # they still have to get this rank's state
                self._stale = True
            elif self._stale and own:
                self._own.are([{"window": self.replica.parts["window"].capture()}, *own])

    def inspect(self, rank: int, batch: Any, tokenizer: Any) -> Any:
        """Inspect a step on another rank: with its part of the batch, or with the given batch."""
        if self._whole is not None:
            raise StateError(
                f'inspect(rank={rank}): with strategy("fsdp") rank 0 alone has all weights while the learner '
                "stands still; give the batch that it should inspect: inspect(batch)"
            )
        with self._lock:
            self.enter()
            try:
                member = self._members()[rank - 1]
                member.send("inspect", self.source.packed_to_look(batch, tokenizer))
                self._waiting.append(member)
                return self._answers()[0]
            except (Severed, Lost) as error:
                raise self.fault(error) from error
            finally:
                self.leave()

    def table(self) -> RankTable:
        """The condition of each rank. Idle ranks are asked; the others are observed from outside."""
        with self._lock:  # a run that begins waits for it
            idle = not (self._entered or self._broken) and self.dead is None
            if self.crew is None or not idle or self.crew.dead():
                return self.seen()
            try:
                told = self._ask("memory")
            except (Severed, Lost) as error:  # the next verb reports it
                self.fault(error)
                return self.seen()
            if self._stale:  # they get this rank's state before they take a step
                told = [{**each, "step": self._agreed} for each in told]
            return self._with(self.crew, told)

    def seen(self) -> RankTable:
        """The condition of each rank, from outside: at any time, from any thread, without waiting."""
        crew = self.crew
        if crew is None:
            return RankTable([of_this_process(self.replica)])
        return self._with(crew, [{"step": self._agreed}] * len(crew.members))

    def _with(self, crew: Crew, told: Sequence[Mapping[str, Any]]) -> RankTable:
        dead, (own, *rates) = crew.dead(), self._rates
        each = zip(crew.members, told, rates, strict=True)
        others = [of_member(member, member not in dead, found, rate) for member, found, rate in each]
        return RankTable([of_this_process(self.replica, own), *others])

    def shut(self) -> None:
        """Release the other ranks: the learner needs them no more."""
        crew, self.crew = self.crew, None
        spare = not self._waiting and self.dead is None
        self._own.end()
        self._reducer.sever()
        self._waiting, self._rows, self._stale = [], [], True
        self.source.forget()
        if crew is not None:
            release(crew, spare)

    def reshaped(self, order: list[int | None]) -> None:
        if self.crew is None or self.dead is not None:
            return
        with self._lock:
            entered, changes, own = self._entered, self._changes, self._own.known
            if not self._stale and not self._broken:
                window = self.replica.parts["window"].capture()
                own = [{"window": window}, *(reshaped(each, window, order) for each in self._ask("own"))]
            self.leave()
            self.shut()  # which forgets what each rank has
            self._own.are(own)
            if entered:
                self.enter()
                self._changes = changes
                self._stale = self._stale or changes is not None  # they get them after this rank's state

    def follow(self) -> None:
        """Give the other ranks what was changed by hand on rank 0, at this boundary inside of a run."""
        if self._entered:  # else they get it when they enter
            self.whole()
            self._tell_recipe(self._crew())
            if not self._stale:  # else they get it before the next step
                self._synchronise()
                self._ask("enter", self._changes)

    def _tell_recipe(self, crew: Crew) -> None:
        if self.source.tell(crew) and not self._stale:  # a rank with new code keeps what is its own
            self._own.are(self._owned(self.replica.parts["window"].capture()))
            self._stale = True

    def walk(self, changes: Changes) -> None:
        """Have the other ranks take steps with these changes until `leave`, as this rank does."""
        self._changes = self.source.packed(changes)
        if not self._stale:  # else they get it after this rank's state
            self._ask("enter", self._changes)

    # In a run ----------------------------------------------------------------------------------------

    def open(self, place: Place, cursor: Cursor) -> None:
        """Report that the loop begins a split, or goes on in it."""
        self._current()
        self._own.move()
        start = None
        if place.done == 0 and cursor.walk.cuts:
            start = cursor.start_on_host()
        self._tell("open", place, start, cursor.total)
        share_for(self.replica.loop, self._reducer)
        self._answers()

    def hands(self, step: Any, cursor: Cursor, metrics: Any) -> Hands:
        """The functions with which this rank takes its own steps."""
        fetch = cursor.fetch_share if cursor.walk.cuts else self._feeding(cursor)
        return ranked(fetch, step, metrics, self._reducer, self.replica.loop.update.model)

    def steps(self, place: Place, count: int) -> None:
        """Have the other ranks begin so many steps, as this rank does now."""
        self._in_step()
        self._own.move()
        rates = None if self._changes is None else rates_of(self.replica.loop.update.optimizer)
        self._tell("steps", place, count, rates, is_unheard())
        self._clock = RankClock(self._reducer)

    def gather(self, steps: int) -> Sequence[Rows]:
        """The other ranks' measurements in the steps since the last call."""
        own = self._clock.seconds()
        rows: list[Rows] = self._rows
        if self._waiting:
            self._await()
            rows = self._answers()
        self._rows = []
        self._agreed = self.replica.loop.iteration
        wrong = [each.steps for each in rows if each.steps != steps]
        if wrong and not self._broken:
            raise StateError(f"rank 0 took {steps} steps, another one {wrong[0]}: their data differ")
        rows = [each for each in rows if each.steps == steps]
        if len(rows) == self.world - 1:
            self._rates = [steps / took if took else None for took in (own, *(each.seconds for each in rows))]
        return rows

    def close(self, finals: Mapping[str, float]) -> None:
        """Report that the split is over, with these values."""
        self._tell("close", dict(finals))

    def closed(self) -> None:
        """Wait until the other ranks have closed the split too."""
        self._answers()

    def _feeding(self, cursor: Cursor) -> Callable[[], Any]:
        """A function that fetches a batch for all ranks."""
        shares = [Share(rank, self.world) for rank in range(self.world)]
        members = self._members()

        def fetch() -> Any:
            batch = cursor.fetch()
            if batch is END:
                for member in members:
                    member.send("over")
                return END
            for member, share in zip(members, shares[1:], strict=True):
                member.hand(share.of_batch(batch))
            return shares[0].of_batch(batch)

        return fetch

    # State -------------------------------------------------------------------------------------------

    def capture(self, parts: dict[str, Any]) -> None:
        """Add to a captured state the parts that only the other ranks know."""
        with self._lock:
            if self._whole is not None:
                self._whole.complete(parts)
            own = self._owned(parts["window"])
        if self._own.lost:
            parts[OWN] = {"world": 0, "each": []}
        elif own is not None:
            if self._whole is not None:  # a whole state is on rank 0's device
                own[1:] = [{**each, "window": nothing_of(parts["window"])} for each in own[1:]]
            parts["window"] = joined(parts["window"], own[1:])
            parts[OWN] = {"world": self.world, "each": own}

    def _owned(self, window: dict[str, Any]) -> list[Any] | None:
        """Each rank's own part of the state, with rank 0's window; None if they have none, or it is lost."""
        if self.crew is None or self.dead is not None or self._stale or self._broken:
            return self._own.known
        try:
            return [{"window": window}, *self._ask("own")]
        except (Severed, Lost) as error:
            if self._entered:
                raise
            self.fault(error)  # the next verb reports it
            return self._own.known

    @property
    def in_parts(self) -> bool:
        """Whether each rank has only its part of the weights while they train."""
        return self._whole is not None

    def whole(self, *, at_last: bool = False) -> None:
        """Bring all weights to this rank, until the next step.

        Args:
            at_last: the run is over. If the weights cannot be brought here, the next verb reports it.

        Raises:
            StateError: a part of the weights is lost.
        """
        if self._whole is None:
            return
        with self._lock:
            try:
                self._whole.bring()
            except (Severed, Lost, StateError) as error:
                cause = self.fault(error)
                self._whole.lose()
                if not at_last:
                    raise cause from error

    def look(self) -> None:
        """Bring all weights here for a user who looks at them in a run, unless other ranks are in steps."""
        if not self._waiting:
            self.whole()

    def lay_down(self) -> None:
        """Make room for a whole state that is about to be put here; the old values are of no use."""
        if self._whole is not None:
            self._whole.parts.make_whole()
            self._whole.lost = ""

    def put_back(self, state: State) -> None:
        """Note that rank 0 was set to this state."""
        kept = state.parts.get(OWN)
        self._own = OwnParts(lost=lacks_own(state))
        if kept is not None and kept["world"] == self.world:
            self._own.are(own := list(kept["each"]))
            if self._whole is None:
                self.replica.parts["window"].restore(own[0]["window"])
        elif (
            not self._own.lost
            and state.position.iteration
            and (held := written(state.parts["carried"])["objects"])
        ):
            names = ", ".join(dict.fromkeys(said_of(path) for path, *_ in held if path is not None))
            told = (
                f"this state does not hold what each device had: each begins with rank 0's values of {names}"
            )
            self.replica.emit(Notice(told, "warning"))
        self._stale, self._agreed = True, state.position.iteration

    # One command at a time ---------------------------------------------------------------------------

    def _crew(self) -> Crew:
        if self.crew is None:
            threads = max(1, self._threads // self._beside)
            self.crew = crew_for(self.devices[1:], threads, self.cluster)
            self._stale = True
        return self.crew

    def _members(self) -> list[Member]:
        return [] if self.crew is None else self.crew.members

    def _tell(self, verb: str, *arguments: Any) -> None:
        """Send a command to all other ranks; the answers are read later."""
        for member in self._members():
            member.send(verb, *arguments)
            self._waiting.append(member)

    def _ask(self, verb: str, *arguments: Any) -> list[Any]:
        self._tell(verb, *arguments)
        return self._answers()

    def _answers(self) -> list[Any]:
        """The answer of each rank. After all have answered, the first failure is raised."""
        found: list[Any] = []
        while self._waiting:
            member = self._waiting.pop(0)  # success or failure, a rank answers once
            answer = member.answer()
            if isinstance(answer, Failed):
                raise Lost(member, answer)
            found.append(answer)
        return found

    def _await(self) -> None:
        """Wait until all ranks have answered. A rank may hang: the user can interrupt this wait alone."""
        control = self.replica.loop.control
        control.interruptible = True
        try:
            for member in self._waiting:
                while not member.channel.waits(0.5):
                    pass
        finally:
            control.interruptible = False

    @property
    def _broken(self) -> bool:
        return self._reducer.group is None or bool(self._waiting)

    def _current(self) -> None:
        """Give the other ranks rank 0's state before the loop goes on: rank 0 may have gone back."""
        self._heal()
        if self._stale:
            self._synchronise()
            self._ask("enter", self._changes)
        self._in_step()

    def _in_step(self) -> None:
        """Divide the weights again after `look`, for which rank 0 had them whole."""
        if self._whole is not None and not self._whole.parts.divided:
            self._synchronise()

    def _heal(self) -> None:
        """Clean up after an interrupted command, on all ranks."""
        if self._waiting:
            self.fault(Severed("broken off"))
        if self.dead is not None:
            raise self.dead

    def _synchronise(self) -> None:
        """Give the other ranks rank 0's state. The user may have changed rank 0 by hand meanwhile."""
        if self._reducer.group is None or (not self._sized and "train" in self.replica.loop.passes):
            self._meet()
        keeps = False
        if not self._stale:
            keeps = self._stale = self._differ(self._ask("print"))
        if self._stale:
            told = told_by(self.replica)
            rng = self.replica.rng.capture()
            for member in self._members():
                own = None if self._own.known is None else self._own.known[member.rank]
                parts = told if self._whole is None else self._whole.cut(told, member.rank)
                member.send("take", parts, own, seed_of(rng, member.rank), keeps)
                self._waiting.append(member)
            self._answers()
            self._stale = False
        self._agreed = self.replica.loop.iteration
        if isinstance(self._reducer, InParts) and self._whole is not None:
            self._whole.parts.divide(self._reducer)

    def _differ(self, prints: Sequence[int]) -> bool:
        """Whether the user has changed the state here meanwhile."""
        if self._whole is not None:
            return [self._whole.print(rank) for rank in range(1, self.world)] != prints
        mine = fingerprint(self.replica)
        return any(each != mine for each in prints)

    def _meet(self) -> None:
        """Make a process group for the sums."""
        self._reducer.sever()
        loop, crew = self.replica.loop, self._crew()
        crew.generation += 1
        place, generation = crew.engines.place, crew.generation
        self._sized = "train" in loop.passes
        reference = reference_for(loop.passes["train"].cursor.loader, self.world) if self._sized else 1.0
        self._tell("meet", place, generation, self.world, reference)
        group = process_group(self.devices[0], place, generation, 0, self.world)
        self._reducer = (Reducer if self._whole is None else InParts)(group, reference)
        loop.update.join(self._reducer)
        self._answers()

    # Failure -----------------------------------------------------------------------------------------

    def fault(self, error: BaseException) -> BaseException:
        """End the other ranks' wait for this rank, which cannot go on. Returns the first cause."""
        if isinstance(error, RankDied):
            return error
        failed = [(error.member, error.answer)] if isinstance(error, Lost) else []
        hurried = isinstance(error, KeyboardInterrupt)
        if hurried:
            self._end_those_who_hang()
        self._reducer.sever()
        self._stale = True
        self._own.end()
        waiting, self._waiting = self._waiting, []
        dead: list[Member] = [] if self.crew is None else self.crew.dead()
        rows = []
        for member in [each for each in waiting if each not in dead]:
            try:
                member.send("break")
                if hurried and not member.channel.waits(PATIENCE):
                    self._give_up(member, f"did not answer for {PATIENCE:.0f} s")
                answer = member.answer()
            except Dead:
                dead.append(member)
                continue
            if isinstance(answer, Failed):
                failed.append((member, answer))
                rows.append(answer.rows)
            elif isinstance(answer, Rows):
                rows.append(answer)
        self._rows = [each for each in rows if each is not None]
        for member in () if self.crew is None else self.crew.members:
            with suppress(Dead):  # a rank that answered before does not know yet that it is over
                member.send("break")
        if dead:
            self.dead = self._died(dead[0])
            return self.dead
        causes = [(member, answer) for member, answer in failed if not answer.severed]
        if causes and isinstance(error, (Severed, Lost)):
            return exception_of(*causes[0])
        return error

    def _end_those_who_hang(self) -> None:
        """Kill the ranks if the sums of a step that the user interrupted do not arrive in time."""
        if self.crew is None or self._reducer.settles(PATIENCE):
            return
        ranks = ", ".join(str(each.rank) for each in self.crew.members)
        for member in self.crew.members:
            self._give_up(member, f"did not come to a sum for {PATIENCE:.0f} s (one of the ranks {ranks})")

    def _give_up(self, member: Member, why: str) -> None:
        assert self.crew is not None
        self.crew.watch.give_up(member, f"{why} after the step was broken off, and was killed,")

    def _died(self, member: Member) -> RankDied:
        crew, replica = self.crew, self.replica
        assert crew is not None
        alive = [0, *(each.rank for each in crew.members if each not in crew.dead())]
        kept = [info.label for info in replica.saving.kept() if not info.damage]
        last = f"; the last checkpoint is {kept[-1]}" if kept else ""
        where = str(replica.loop.position)
        return RankDied(member.rank, member.host, member.pid, crew.watch.reason(member), where, alive, last)
