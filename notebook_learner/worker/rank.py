"""A rank other than rank 0, in its own process: it obeys rank 0, and only between steps.

It runs in a thread, so that the engine's own shell answers meanwhile. If rank 0 ends without a message, this
process ends, too, after a moment.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch

from ..carried.part import Moved
from ..data.sampling import END
from ..errors import StateError
from ..evaluation.prediction import Asking
from ..evaluation.set_pass import Measuring, beside
from ..learner.core import OfOneLearner
from ..learner.learner import Learner
from ..ranks.channel import Channel, EncryptedDoor, Gone, RankDoor, come_through, come_to
from ..ranks.engines import Known, end_processes, family_of
from ..ranks.process_settings import surround, versions
from ..ranks.rank_processes import Failed
from ..ranks.rank_steps import RankClock, buffers_of_rank_0, from_rank_0, ranked, share_for
from ..ranks.recipe import Recipe
from ..ranks.reduction import Reducer, Severed
from ..ranks.rendezvous import Rendezvous, process_group
from ..ranks.shipping import Here, names_of, pack, unpack
from ..ranks.state_transfer import fingerprint, own_of, take
from ..ranks.weight_parts import InParts, Parts
from ..run.control import Control
from ..run.loop import BlockPace
from ..run.rank_protocol import Place
from ..run.unheard import unheard
from ..state.parts import CursorPart
from ..step.optimizers import each_of
from ..step.schedule import report_steps, set_rates
from ..trial.changes import Changes, changed

IN_USE: dict[int, Follower] = {}
"""The followers of this process, by rank, for a user who looks into an engine."""


class BrokenOff(Exception):
    """Rank 0 has given up the block of steps."""


def begin(door: Iterable[Any], rank: int, threads: int, helpers: Iterable[tuple[int, float]]) -> int:
    """Follow a rank 0 of this machine in a thread of this process; return the process's number."""
    return follow(Follower(come_to(RankDoor(*door)), rank, [Known(*each) for each in helpers]), threads)


def follow(follower: Follower, threads: int) -> int:
    """Answer rank 0 in a thread; return the process's number."""
    IN_USE[follower.rank] = follower
    threading.Thread(
        target=follower.serve, args=(threads,), name="notebook_learner rank", daemon=True
    ).start()
    return os.getpid()


