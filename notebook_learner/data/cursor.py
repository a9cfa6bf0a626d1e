"""The data cursor: which batch comes next, exactly, and how to come back to it.

A loader draws its order and its workers' seeds when iteration *starts*. So a position needs two random
states: the one at the epoch's start, and the one now. To come back, the cursor sets the first state, starts
iterating, lets the order be drawn, skips by drawing indices (no sample is loaded only to be dropped), sets
the second state, and goes on.

With `.seed()` the cursor controls all randomness of the data. The order is a function of (seed, epoch), and
the randomness of each sample is one of (seed, epoch, its place in the order). So neither the number of
workers nor the place of a stop matters. Without `.seed()` the cursor draws nothing that a hand-written loop
would not draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch

from ..errors import StateError
from .in_memory import OnDevice
from .loader_walk import Walk, length_of
from .rank_share import Several, Share, per_device
from .rng import (
    HostMemory,
    HostRng,
    Rng,
    capture_generators,
    capture_host,
    capture_rng,
    host_rng_kept,
    mix,
    restore_generators,
    restore_host,
    restore_rng,
    seed_host,
)
from .sampling import END
from .sources import UsedUpWalk, walk_of
from .stop_iteration import end_of, next_of

Tell = Callable[[str], None]


class Carried(Protocol):
    """What the steps of a training change outside of it: a sampler may depend on that."""

    def look(self) -> Any:
        """Take it."""

    def give(self, look: Any, /) -> None:
        """Put it back."""

    def of_file(self, state: Any, /) -> Any:
        """What `look` gave, after a way through a file."""


class _Nothing:
    def look(self) -> Any:
        return None

    def give(self, look: Any, /) -> None:
        pass

    def of_file(self, state: Any, /) -> Any:
        return None


def _unwatched(walk: Walk) -> None:
    pass


class Cursor:
    """Walks one loader, epoch by epoch, and can go to any batch of an epoch.

    >>> cursor = Cursor([10, 20, 30])
    >>> cursor.begin(epoch=1)
    >>> cursor.fetch(), cursor.fetch()
    (10, 20)
    >>> cursor.stand_at(1)
    >>> cursor.fetch()
    20

    Args:
        devices: more than one if a loader's batch is for one device, and a step takes this many batches.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        seed: int | None = None,
        tell: Tell = lambda text: None,
        share: Share | None = None,
        devices: int = 1,
        carried: Carried | None = None,
    ) -> None:
        self.carried = carried or _Nothing()
        self._began: Any = None
        """What steps had changed outside when the epoch began: its order may depend on it."""
        self.source = loader
        self.devices, self.share = devices, share
        self.loader, self.each = per_device(loader, devices)
        self.tell = tell
        self.seed = seed
        self.first_epoch = 0
        """The number that samplers get for the first epoch."""
        self.home: OnDevice | None = None
        """Where data that lie in memory are copied to."""
        self.watch: Callable[[Walk], None] = _unwatched
        """Has a walk watch what draws from the generators of its data, in a run without a seed."""
        self.walk = self._walk()
        self._coming: tuple[int | None] | None = None
        """Another seed, from the next epoch on."""
        self.epoch = 1
        self._skip = 0
        self._start: _Start | None = None
        self._follows = False
        """Whether the start is another rank's: then an epoch begins from that start, and not from now."""
        self._stream: HostRng | None = None
        self._warm: bool | None = None
        """Whether persistent workers have to be under way when the next epoch begins, if the place was taken
        from a state or the workers were released since; None: as they are."""
        self._inner: Iterator[Any] | None = None
        self._iterator: Iterator[Any] | None = None

    @property
    def total(self) -> int | None:
        """The number of batches in an epoch, if the loader knows it."""
        length = length_of(self.loader)
        return length if length is None else -(-length // self.each)

    @property
    def walks_again(self) -> bool:
        """Whether the loader can be walked twice: a generator cannot."""
        return not isinstance(self.loader, Iterator)

    @property
    def goes_back(self) -> bool:
        """Whether it can be walked again from a place in this epoch."""
        return self.walks_again or isinstance(self.walk, UsedUpWalk)

    @property
    def kept_bytes(self) -> int:
        """The memory that is kept for a return into an epoch: its order."""
        return self.walk.kept_bytes

    def begin(self, epoch: int) -> None:
        """Go to the place before the first batch of an epoch."""
        self.drop()
        if self._coming is not None:
            (seed,), self._coming = self._coming, None
            self.use_seed(seed)
        self.epoch = epoch
        self._skip = 0
        self._start = self._began = None
        self._stream = None
        self._follows = False

    def use_seed(self, seed: int | None) -> None:
        """Read with another seed, or without one, from the next fetch on."""
        if seed == self.seed:
            return
        former, self.seed = self.seed, seed
        self.drop()
        if (former is None) != (seed is None):
            self.walk.set_warm(False)
            self.walk = self._walk()

    def use_seed_later(self, seed: int | None) -> None:
        """Read with another seed from the next epoch on: this one has its order."""
        self._coming = (seed,)

    def _walk(self) -> Walk:
        walk = walk_of(self.loader, self.seed is not None, self.share)
        walk.tell, walk.first_epoch, walk.home = self.tell, self.first_epoch, self.home
        if self.seed is None:
            self.watch(walk)
        return walk

    def fetch(self) -> Any:
        """Return the next batch, or END."""
        iterator = self._iterator
        if iterator is None:
            iterator = self._iterator = self._open()
        if self.each == 1:
            try:  # not by a call of `next_of`, which costs 50 ns a step
                return next(iterator)
            except StopIteration as stop:
                return end_of(stop)
        batches = Several()
        while len(batches) < self.each and (batch := next_of(iterator)) is not END:
            batches.append(batch)
        return batches or END

    def fetch_one(self) -> Any:
        """Return the next batch, to look at: this device's part of it, or this device's own batch of
        several."""
        batch = self.fetch_share()
        return batch[0] if type(batch) is Several else batch

    def fetch_share(self) -> Any:
        """Return this rank's part of the next batch: Idle if it has no sample; or END."""
        batch = self.fetch()
        return END if batch is END else self.walk.mine(batch)

    def start(self) -> dict[str, Any]:
        """Return the states that the order of the next epoch will be drawn from."""
        return dict(_Start(capture_rng(), self._generator_states(), self._is_warm).plain)

    def start_on_host(self) -> dict[str, Any]:
        """Return the same for other processes: an order is drawn on the host."""
        start = self.start()
        return {**start, "rng": {**start["rng"], "cuda": ()}}

    def begin_as(self, epoch: int, start: Mapping[str, Any]) -> None:
        """Go to the place before the first batch of an epoch that another rank has begun, in the same order.
        The random stream of this process does not move."""
        self.begin(epoch)
        self._start, self._follows = _Start.of(start), True

    def stand_at(self, step: int) -> None:
        """Go to the place after `step` batches of this epoch; the next fetch does the skipping."""
        self.drop()
        self._skip = step
        self._stream = None
        if step == 0:
            self._start = self._began = None

    def reopen(self, step: int) -> None:
        """Stay after `step` batches, at the current place, but read from there again: workers may have
        fetched ahead what has been repaired since then, or may be gone."""
        stream = self._stream_now()
        self.stand_at(step)
        self._stream = stream if step else None

    def take_over(self, other: Cursor, step: int) -> None:
        """Take the place of another loader's cursor: the cell that makes the loaders was run again."""
        self.epoch, began = other.epoch, other._began
        stream = other._stream_now()
        if other._start is not None:
            self._start = replace(other._start, generators=self._generator_states(), warm=False)
        elif step:
            self._start = _Start(capture_rng(), self._generator_states(), False)
        self.stand_at(step)
        self._stream = stream if step else None
        self._began = began

    def drop(self) -> None:
        """Release the live iterator and its worker processes."""
        inner, self._iterator, self._inner = self._inner, None, None
        self.walk.end(inner)

    def close(self) -> None:
        """Release everything, also persistent workers. The next epoch begins as if they had lived on."""
        self._warm = self._is_warm
        self.drop()
        self.walk.set_warm(False)

    def drop_if_broken(self, step: int) -> None:
        """Replace worker processes that died in a pause (a kernel's interrupt signal reaches the whole
        process group)."""
        workers = getattr(self._inner, "_workers", None)
        if workers and not all(worker.is_alive() for worker in workers):
            self.reopen(step)

    # State -------------------------------------------------------------------------------------------

    def capture(self, step: int) -> dict[str, Any]:
        """Return the loader's place after `step` batches."""
        inside = step > 0
        stream = self._stream_now() if inside else None
        return {
            "epoch": self.epoch,
            "step": step,
            "devices": self.devices,
            "seed": self.seed,
            "start": self._start.plain if inside and self._start is not None else None,
            "stream": stream.plain() if stream is not None else None,
            "warm": self._is_warm,
            "generators": self._generator_states(),
            "loader": self.walk.capture(inside),
            "began": self._began if inside else None,
        }

    def require(self, state: Mapping[str, Any]) -> None:
        """Raise if the cursor cannot go back to that place."""
        devices = state.get("devices", 1)
        if state["step"] and devices != self.devices:
            raise StateError(
                f"the state is inside an epoch whose steps take {_batches(devices)}, and here they take "
                f"{_batches(self.devices)}: go on with as many devices, or from the end of an epoch"
            )

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a captured place."""
        self._coming = None
        self.begin(state["epoch"])
        self.use_seed(state.get("seed", self.seed))  # an earlier version kept none
        self._skip = state["step"]
        self._start = None if state["start"] is None else _Start.of(state["start"])
        self._stream = None if state["stream"] is None else HostRng.of(state["stream"])
        self._warm = state["warm"]
        restore_generators(self.walk.generators, state["generators"])
        self.walk.restore(state["loader"])
        began = state.get("began")
        self._began = None if began is None else self.carried.of_file(began)

    def _generator_states(self) -> tuple[torch.Tensor, ...]:
        return capture_generators(self.walk.generators)

    @property
    def _is_warm(self) -> bool:
        return self.walk.warm if self._warm is None else self._warm

    def _stream_now(self) -> HostRng | None:
        return self._iterator.stream if isinstance(self._iterator, _Isolated) else self._stream

    # Opening -----------------------------------------------------------------------------------------

    def _open(self) -> Iterator[Any]:
        self.walk.set_epoch(self.epoch)
        if self._skip == 0 or self._began is None:
            self._began = self.carried.look()
            return self._opened()
        now = self.carried.look()
        self.carried.give(self._began)
        try:
            return self._opened()
        finally:
            self.carried.give(now)

    def _opened(self) -> Iterator[Any]:
        if self.seed is not None:
            iterator = self._open_seeded(self.seed)
        elif self._skip == 0 and not self._follows:
            iterator = self._open_fresh()
        else:
            iterator = self._open_again()
        self._warm = None  # the workers that read from here on are those of the next epoch
        return iterator

    def _open_fresh(self) -> Iterator[Any]:
        """Start as a hand-written `for batch in loader` does, without drawing anything more."""
        if self._warm is not None and self._warm != self.walk.warm:
            now, generators_now = capture_rng(), self._generator_states()
            self.walk.set_warm(self._warm)
            restore_rng(now)
            restore_generators(self.walk.generators, generators_now)
        self._start = _Start(capture_rng(), self._generator_states(), self.walk.warm)
        return self._begun(self.walk.iterate(0))

    def _open_again(self) -> Iterator[Any]:
        """Come back to the middle of an epoch, by the two states that the module's docstring describes."""
        start = self._start
        assert start is not None, "a position inside an epoch has the epoch's start"
        now, generators_now = capture_rng(), self._generator_states()
        self.walk.set_warm(start.warm)
        restore_rng(start.rng)
        restore_generators(self.walk.generators, start.generators)
        iterator = self._skipped()
        self.walk.draw_order()
        restore_rng(now)
        restore_generators(self.walk.generators, generators_now)
        return self._begun(iterator)

    def _open_seeded(self, seed: int) -> Iterator[Any]:
        base = mix(seed, self.epoch)
        with host_rng_kept():
            seed_host(base)
            for generator in self.walk.generators:
                generator.manual_seed(base)
            iterator = self._skipped(base) if self._skip else self.walk.iterate(0, base)
            stream = self._stream or capture_host()
        self._begun(iterator)
        return iterator if self.walk.quiet else _Isolated(iterator, stream, self.walk.seeds_all)

    def _begun(self, iterator: Iterator[Any]) -> Iterator[Any]:
        self._inner = iterator
        return iterator

    def _skipped(self, base: int | None = None) -> Iterator[Any]:
        """An iterator that is at the place after `_skip` steps."""
        batches = self._skip * self.each
        if self.walk.skips:
            return self.walk.iterate(batches, base)
        if batches > 100:
            self.tell(
                f"reading {batches:,} batches again to come back to step {self._skip:,}: {self.walk.why}"
            )
        iterator = self._inner = self.walk.iterate(0, base)
        for _ in range(batches):
            if next_of(iterator) is not END:
                self.walk.mine(None)
        return iterator


def _batches(devices: int) -> str:
    return "one batch" if devices == 1 else f"{devices} batches, one for each device"


@dataclass(frozen=True)
class _Start:
    """The random states that an epoch's order was drawn from."""

    rng: Rng
    generators: tuple[torch.Tensor, ...]
    warm: bool

    @cached_property
    def plain(self) -> Mapping[str, Any]:
        """Return a dict that a checkpoint can hold. Every state inside the epoch has it. It is made once, so
        it costs a keyframe no time, and its memory only once for all keyframes."""
        return {"rng": self.rng.plain(), "generators": self.generators, "warm": self.warm}

    @staticmethod
    def of(state: Mapping[str, Any]) -> _Start:
        """Make it from `plain`."""
        return _Start(Rng.of(state["rng"]), tuple(state["generators"]), state["warm"])


class _Isolated:
    """An iterator that draws from its own random stream, not from the model's.

    It costs about 0.2 ms a batch, so it is left out if nothing is drawn. If a seed comes before everything
    that is drawn, the stream makes no difference; then it costs 20 us.
    """

    def __init__(self, inner: Iterator[Any], stream: HostRng, seeded: bool) -> None:
        self.inner = inner
        self.stream = stream
        self._seeded = seeded
        self._memory = HostMemory()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        before = self._memory.capture()
        try:
            if self._seeded:
                return next(self.inner)
            restore_host(self.stream)
            try:
                return next(self.inner)
            finally:
                self.stream = capture_host()
        finally:
            self._memory.restore(before)
