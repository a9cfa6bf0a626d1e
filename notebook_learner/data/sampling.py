"""A sampler that can skip and add tags, and the dataset that uses the tags as seeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info

from .rank_share import Share
from .rng import SLOW, Generator, SharedDraws, capture_host, mix, mix_each, seed_host

_SMALL = 10_000
"""Batches of an epoch whose order may be kept after the epoch."""

END = object()
"""The value for "no further batch": None could be a batch."""


class Tagged(NamedTuple):
    """A dataset index, and the seed of this sample; with a `walk`, the seed of this walk over the data."""

    index: Any
    seed: int
    walk: int | None = None


class SeededBatch(list[Any]):
    """The dataset indices of a batch, and the parts of their seeds: the epoch's seed, and the first index's
    place in its order. It goes to worker processes."""

    def __init__(self, indices: Iterable[Any], base: int, place: int) -> None:
        super().__init__(indices)
        self.base, self.place = base, place

    def part(self, first: int, end: int) -> SeededBatch:
        """Some of them, each with its own seed."""
        return SeededBatch(self[first:end], self.base, self.place + first)


class SeededDataset:
    """A dataset whose randomness is a function of tags. Worker processes have it too, so it is a class that
    can be pickled.

    Seeding all generators takes 6 us, most of it for Python's and NumPy's. So the first samples are watched.
    After them, of these two generators only the one that the samples drew from is seeded for each sample. The
    other one is checked once a batch. If a later sample has drawn from it, that batch is read again, seeded,
    and all later ones are seeded, too. torch's generator is always seeded: user code may read its seed.
    """

    WATCHED = 16
    """The number of samples: to watch one takes 0.1 ms."""

    MIXED = 1024
    """The number of seeds that are computed at once: 32 alone would take 6 us, these take 20."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.walk: int | None = None
        self._watched = 0
        self._drawn: set[str] = set()
        """The generators that samples draw from, out of Python's and NumPy's."""
        self._mixed = 0, 0, list[int]()
        """The seeds that were computed last: the epoch's, the first one's place, and each."""

    def __getitem__(self, tagged: Tagged) -> Any:
        if type(tagged) is not Tagged:  # the first walk of unseeded workers: their own seeds hold
            return self.dataset[tagged]
        self._seed(tagged)
        return self.dataset[tagged.index]

    def __getitems__(self, drawn: list[Any]) -> list[Any]:
        fetch_many = getattr(self.dataset, "__getitems__", None)
        if type(drawn) is SeededBatch:
            if not fetch_many:
                return self._seeded(drawn)
            seed_host(mix(drawn.base, drawn.place))
            return fetch_many(list(drawn))  # type: ignore[no-any-return]
        if not fetch_many:
            return [self[each] for each in drawn]
        if type(drawn[0]) is not Tagged:
            return fetch_many(drawn)  # type: ignore[no-any-return]
        self._seed(drawn[0])
        return fetch_many([tag.index for tag in drawn])  # type: ignore[no-any-return]

    def _seeds(self, batch: SeededBatch) -> list[int]:
        """The seed of each of its samples."""
        base, first, seeds = self._mixed
        start, end = batch.place - first, batch.place - first + len(batch)
        if batch.base != base or start < 0 or end > len(seeds):
            seeds, start, end = mix_each(batch.base, batch.place, max(self.MIXED, len(batch))), 0, len(batch)
            self._mixed = batch.base, batch.place, seeds
        return seeds[start:end]

    def _seeded(self, batch: SeededBatch) -> list[Any]:
        seeds = self._seeds(batch)
        if self._watched < self.WATCHED:
            return [self._watch(index, seed) for index, seed in zip(batch, seeds, strict=True)]
        others = [each for each in SLOW if each.name not in self._drawn]
        if len(batch) == 1 or not others:
            return self._each(batch, seeds, SLOW)
        for each in others:
            each.mark()
        samples, error = None, None
        try:
            samples = self._each(batch, seeds, [each for each in SLOW if each.name in self._drawn])
        except Exception as failed:
            error = failed
        drawn = [each.name for each in others if not each.marked()]
        if drawn:  # also after an error: with another seed it may not come
            self._drawn.update(drawn)
            return self._seeded(batch)
        for each in others:  # as the last sample should leave it: the code that joins the batch may draw, too
            each.seed(seeds[-1])
        if samples is None:
            assert error is not None
            raise error
        return samples

    def _each(self, batch: SeededBatch, seeds: list[int], slow: Sequence[Generator]) -> list[Any]:
        dataset, seed_torch = self.dataset, torch.default_generator.manual_seed
        if not slow:
            return [(seed_torch(seed), dataset[index])[1] for index, seed in zip(batch, seeds, strict=True)]
        samples = []
        for index, seed in zip(batch, seeds, strict=True):
            seed_torch(seed)
            for each in slow:
                each.seed(seed)
            samples.append(dataset[index])
        return samples

    def _watch(self, index: Any, seed: int) -> Any:
        seed_host(seed)
        before = capture_host()
        try:
            return self.dataset[index]
        finally:
            self._watched += 1
            self._drawn.update(each.name for each in SLOW if each.moved(before))

    def _seed(self, tagged: Tagged) -> None:
        if tagged.walk is None:
            seed_host(tagged.seed)
        elif tagged.walk != self.walk:
            worker = get_worker_info()
            seed_host(mix(tagged.seed, 0 if worker is None else worker.id))
            self.walk = tagged.walk

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "__setstate__"):  # not there yet while unpickling
            raise AttributeError(name)
        return getattr(self.dataset, name)


