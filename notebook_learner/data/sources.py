"""Sources of batches other than a loader: a function, an iterator that is used up, several loaders."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import DataError, a_kind
from .batch import mapped
from .loader_walk import Walk, length_of, walk_for
from .rank_share import Share
from .rng import HostMemory, HostRng, SharedDraws, host_rng_kept, mix, seed_host
from .sampling import END
from .stop_iteration import Once, next_of

# A function ----------------------------------------------------------------------------------------------


class FromFunction:
    """A function that gives an epoch's batches: a generator function, or one that returns a list or a loader.

    >>> def batches():
    ...     yield from (torch.ones(2), torch.zeros(2))
    >>> [len(batch) for batch in FromFunction(batches)]
    [2, 2]
    """

    def __init__(self, function: Callable[[], Iterable[Any]]) -> None:
        self.function = function

    def __iter__(self) -> Iterator[Any]:
        given = self.function()
        if isinstance(given, (Tensor, tuple, Mapping)) or not isinstance(given, Iterable):
            raise DataError(
                f"{_name_of(self.function)}() returned {a_kind(given)}, which is one batch at most; a source "
                "of batches yields an epoch of them: def batches(): for _ in range(100): yield get_batch()"
            )
        return iter(given)


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def is_source(given: Any) -> bool:
    """Whether it is a function that can be called without arguments.

    >>> is_source(lambda: []), is_source(lambda epoch: []), is_source([])
    (True, False, False)
    """
    if isinstance(given, (type, torch.nn.Module, Iterable)) or not callable(given):
        return False
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(each.default is not each.empty or each.kind in _ANY_NUMBER for each in parameters)


_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


# An iterator that is used up -----------------------------------------------------------------------------

_MOST = 1 << 30
"""The bytes of batches that are kept for the way back."""


def is_used_up(loader: Any) -> bool:
    """Whether it is an iterator of Python or torch, which says neither where it is nor begins again."""
    root = type(loader).__module__.partition(".")[0]
    return isinstance(loader, Iterator) and (root in ("builtins", "itertools", "torch"))


class _Kept(NamedTuple):
    batch: Any
    left: HostRng | None
    """The random state after it was fetched, if fetching it has drawn."""


class UsedUpWalk(Walk):
    """The batches of this epoch are kept, as nothing else can give them again."""

    skips = True

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._once = Once(loader)
        self._epoch, self._of = 1, 0
        self._held: deque[_Kept] = deque()
        self._sizes: deque[int] = deque()
        self._first = self._bytes = 0
        self._memory = HostMemory()

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def watch(self, watch: SharedDraws) -> None:
        """What a fetch has drawn is kept with its batch, in this process."""
        watch.returns = "a resume"
        self._draws = watch

    def iterate(self, skip: int, base: int | None = None) -> Iterator[Any]:
        if self._of != self._epoch:
            self._held.clear()
            self._sizes.clear()
            self._of, self._first, self._bytes = self._epoch, 0, 0
        if skip < self._first:
            raise DataError(
                f"the loader, {a_kind(self.loader)}, is used up, and of this epoch only the batches from "
                f"{self._first + 1:,} on were kept; give fit(...) a list, a DataLoader, or the function that "
                "makes the generator"
            )
        while self._end < skip and self.take() is not END:
            pass
        return _Again(self, skip)

    @property
    def _end(self) -> int:
        return self._first + len(self._held)

    def take(self) -> Any:
        """Return the next batch, which nobody has seen, or END."""
        before = self._memory.capture()
        batch = next_of(self._once) if self._draws is None else self._draws.fetched(self._next)
        if batch is END:
            return END
        after = self._memory.capture()
        self._held.append(_Kept(batch, None if _same(before, after) else after))
        self._sizes.append(_bytes_of(batch))
        self._bytes += self._sizes[-1]
        while self._bytes > _MOST and len(self._held) > 1:
            self._let_go()
        return batch

    def _next(self) -> Any:
        return next_of(self._once)

    def _let_go(self) -> None:
        if not self._first:
            self.tell(
                f"not in the state: the batches before the last {_MOST >> 20:,} MiB: the loader, "
                f"{a_kind(self.loader)}, is used up, and a rewind beyond them cannot read them again. Give "
                "fit(...) a list, a DataLoader, or the function that makes the generator"
            )
        self._held.popleft()
        self._bytes -= self._sizes.popleft()
        self._first += 1

    def at(self, number: int) -> Any:
        """Return the batch of this number, from 0, or END."""
        if number >= self._end:
            return self.take()
        batch, left = self._held[number - self._first]
        if left is not None:
            self._memory.restore(left)
        return batch

    def end(self, iterator: Iterator[Any] | None) -> None:
        super().end(iterator and self.loader)

    @property
    def kept_bytes(self) -> int:
        return self._bytes


class _Again:
    """The batches from a place on: those that are kept, then new ones."""

    def __init__(self, walk: UsedUpWalk, number: int) -> None:
        self._walk, self._number = walk, number

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if (batch := self._walk.at(self._number)) is END:
            raise StopIteration
        self._number += 1
        return batch


def _same(one: HostRng, other: HostRng) -> bool:
    numpy = one.numpy is other.numpy
    return numpy and one.python == other.python and torch.equal(one.torch, other.torch)


def _bytes_of(batch: Any) -> int:
    sizes: list[int] = []
    mapped(batch, lambda tensor: sizes.append(tensor.nbytes))
    return sum(sizes)


# Several loaders -----------------------------------------------------------------------------------------

MODES = ("max_size_cycle", "max_size", "min_size")


class Combined:
    """A batch of each loader at once: of a dict a dict, of a list a list.

    >>> both = Combined({"a": [1, 2, 3], "b": [10, 20]}, "max_size_cycle")
    >>> len(both), list(both)
    (3, [{'a': 1, 'b': 10}, {'a': 2, 'b': 20}, {'a': 3, 'b': 10}])

    Args:
        loaders: by name, or in their order.
        mode: when an epoch ends, in Lightning's words: with the longest loader ("max_size_cycle", in which a
            shorter one begins again, and "max_size", in which it gives None), or with the shortest
            ("min_size").
    """

    def __init__(self, loaders: Mapping[Any, Any] | Sequence[Any], mode: str) -> None:
        self.names = list(loaders) if isinstance(loaders, Mapping) else None
        self.loaders = list(loaders.values() if isinstance(loaders, Mapping) else loaders)
        self.kind: Any = type(loaders) if isinstance(loaders, (list, tuple)) else dict
        self.mode = mode

    def __len__(self) -> int:
        lengths = [length_of(each) for each in self.loaders]
        known = [length for length in lengths if length is not None]
        if len(known) < len(lengths):
            raise TypeError("one of the loaders has no length")
        return min(known) if self.mode == "min_size" else max(known)

    def __iter__(self) -> Iterator[Any]:
        return CombinedWalk(self).iterate(0)

    def joined(self, batches: list[Any]) -> Any:
        """The batches in the form of the loaders."""
        if self.names is not None:
            return dict(zip(self.names, batches, strict=True))
        return self.kind(batches)


class CombinedWalk(Walk):
    """Walks several loaders in step, each in its own way.

    A loader that begins again in the midst of an epoch draws its order from a seed of the epoch's start, so
    that its place does not depend on what the steps have drawn meanwhile.
    """

    why = "one of the loaders cannot skip"

    def __init__(self, together: Combined, seeded: bool = False) -> None:
        super().__init__(together)
        self.walks = [walk_of(each, seeded) for each in together.loaders]
        self._seeded = seeded
        self.skips = all(each.skips for each in self.walks)
        self.gathers = all(each.gathers for each in self.walks)
        self.quiet = all(each.quiet for each in self.walks) and together.mode != "max_size_cycle"
        self.generators = [one for each in self.walks for one in each.generators]

    @property
    def warm(self) -> bool:
        return any(each.warm for each in self.walks)

    def set_warm(self, warm: bool) -> None:
        for each in self.walks:
            each.set_warm(warm)

    def watch(self, watch: Any) -> None:
        for each in self.walks:
            each.watch(watch)

    def set_epoch(self, epoch: int) -> None:
        for each in self.walks:
            each.first_epoch, each.home = self.first_epoch, self.home
            each.set_epoch(epoch)

    def draw_order(self) -> None:
        for each in self.walks:
            each.draw_order()

    @property
    def kept_bytes(self) -> int:
        return sum(each.kept_bytes for each in self.walks)

    def capture(self, inside: bool) -> Any:
        return [each.capture(inside) for each in self.walks]

    def restore(self, state: Any) -> None:
        for each, own in zip(self.walks, state, strict=True):
            each.restore(own)

    def iterate(self, skip: int, base: int | None = None) -> Iterator[Any]:
        seats = [_Seat(walk) for walk in self.walks]
        if self.loader.mode != "max_size_cycle":
            for number, seat in enumerate(seats):
                seat.iterator = seat.walk.begin(skip, None if base is None else mix(base, number))
            return self._drawn(_InStep(self.loader, seats, None), skip, base)
        lengths = [length_of(each) or 0 for each in self.loader.loaders]
        if 0 in lengths:
            raise DataError(
                "of loaders that are walked together the shorter ones begin again, so each needs a length; "
                'or end with the shortest: CombinedLoader(loaders, "min_size")'
            )
        rounds = base
        if len({*lengths}) > 1 and base is None:
            rounds = int(torch.empty((), dtype=torch.int64).random_().item())
        if (left := max(lengths) - skip) <= 0:
            return iter(())
        for number, (seat, length) in enumerate(zip(seats, lengths, strict=True)):
            seat.go_to(skip, length, None if rounds is None else mix(rounds, number), self._seeded)
        return self._drawn(_InStep(self.loader, seats, left), skip, base)

    def _drawn(self, iterator: _InStep, skip: int, base: int | None) -> _InStep:
        """All loaders begin before the first one draws its order, as in a loop over `zip`."""
        if skip or base is not None:
            self.draw_order()
        return iterator

    def end(self, iterator: Iterator[Any] | None) -> None:
        if isinstance(iterator, _InStep):
            for seat in iterator.seats:
                seat.walk.end(seat.iterator)


class _Seat:
    """One of several loaders, and where it is."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.iterator: Iterator[Any] | None = None
        self._seed: int | None = None
        self._left = self._length = self._round = 0
        self._seeded = False

    def go_to(self, skip: int, length: int, seed: int | None, seeded: bool) -> None:
        """Begin after so many batches, of which a round has `length`."""
        self._seed, self._length, self._seeded = seed, length, seeded
        self._round, skip = divmod(skip, length)
        # Also of a round that is over, since its beginning draws.
        self.iterator = self.walk.begin(0 if self._round else skip, seed if seeded else None)
        self._left = length - skip
        if self._round:
            self.walk.end(self.iterator)
            self._begin_again(skip)

    def next(self) -> Any:
        """The next batch, or END."""
        assert self.iterator is not None
        if self._length:
            if not self._left:
                self._round += 1
                self.walk.end(self.iterator)
                self._begin_again(0)
            self._left -= 1
        return next_of(self.iterator)

    def _begin_again(self, skip: int) -> None:
        assert self._seed is not None
        seed = mix(self._seed, self._round)
        with host_rng_kept():
            seed_host(seed)
            for generator in self.walk.generators:
                generator.manual_seed(seed)
            self.iterator = self.walk.iterate(skip, seed if self._seeded else None)
            self.walk.draw_order()
        self._left = self._length - skip


