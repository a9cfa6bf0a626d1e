"""Rank 0's side: it starts the other ranks, tells them what to do, and finds out who failed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from ..cluster import Attached
from ..data.cursor import Cursor
from ..data.rank_share import EMPTY, CannotBeCut, Share
from ..data.sampling import END
from ..errors import RankDied, StateError
from ..metric.rank_rows import Rows
from ..run.rank_protocol import OWN, Alone, Hands, Place, Task
from ..run.replica import Replica
from ..state.state import State
from ..step.schedule import rates_of
from ..trial.changes import Changes
from .failures import Failed, Lost, exception_of
from .rank_processes import Crew, Dead, Member, crew_for, release
from .rank_steps import RankClock, buffers_of_rank_0, ranked, share_for
from .rank_table import RankTable, of_member, of_this_process
from .recipe import RecipeSource
from .reduction import Reducer, Severed
from .rendezvous import process_group
from .state_transfer import fingerprint, joined, nothing_of, seed_of, told_by
from .weight_parts import InParts
from .whole_weights import Whole

PATIENCE = 10.0
"""Seconds that a rank is given to come to an end, where a person has broken the step off."""


class Fleet:
    """Ranks 1 and up of one learner, as rank 0 sees them. Nothing is started before the first move."""

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
        """Where the weights are in parts while the ranks train."""
        self._sized = False
        """Whether the batches were known when the ranks met."""
        self._stale = True
        """Whether the others stand elsewhere than rank 0."""
        self._own: list[Any] | None = None
        """What is each rank's own, where rank 0 was put to a state that says so."""
        self._waiting: list[Member] = []
        """Who has not answered yet."""
        self._rows: list[Rows] = []
        self._beside = self.world if cluster is None else 1
        """Ranks on this machine, which share its cores."""
        self._threads = torch.get_num_threads()
        self._entered = False
        self._changes: bytes | None = None
        """What steps are taken with that are tried; None in a run."""
        self._agreed = 0
        """The last training step that all were heard of."""
        self._clock = RankClock(self._reducer)
        self._rates: list[float | None] = [None] * self.world
        """Steps a second of each, in the last block that was read."""

    # A run -------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """A run begins: they are there, and have the state that rank 0 has."""
        if self.dead is not None:
            raise self.dead
        with self._lock:
            try:
                self._heal()
                self.whole()  # a run may have been broken off before it began
                if self._whole is not None:
                    self._whole.require(self.replica.watch.breakpoints)
                crew = self._crew()
                self._stale = self.source.tell(crew) or self._stale
                self._synchronise()
                if self.devices[0].type == "cpu":
                    self._threads = torch.get_num_threads()
                    torch.set_num_threads(max(1, self._threads // self._beside))
                self._ask("enter", None)
                self._entered = True
                crew.watch.begin()
            except (Severed, Lost) as error:
                cause = self.fault(error)
                self.whole(at_last=True)
                raise cause from error

    def leave(self) -> None:
        """The run is over."""
        self._changes = None
        self.whole(at_last=True)
        if not self._entered:
            return
        if self.devices[0].type == "cpu":
            torch.set_num_threads(self._threads)
        with self._lock:  # whoever asks how they are waits
            self._entered = False
            if self.crew is not None:
                self.crew.watch.end()
                self._dismiss()

    def _dismiss(self) -> None:
        if self.dead is None and not self._broken:
            try:
                self._ask("leave")
            except (Severed, Lost) as error:  # told of by the next verb
                self.fault(error)

    def restart(self) -> None:
        """Start all of them anew."""
        with self._lock:
            self.shut()
            self.dead = None
            self.enter()
            self.leave()

    @contextmanager
    def tour(self, task: Task, cursors: Callable[..., Cursor]) -> Iterator[RankTour]:
        """Inside, the others go along through a set. Afterwards every rank stands as it did, to the bit: each
        puts itself back, and one that could not is told later what was its own.

        Raises:
            Alone: they cannot, as none of them has whole weights.
        """
        if self._whole is not None:
            raise Alone('strategy("fsdp") leaves it all weights while the learner stands still')
        packed, cursor, fed = self.source.packed_task(task, cursors)
        stale, told = self._stale, self._own
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
            if stale:  # they were to be told where this rank stands, and still are
                self._stale, self._own = True, told
            elif self._stale and own:
                self._own = [{"window": self.replica.parts["window"].capture()}, *own]

    def inspect(self, rank: int, batch: Any, tokenizer: Any) -> Any:
        """What a step looks like on another rank: with its part of the batch, or one that is given."""
        if self._whole is not None:
            raise StateError(
                f'inspect(rank={rank}): with strategy("fsdp") rank 0 alone has all weights while the learner '
                "stands still; give the batch that is asked about: inspect(batch)"
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
        """How each of them is. They are asked where they do nothing else, and seen from outside if not."""
        with self._lock:  # a run that begins waits for it
            idle = not (self._entered or self._broken) and self.dead is None
            if self.crew is None or not idle or self.crew.dead():
                return self.seen()
            try:
                told = self._ask("memory")
            except (Severed, Lost) as error:  # told of by the next verb
                self.fault(error)
                return self.seen()
            if self._stale:  # they are put where this rank stands before they take a step
                told = [{**each, "step": self._agreed} for each in told]
            return self._with(self.crew, told)

    def seen(self) -> RankTable:
        """How each of them is, from outside: at any time, from any thread, without waiting for anybody."""
        crew = self.crew
        if crew is None:
            return RankTable([of_this_process(self.replica)])
        return self._with(crew, [{"step": self._agreed}] * len(crew.members))

    def _with(self, crew: Crew, told: Sequence[Mapping[str, Any]]) -> RankTable:
        dead = crew.dead()
        own, *rates = self._rates
        each = zip(crew.members, told, rates, strict=True)
        others = [of_member(member, member not in dead, found, rate) for member, found, rate in each]
        return RankTable([of_this_process(self.replica, own), *others])

    def shut(self) -> None:
        """Nobody needs them any more."""
        crew, self.crew = self.crew, None
        spare = not self._waiting and self.dead is None
        self._reducer.sever()
        self._waiting, self._rows, self._stale = [], [], True
        self.source.forget()
        if crew is not None:
            release(crew, spare)

    def walk(self, changes: Changes) -> None:
        """Until they leave, they take steps with these changes, as this rank does."""
        self._changes = self.source.packed(changes)
        if not self._stale:  # else they are told once they stand where this rank does
            self._ask("enter", self._changes)

    # In a run ----------------------------------------------------------------------------------------

    def open(self, place: Place, cursor: Cursor) -> None:
        """The loop begins with a split, or goes on in it."""
        self._current()
        start = None
        if place.done == 0 and cursor.walk.cuts:
            start = cursor.start_on_host()
        self._tell("open", place, start, cursor.total)
        share_for(self.replica.loop, self._reducer)
        self._answers()

    def hands(self, step: Any, cursor: Cursor, metrics: Any) -> Hands:
        """What this rank takes its own steps with."""
        fetch = cursor.fetch_share if cursor.walk.cuts else self._feeding(cursor)
        return ranked(fetch, step, metrics, self._reducer, self.replica.loop.update.model)

    def steps(self, place: Place, count: int) -> None:
        """They begin with so many steps, as this rank does now."""
        self._in_step()
        rates = None if self._changes is None else rates_of(self.replica.loop.update.optimizer)
        self._tell("steps", place, count, rates)
        self._clock = RankClock(self._reducer)

    def gather(self, steps: int) -> Sequence[Rows]:
        """What they measured in the steps since the last time."""
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
        """The split is over, with these values."""
        self._tell("close", dict(finals))

    def closed(self) -> None:
        """They have closed it, too."""
        self._answers()

    def _feeding(self, cursor: Cursor) -> Callable[[], Any]:
        """Fetch for all ranks."""
        shares = [Share(rank, self.world, self.in_parts) for rank in range(self.world)]
        members = self._members()

        def fetch() -> Any:
            batch = cursor.fetch()
            if batch is END:
                for member in members:
                    member.send("over")
                return END
            for member, share in zip(members, shares[1:], strict=True):
                part = share.of_batch(batch)
                member.send("empty") if part is EMPTY else member.hand(part)
            return shares[0].of_batch(batch)

        return fetch

    # State -------------------------------------------------------------------------------------------

    def capture(self, parts: dict[str, Any]) -> None:
        """Add to a captured state what they alone know."""
        own = self._own
        with self._lock:
            if self._whole is not None:
                self._whole.complete(parts)
            if self.crew is not None and self.dead is None and not self._stale and not self._broken:
                own = [{"window": parts["window"]}, *self._ask("own")]
        if own is not None:
            if self._whole is not None:  # it is rank 0's, wherever the state goes
                own[1:] = [{**each, "window": nothing_of(parts["window"])} for each in own[1:]]
            parts["window"] = joined(parts["window"], own[1:])
            parts[OWN] = {"world": self.world, "each": own}

    @property
    def in_parts(self) -> bool:
        """Whether each of them has but its part of the weights while they train."""
        return self._whole is not None

    def whole(self, *, at_last: bool = False) -> None:
        """Have all weights here, until the next step.

        Args:
            at_last: a run is over. Where that cannot be, it is told of by the next verb.

        Raises:
            StateError: not all parts are left.
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
        """The same for somebody who looks at them in a run, unless the others are in steps."""
        if not self._waiting:
            self.whole()

    def lay_down(self) -> None:
        """A whole state is about to be put here: whatever it held is of no use."""
        if self._whole is not None:
            self._whole.parts.make_whole()
            self._whole.lost = ""

    def put_back(self, state: State) -> None:
        """Rank 0 stands at this state now."""
        kept = state.parts.get(OWN)
        self._own = None
        if kept is not None and kept["world"] == self.world:
            self._own = list(kept["each"])
            if self._whole is None:
                self.replica.parts["window"].restore(self._own[0]["window"])
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
        """Say it to all; the answers are for later."""
        for member in self._members():
            member.send(verb, *arguments)
            self._waiting.append(member)

    def _ask(self, verb: str, *arguments: Any) -> list[Any]:
        self._tell(verb, *arguments)
        return self._answers()

    def _answers(self) -> list[Any]:
        """What each has answered. The first that failed is raised, once all are heard."""
        found: list[Any] = []
        while self._waiting:
            member = self._waiting.pop(0)  # whatever comes of it, there is one answer
            answer = member.answer()
            if isinstance(answer, Failed):
                raise Lost(member, answer)
            found.append(answer)
        return found

    def _await(self) -> None:
        """Until all have answered. Another rank may hang: here a person may break it off, and not where an
        answer is half read."""
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
        """Before the loop goes on: they stand where rank 0 does, which may have gone back meanwhile."""
        self._heal()
        if self._stale:
            self._synchronise()
            self._ask("enter", self._changes)
        self._in_step()

    def _in_step(self) -> None:
        """They go on after a look, for which rank 0 had everything whole."""
        if self._whole is not None and not self._whole.parts.divided:
            self._synchronise()

    def _heal(self) -> None:
        """Whatever was broken off is over on all sides."""
        if self._waiting:
            self.fault(Severed("broken off"))
        if self.dead is not None:
            raise self.dead

    def _synchronise(self) -> None:
        """Have them stand where rank 0 stands. Rank 0 may have been changed by hand meanwhile."""
        if self._reducer.group is None or (not self._sized and "train" in self.replica.loop.passes):
            self._meet()
        keeps = False
        if not self._stale:
            keeps = self._stale = self._differ(self._ask("print"))
        if self._stale:
            told = told_by(self.replica)
            rng = self.replica.rng.capture()
            for member in self._members():
                own = self._own[member.rank] if self._own is not None else None
                parts = told if self._whole is None else self._whole.cut(told, member.rank)
                member.send("take", parts, own, seed_of(rng, member.rank), keeps)
                self._waiting.append(member)
            self._answers()
            self._own, self._stale = None, False
        self._agreed = self.replica.loop.iteration
        if isinstance(self._reducer, InParts) and self._whole is not None:
            self._whole.parts.divide(self._reducer)

    def _differ(self, prints: Sequence[int]) -> bool:
        """Whether a person has changed anything here meanwhile."""
        if self._whole is not None:
            return [self._whole.print(rank) for rank in range(1, self.world)] != prints
        mine = fingerprint(self.replica)
        return any(each != mine for each in prints)

    def _meet(self) -> None:
        """Make a group to sum in."""
        self._reducer.sever()
        loop, crew = self.replica.loop, self._crew()
        crew.generation += 1
        place, generation = crew.engines.place, crew.generation
        self._sized = "train" in loop.passes
        reference = _reference(loop.passes["train"].cursor.loader, self.world) if self._sized else 1.0
        self._tell("meet", place, generation, self.world, reference)
        group = process_group(self.devices[0], place, generation, 0, self.world)
        self._reducer = (Reducer if self._whole is None else InParts)(group, reference)
        loop.update.join(self._reducer)
        self._answers()

    # Failure -----------------------------------------------------------------------------------------

    def fault(self, error: BaseException) -> BaseException:
        """This rank cannot go on: no other one waits for it any more. Gives what it all began with."""
        if isinstance(error, RankDied):
            return error
        failed = [(error.member, error.answer)] if isinstance(error, Lost) else []
        hurried = isinstance(error, KeyboardInterrupt)
        if hurried:
            self._end_those_who_hang()
        self._reducer.sever()
        self._stale = True
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
            with suppress(Dead):  # who had answered before has not heard yet that it is over
                member.send("break")
        if dead:
            self.dead = self._died(dead[0])
            return self.dead
        causes = [(member, answer) for member, answer in failed if not answer.severed]
        if causes and isinstance(error, (Severed, Lost)):
            return exception_of(*causes[0])
        return error

    def _end_those_who_hang(self) -> None:
        """A person breaks off a step in which the ranks wait for a sum. If it comes, all is well."""
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


class RankTour:
    """Ranks 1 and up, each with its part of every batch."""

    def __init__(self, fleet: Fleet, what: str, packed: bytes, cursor: Cursor, fed: bool) -> None:
        self.cursor = cursor
        self.fetch: Callable[[], Any] = fleet._feeding(cursor) if fed else cursor.fetch_share
        self._fleet, self._what = fleet, what
        self._packed, self._fed = packed, fed

    def open(self, epoch: int) -> None:
        """They stand before the first batch, with rank 0's buffers."""
        fleet = self._fleet
        fleet._tell("tour", self._packed, epoch, None if self._fed else self.cursor.start_on_host())
        buffers_of_rank_0(fleet.replica.loop, fleet._reducer)
        fleet._answers()

    def begin(self, count: int) -> None:
        """They take so many batches."""
        self._fleet._tell("batches", count)

    def gather(self, count: int) -> Sequence[Any]:
        """What they found in them."""
        self._fleet._await()
        found = self._fleet._answers()
        taken = [each.steps if isinstance(each, Rows) else len(each) for each in found]
        if wrong := [each for each in taken if each != count]:
            raise StateError(
                f"{self._what}: rank 0 took {count} batches, another one {wrong[0]}: their data differ"
            )
        return found

    def fault(self, error: BaseException) -> BaseException:
        """Nobody waits for this rank any more; gives what it all began with. Where all stand at a boundary
        nothing is wrong with them."""
        fleet = self._fleet
        cause = fleet.fault(error) if fleet._waiting or isinstance(error, Severed) else error
        if isinstance(cause, CannotBeCut) and self.cursor.walks_again:
            return Alone(str(cause))
        return cause


def _reference(loader: Any, world: int) -> float:
    """A power of two near a rank's share of a batch, so that gradients are of their usual size while they are
    summed; a loss scale of fp16 depends on that."""
    size = getattr(loader, "batch_size", None)
    share = size // world if isinstance(size, int) else 1
    return float(1 << (max(share, 1).bit_length() - 1))