class SkippingSampler:
    """A sampler that skips its first draws, and adds seeds as tags if asked to."""

    def __init__(self, inner: Any, batched: bool) -> None:
        self.inner = inner
        self.batched = batched
        self.generators: Sequence[torch.Generator] = ()
        self.tags = False
        """Whether each sample is seeded."""
        self.round: int | None = None
        """The seed that each worker gets once, at the first sample of a walk."""
        self.walks = 0
        self.skip = 0
        self.base: int | None = None
        self.share: Share | None = None
        """Which part of each batch is this rank's; without ranks, the whole batch."""
        self.absent: deque[bool] = deque()
        """For each batch that was drawn and not fetched yet: whether this rank has no sample of it."""
        self.seen: list[str] | None = None
        """Where to note the indices that are given, if that is asked for."""
        self.draws: SharedDraws | None = None
        """Finds out whether the order is drawn by turns with the steps."""
        self.keeps = False
        """Whether an epoch's order, drawn all at once, is kept for a return into the epoch."""
        self._orders: dict[bytes, _Order] = {}
        self._live: _Drawing | None = None

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        self.absent.clear()
        self._live = _Drawing(self)
        return self._live

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def kept_bytes(self) -> int:
        """The memory of the kept orders."""
        return sum(order.nbytes for order in self._orders.values())

    def seed_order(self) -> None:
        """Seed the order: in a seeded run it does not depend on what the start of workers may draw."""
        if self.base is not None:
            seed_host(self.base)
            for generator in self.generators:
                generator.manual_seed(self.base)

    def draw_order(self) -> None:
        """Draw the order now: a sampler does it at its first index, which may be too late."""
        if self._live is not None:
            self._live.draw_order()

    def order(self) -> Iterator[Any]:
        """Return an epoch's order, drawn from the current random state. If it was drawn from exactly this
        state before, return that order, and set the random state that came after it."""
        if not self.keeps:
            return iter(self.inner)
        start = torch.default_generator.get_state().numpy().tobytes()
        order = self._orders.pop(start, None)
        if order is None or order.broken:
            order = _Order(iter(self.inner))
        else:
            torch.default_generator.set_state(order.after)
        # Two, as a look may go beyond an epoch's end and come back. After an epoch only a small one is kept.
        others = [each for each in self._orders.items() if not each[1].ended or len(self) < _SMALL]
        self._orders = {**dict(others[-1:]), start: order}
        return iter(order)