class Follower:
    """Rank 1 or higher."""

    def __init__(self, channel: Channel, rank: int, helpers: list[Known]) -> None:
        self.channel = channel
        self.rank = rank
        self.learner: Learner | None = None
        self._helpers = helpers
        """The processes that end with this rank, if rank 0 is gone."""
        self._meant: dict[str, Any] = {}
        self._reducer: Reducer = Reducer(None, 1.0)
        self._parts: Parts | None = None
        """Set if this rank has only a part of the weights."""
        self._fed: dict[str, Fed] = {}
        self._entered = False
        self._trying = ExitStack()
        """What to undo after steps with changes, or after a set; closed at their end."""
        self._on_tour: Any = None
        """The function that fetches the set's batches, and the work that takes them."""
        self._failing: tuple[Place, Any] | None = None
        """The place of a failed step, and its batch; the steps before it may be replayed meanwhile."""
        self._verbs: dict[str, Callable[..., Any]] = {
            "settings": surround,
            "make": self._make,
            "classes": self._classes,
            "data": self._data,
            "functions": self._functions,
            "meet": self._meet,
            "print": lambda: fingerprint(self._replica),
            "take": self._take,
            "enter": self._enter,
            "leave": self._leave,
            "open": self._open,
            "steps": self._steps,
            "close": self._close,
            "own": lambda: own_of(self._replica),
            "pieces": self._pieces,
            "hand over": self._hand_over,
            "memory": self._memory,
            "inspect": self._inspect,
            "tour": self._tour,
            "batches": self._batches,
        }

    def serve(self, threads: int) -> None:
        """Answer rank 0 until it says that it is over."""
        torch.set_num_threads(threads)
        import socket

        try:
            self.channel.send((self.rank, os.getpid(), socket.gethostname(), versions()))
            while True:
                verb, arguments = self.channel.receive()
                if verb == "end":
                    return self._end()
                if verb == "break":  # rank 0 gave up a block that is over here already
                    self._trying.close()
                elif verb not in ("batch", "over"):  # leftovers of a block that failed here
                    self.channel.send_bytes(self._answer(verb, arguments))
        except Gone:
            self._vanish()

    def _answer(self, verb: str, arguments: tuple[Any, ...]) -> bytes:
        try:
            return pack(self._verbs[verb](*arguments))
        except Gone:
            raise
        except BaseException as error:
            self._reducer.sever()  # the other ranks wait for this rank's part no more
            failed = self._failed(error)
            self._trying.close()
            return pack(failed)

    def _failed(self, error: BaseException) -> Failed:
        text = "".join(traceback.format_exception(error))
        rows = None
        with suppress(Exception):
            self._failing = self._replica.loop.place, self._replica.loop.batch
        with suppress(Exception):
            group, loop = self._replica.loop.current.metrics, self._replica.loop
            group.keep(loop.unread)
            rows = group.rows()
        sent = None
        with suppress(Exception):
            error.__traceback__ = None  # the text has it; the objects in its frames stay here
            sent = pack(error)
        return Failed(sent, text, isinstance(error, (Severed, BrokenOff)), rows)

    def _end(self) -> None:
        """Do nothing: rank 0 does not need this rank any more, and ends the process."""

    def _vanish(self) -> None:
        """End all that belongs to the training, after rank 0 died."""
        with suppress(Exception):
            own = family_of(os.getpid())[1:]  # its nanny, and a loader's workers
            end_processes([*self._helpers, *own])
        os._exit(1)

    # What it is made of ------------------------------------------------------------------------------

    @property
    def _replica(self) -> Any:
        if self.learner is None:
            raise StateError("rank 0 has not set this rank up yet")
        return self.learner._replica

    def _make(self, path: list[str], folder: str, recipe: bytes) -> dict[str, str]:
        from ..learner.wiring.assembly import assemble  # it knows about fleets of ranks

        self._see(path, folder)
        made: Recipe = unpack(recipe, {"the learner": Here(self)})
        if self._entered:  # its last run was broken off, and nobody told this rank to leave it
            self._leave()
        if self.learner is not None:
            self.learner._driver.belongs_to_nobody()
            self.learner._replica.let_go()
        report_steps(each_of(made.optimizer))
        self._device = torch.device(made.settings.devices[0])
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        self.learner = assemble(made.settings, made.model, made.optimizer, made.scheduler, None, None)
        self.learner._driver.belongs_to_this_thread()
        share = made.settings.share
        self._parts = None
        if made.settings.in_parts and share is not None:
            self._parts = Parts(self._replica, share.rank, share.world)
        reached = self._replica.carried.of_models()
        self._meant = names_of(self._replica.loop.update, Here(self))[1] | reached
        loop = self._replica.loop
        loop.control = Control()
        self._fed = {}
        return {name: type(each).__qualname__ for name, each in reached.items()}

    def _see(self, path: list[str], folder: str) -> None:
        """Find modules and files as the notebook does."""
        sys.path[:] = path
        os.chdir(folder)

    def _classes(self, packed: bytes) -> None:
        """Let layers, by name, run other code from here on."""
        assert self.learner is not None
        if self._parts is not None:  # torch has replaced their classes by its own
            self._parts.make_whole()
        update = self._replica.loop.update
        for model in (update.model, *([] if update.average is None else [update.average.module])):
            layers = dict(model.named_modules())
            for name, kind in unpack(packed).items():
                layers[name].__class__ = kind
        supplies: Any = self.learner._supplies
        supplies.renew()

    def _data(self, split: str, given: bytes | None, there: Moved) -> None:
        """The data of a split: a loader of its own, or None if rank 0 hands over each part."""
        learner, loop = self.learner, self._replica.loop
        assert learner is not None
        supplies: Any = learner._supplies
        if given is not None:
            self._fed.pop(split, None)
            with self._replica.carried.brought_again(there):
                supplies.use(learner, split, unpack(given, self._meant))
            return
        supplies.use(learner, split, [])
        fed = self._fed[split] = Fed(self.channel)
        loop.passes[split].cursor = fed
        self._replica.parts[f"data {split}"] = CursorPart(lambda: fed, lambda: 0)  # type: ignore[arg-type,return-value]

    def _functions(self, functions: bytes, num_epochs: int, there: Moved) -> None:
        learner = self.learner
        assert learner is not None
        supplies: Any = learner._supplies
        with self._replica.carried.brought_again(there):
            for split, function in unpack(functions, self._meant).items():
                supplies.use_step(split, self._own(function))
        self._replica.loop.num_epochs = num_epochs

    def _own(self, function: Any) -> Any:
        """A step, which may know its learner."""
        return function.of(self.learner) if isinstance(function, OfOneLearner) else function

    def _meet(self, place: Rendezvous, generation: int, world: int, reference: float) -> None:
        self._reducer.sever()
        group = process_group(self._device, place, generation, self.rank, world)
        if self._parts is not None:  # leftovers of a broken-off step; rank 0 has the right ones
            self._parts.make_whole()
        self._reducer = (Reducer if self._parts is None else InParts)(group, reference)
        self._replica.loop.update.join(self._reducer)

    def _take(self, parts: Mapping[str, Any], own: Mapping[str, Any] | None, seed: int, keeps: bool) -> None:
        stood = self._replica.loop.place
        if self._parts is not None and not self._parts.divided:
            assert isinstance(self._reducer, InParts)
            self._parts.divide(self._reducer)
        if keeps and own_of(self._replica)["window"]["count"] == parts["window"]["count"]:
            own = own_of(self._replica)  # the user changed something here; the rank's own parts stay
        take(self._replica, parts, own, seed, divided=self._parts is not None)
        if self._replica.loop.place != stood:
            self._replica.loop.batch = None

    def _pieces(self) -> tuple[int, int, dict[str, Any]]:
        assert self._parts is not None and isinstance(self._reducer, InParts)
        return self._reducer.begun, self._reducer.ended, self._parts.captured()

    def _hand_over(self) -> tuple[int, int, dict[str, Any]]:
        """The pieces, for a rank 0 that has all of them from then on; with the samples of an open window."""
        pieces = self._pieces()
        update = self._replica.loop.update
        update._total = update._total * 0
        return pieces

    # A run -------------------------------------------------------------------------------------------

    def _enter(self, changes: bytes | None) -> None:
        self._trying.close()
        if not self._entered:  # else a run was broken off, and its stream was put right
            self._replica.rng.enter()
        self._entered = True
        self._replica.carried.begin()
        if changes is not None:
            self._trying.enter_context(
                changed(self._replica.loop, self._meant_here(unpack(changes, self._meant)))
            )
        self._replica.loop.look_around()

    def _meant_here(self, changes: Changes) -> Changes:
        values = dict(changes.values)
        if "train_step" in values:
            values["train_step"] = self._own(values["train_step"])
        if "train" in self._fed:  # rank 0 hands out the parts
            values.pop("batch", None)
        return replace(changes, values=values)

    def _leave(self) -> None:
        self._trying.close()
        self._on_tour = None
        self._entered = False
        self._replica.carried.rest()
        if self._failing is not None and self._failing[0] != self._replica.loop.place:
            self._failing = None
        self._replica.rng.leave()
        self._replica.loop.modes.remember()

    def _open(self, place: Place, start: Mapping[str, Any] | None, total: int | None) -> None:
        loop = self._replica.loop
        self._require_at(place)
        current = loop.current
        if place.split in self._fed:
            self._fed[place.split].total = total
        if place.done == 0:
            if start is None:
                current.cursor.begin(place.epoch)
            else:
                current.cursor.begin_as(place.epoch, start)
            current.metrics.reset()
        loop.modes.enter(place.split)
        loop._open = True
        share_for(loop, self._reducer)

    def _steps(self, place: Place, count: int, rates: Sequence[float] | None, again: bool) -> Any:
        loop = self._replica.loop
        self._require_at(place)
        if rates is not None:
            set_rates(loop.update.optimizer, rates)
        current = loop.current
        cursor = current.cursor
        fed = place.split in self._fed
        fetch = from_rank_0(cursor.fetch, self._reducer) if fed else cursor.fetch_share
        clock = RankClock(self._reducer)
        hands = ranked(fetch, current.step, current.metrics, self._reducer, loop.update.model)
        with unheard() if again else nullcontext():
            loop._steps(count, hands)
        loop._read = loop.done
        return replace(current.metrics.rows(), seconds=clock.seconds())

    def _close(self, finals: Mapping[str, float]) -> None:
        self._replica.loop.finish_split(finals)

    # Other data --------------------------------------------------------------------------------------

    def _tour(self, packed: bytes, epoch: int, start: Mapping[str, Any] | None) -> None:
        """Go to the first batch of a set. All changes to this rank there are taken back afterwards."""
        assert self.learner is not None
        supplies: Any = self.learner._supplies
        task, split = unpack(packed, self._meant)
        loader = task.loader if split is None else supplies.given()[split]
        cursor: Any = Fed(self.channel) if start is None else supplies.cursor_for(loader, task.what, "share")
        self._trying.close()
        self._trying.enter_context(beside(self._replica, cursor, task.what))
        work: Measuring | Asking
        if task.metrics is None:
            forward, function = self._own(task.forward), self._own(task.function)
            work = Asking(supplies.prediction_step(forward), function)
        else:
            visit = self._replica.loop.visit
            work = Measuring(supplies.validation_step(task.what), task.metrics, BlockPace(), visit)
        if start is not None:
            cursor.begin_as(epoch, start)
        self._on_tour = cursor.fetch if start is None else cursor.fetch_share, work
        buffers_of_rank_0(self._replica.loop, self._reducer)

    def _batches(self, count: int) -> Any:
        fetch, work = self._on_tour
        for _ in range(count):
            batch = fetch()
            if batch is END:
                break
            work.take(batch)
        return work.told()

    def _require_at(self, place: Place) -> None:
        here = self._replica.loop.place
        if here != place:
            raise StateError(f"rank {self.rank} stands at {here}, rank 0 at {place}")

    def _inspect(self, packed: bytes) -> Any:
        from ..trial.inspect_step import inspect_step  # it loads all that a report needs

        assert self.learner is not None
        batch, tokenizer = unpack(packed, self._meant)
        if batch is None and self._failing is not None and self._failing[0] == self._replica.loop.place:
            batch = self._failing[1]
        comes = isinstance(batch, str) or (batch is None and self._replica.loop.batch is None)
        if comes and "train" in self._fed:
            raise StateError(
                "rank 0 hands out the batches of this loader, so another rank does not know the one to come; "
                "take a step first, or give a batch: inspect(batch, rank=...)"
            )
        seen = inspect_step(self._replica, batch, tokenizer, self.learner._supplies.loss)
        return replace(seen, place=f"{seen.place}, rank {self.rank}", rank=self.rank)

    def _memory(self) -> dict[str, Any]:
        import psutil

        found = {"host": psutil.Process().memory_info().rss, "step": self._replica.loop.iteration}
        device = self._device
        if device.type == "cuda":
            found["device"] = torch.cuda.memory_allocated(device)
        return found