class _InStep:
    """The batches of all seats."""

    def __init__(self, together: Combined, seats: list[_Seat], left: int | None) -> None:
        self._together, self.seats, self._left = together, seats, left
        self._goes_on = together.mode == "max_size"

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._left is not None:
            if not self._left:
                raise StopIteration
            self._left -= 1
        batches = []
        for seat in self.seats:
            batch = seat.next()
            if batch is END and not self._goes_on:
                raise StopIteration
            batches.append(None if batch is END else batch)
        if all(batch is None for batch in batches):
            raise StopIteration
        return self._together.joined(batches)


# Which is which ------------------------------------------------------------------------------------------


def walk_of(loader: Any, seeded: bool, share: Share | None = None) -> Walk:
    """Return the way to walk any source of batches. With a share, it gives only this rank's part
    of batches if `cuts`."""
    if isinstance(loader, Combined):
        return CombinedWalk(loader, seeded)
    return UsedUpWalk(loader) if is_used_up(loader) else walk_for(loader, seeded, share)


def parts_of(name: str, source: Any) -> Iterator[tuple[str, Any]]:
    """What of a source may be changed by its use, by name."""
    if isinstance(source, Combined):
        names = source.names or range(len(source.loaders))
        for each, loader in zip(names, source.loaders, strict=True):
            yield from parts_of(f"{name} {each}", loader)
    elif not is_used_up(source):  # its batches are kept
        yield name, source.function if isinstance(source, FromFunction) else source