_POINTER, _INTEGER = 8, 32
"""Bytes of an index in a list, and of the number itself."""


class _Order:
    """The batches of an epoch that were drawn so far, and the source of the others. The sampler holds the
    indices until its end; this takes 8 bytes more for each."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner
        self._drawn: list[Any] = []
        self._indices = 0
        self.broken = False
        """Whether an interrupt came while it was drawn. A sampler is a generator, which an exception ends: it
        would leave out the rest of the epoch."""
        self._draw()
        self.after = torch.default_generator.get_state()

    def _draw(self) -> None:
        try:
            drawn: Any = next(self._inner, END)
            self._drawn.append(drawn)
            if drawn is not END:
                self._indices += len(drawn)
        except BaseException:
            self.broken = True
            raise

    @property
    def nbytes(self) -> int:
        """The memory that is kept only for it: at its end the sampler releases the indices."""
        return self._indices * (_POINTER + _INTEGER * self.ended)

    @property
    def ended(self) -> bool:
        """Whether all of the order was drawn."""
        return self._drawn[-1] is END

    def __iter__(self) -> Iterator[Any]:
        place = 0
        while True:
            if place == len(self._drawn):
                self._draw()
            drawn = self._drawn[place]
            if drawn is END:
                return
            yield drawn
            place += 1


class _Drawing:
    """One epoch's walk over a sampler."""

    _NOTHING = object()

    def __init__(self, sampler: SkippingSampler) -> None:
        self._sampler = sampler
        self._inner: Iterator[Any] | None = None
        self._first: Any = self._NOTHING
        self._place = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._first is not self._NOTHING:
            drawn, self._first = self._first, self._NOTHING
        else:
            drawn = self._next()
        if drawn is END:
            raise StopIteration
        if self._sampler.seen is not None:
            self._sampler.seen.append(repr(drawn))
        if self._sampler.tags:
            drawn = self._tagged(drawn)
        elif self._sampler.round is not None:
            drawn = self._marked(drawn, self._sampler.round)
        return drawn if self._sampler.share is None else self._cut(drawn, self._sampler.share)

    def _next(self) -> Any:
        inner, draws = self._inner or self._begun(), self._sampler.draws
        return next(inner, END) if draws is None else draws.fetched(lambda: next(inner, END))

    def _cut(self, drawn: Any, share: Share) -> Any:
        """Load only this rank's samples. If it has none, load one that is not used: a torch loader cannot
        load an empty batch."""
        first, end = share.bounds(len(drawn))
        self._sampler.absent.append(first == end)
        if first == end:
            first, end = 0, 1
        return drawn.part(first, end) if type(drawn) is SeededBatch else drawn[first:end]

    def _marked(self, drawn: Any, seed: int) -> Any:
        walk = self._sampler.walks
        return (
            [Tagged(index, seed, walk) for index in drawn]
            if self._sampler.batched
            else Tagged(drawn, seed, walk)
        )

    def draw_order(self) -> None:
        """Draw the order. Skipping draws it; with nothing to skip, the first index does. It draws not one
        index more: a
        sampler that reaches its end may draw again from a generator that it shares."""
        if self._inner is None:
            inner = self._begun()
            if not self._sampler.skip:
                self._first = next(inner, END)

    def _begun(self) -> Iterator[Any]:
        if self._inner is None:
            self._sampler.seed_order()
            self._inner = self._sampler.order()
            for _ in range(self._sampler.skip):
                skipped: Any = next(self._inner, END)
                self._place += len(skipped) if self._sampler.batched and skipped is not END else 1
        return self._inner

    def _tagged(self, drawn: Any) -> Any:
        base, place = self._sampler.base or 0, self._place
        if not self._sampler.batched:
            self._place += 1
            return Tagged(drawn, mix(base, place))
        self._place += len(drawn)
        return SeededBatch(drawn, base, place)