class Fed:
    """Stands in for a cursor: rank 0 walks the loader and hands over this rank's part of each batch."""

    walks_again = goes_back = True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.loader: list[Any] = []
        self.source = self._start = self._began = None
        self.epoch = 1
        self.total: int | None = None
        self.walk = _NoWalk()

    def fetch(self) -> Any:
        """The next part that rank 0 hands over."""
        verb, arguments = self._channel.receive()
        if verb == "break":
            raise BrokenOff("rank 0 has given the block up")
        return END if verb == "over" else arguments[0]

    def begin(self, epoch: int) -> None:
        """Do nothing: there is no position here."""
        self.epoch = epoch

    def capture(self, step: int) -> None:
        """Nothing is captured: rank 0 has the place."""

    def restore(self, state: None) -> None:
        """Nothing is restored."""

    def _stream_now(self) -> None:
        """Do nothing: another loader that takes its place has no stream to go on with."""

    def drop(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    def drop_if_broken(self, step: int) -> None:
        """Do nothing: nothing can be broken here."""


class _NoWalk:
    cuts = False
    generators = ()


_GRACE = 10.0
"""Seconds that a rank has to leave a step in which it waits for others, after rank 0 is gone."""


def begin_in_engine(door: tuple[str, bytes, bytes, bytes], rank: int, beside: int) -> int:
    """Follow rank 0 in a thread of this process; return the process's number.

    Args:
        door: where this rank connects to rank 0.
        rank: the number of this rank.
        beside: the number of ranks on this machine, which share its cores.
    """
    for earlier in _EARLIER:
        earlier.over()  # it may hang in a sum of a lost training, and must not end this process
    left = _Left()
    _EARLIER[:] = [left]
    try:
        channel = come_through(EncryptedDoor(*door), left.behind)
    except ConnectionError:
        left.over()
        raise
    return follow(FollowerElsewhere(channel, rank, left), threads_of_one(beside))


def threads_of_one(beside: int) -> int:
    """Count the threads for one of several ranks on this machine. Slurm may have given the job a part of the
    cores, and each rank its own part of those."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    given = int(os.environ.get("SLURM_CPUS_ON_NODE", cores))
    return cores if cores < given else max(1, given // beside)


class FollowerElsewhere(Follower):
    """Rank 1 or higher, on a machine of its own: rank 0 cannot end it, and its files may be in another
    place."""

    def __init__(self, channel: Channel, rank: int, left: _Left) -> None:
        super().__init__(channel, rank, [])
        self._left = left

    def _see(self, path: list[str], folder: str) -> None:
        sys.path.extend(each for each in path if each not in sys.path and os.path.isdir(each))
        if os.path.isdir(folder):
            os.chdir(folder)

    def _end(self) -> None:
        self.channel.close()
        self._left.over()

    def _vanish(self) -> None:
        self._reducer.sever()
        self._left.over()


class _Left:
    """What happens to this process when rank 0 does not need it any more: it belongs to the user, and lives
    on."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def behind(self) -> None:
        """End all that belongs to the training, when rank 0 cannot be reached."""
        if self._ended.wait(_GRACE):
            return
        # The rank waits in a sum and does not see that rank 0 is gone.
        with suppress(Exception):
            end_processes(family_of(os.getpid())[1:])  # its nanny, and a loader's workers
        os._exit(1)

    def over(self) -> None:
        """The follower is done."""
        self._ended.set()


_EARLIER: list[_Left] = []
"""The rank that this process was before, for another training."""
