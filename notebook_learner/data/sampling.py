"""A sampler that can skip and tag, and the dataset that seeds itself by the tags."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info

from .rank_share import Share
from .rng import SLOW, Generator, capture_host, mix, mix_each, seed_host

_SMALL = 10_000
"""Batches of an epoch whose order may be kept when it is over."""

END = object()
"""What stands for "no further batch", where None could be one."""


class Tagged(NamedTuple):
    """A dataset index, and the seed of this sample or, with a `walk`, of this walk over the data."""

    index: Any
    seed: int
    walk: int | None = None


class SeededBatch(list[Any]):
    """The dataset indices of a batch, and what their seeds are made of: the epoch's, and the place of the
    first in its order. It goes to worker processes."""

    def __init__(self, indices: Iterable[Any], base: int, place: int) -> None:
        super().__init__(indices)
        self.base, self.place = base, place

    def part(self, first: int, end: int) -> SeededBatch:
        """Some of them, each with its own seed."""
        return SeededBatch(self[first:end], self.base, self.place + first)

    def seeds(self) -> list[int]:
        """The seed of each."""
        return mix_each(self.base, self.place, len(self))


class SeededDataset:
    """A dataset whose randomness is a function of tags. Lives in worker processes too, hence a class
    of its own that can be pickled.

    To seed all generators takes 9 us, most of it for Python's and NumPy's. So the first samples are watched,
    and of these two only the one that they drew from is seeded for each sample from then on. The other one is
    looked at once a batch; where a later sample has drawn from it after all, that batch is read again,
    seeded, and so are all that follow. torch's is always seeded: people ask it for its seed.
    """

    WATCHED = 16
    """Samples: to watch one takes 0.1 ms."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.walk: int | None = None
        self._watched = 0
        self._drawn: set[str] = set()
        """Of Python's and NumPy's generators, those that samples draw from."""

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

    def _seeded(self, batch: SeededBatch) -> list[Any]:
        seeds = batch.seeds()
        if self._watched < self.WATCHED:
            return [self._watch(index, seed) for index, seed in zip(batch, seeds, strict=True)]
        others = [each for each in SLOW if each.name not in self._drawn]
        if len(batch) == 1 or not others:
            return self._each(batch, seeds, SLOW)
        # As the last sample is to leave it: who puts the batch together may draw, too.
        first = [each.seed_and_look(seeds[-1]) for each in others]
        samples, error = None, None
        try:
            samples = self._each(batch, seeds, [each for each in SLOW if each.name in self._drawn])
        except Exception as failed:
            error = failed
        drawn = [each.name for each, word in zip(others, first, strict=True) if each.look() != word]
        if drawn:  # also after an error, which another seed may have spared the sample
            self._drawn.update(drawn)
            return self._seeded(batch)
        for each in others:
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
        if name in ("dataset", "__setstate__"):  # not yet there while unpickling
            raise AttributeError(name)
        return getattr(self.dataset, name)


class SkippingSampler:
    """A sampler that leaves out its first draws, and tags the rest with seeds where asked."""

    def __init__(self, inner: Any, batched: bool) -> None:
        self.inner = inner
        self.batched = batched
        self.generators: Sequence[torch.Generator] = ()
        self.tags = False
        """Whether each sample is seeded."""
        self.round: int | None = None
        """What each worker is seeded with once, at the first sample of a walk."""
        self.walks = 0
        self.skip = 0
        self.base: int | None = None
        self.share: Share | None = None
        """Which part of each batch is this rank's; without ranks all of it."""
        self.absent: deque[bool] = deque()
        """Of the batches that were drawn and not fetched yet: whether this rank has no sample of it."""
        self.keeps = False
        """Whether an epoch's order, drawn all at once, is kept for those who come back into the epoch."""
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
        """The memory that the orders take which are kept."""
        return sum(order.nbytes for order in self._orders.values())

    def seed_order(self) -> None:
        """In a seeded run the order depends on nothing that starting workers may draw before."""
        if self.base is not None:
            seed_host(self.base)
            for generator in self.generators:
                generator.manual_seed(self.base)

    def draw_order(self) -> None:
        """Draw the order now: samplers do it at their first index, which may come too late."""
        if self._live is not None:
            self._live.draw_order()

    def order(self) -> Iterator[Any]:
        """An epoch's order, drawn from the random state as it is; or the one that was drawn from just this
        state before, and the state is then what it was after that."""
        if not self.keeps:
            return iter(self.inner)
        start = torch.default_generator.get_state().numpy().tobytes()
        order = self._orders.pop(start, None)
        if order is None:
            order = _Order(iter(self.inner))
        else:
            torch.default_generator.set_state(order.after)
        # Two, as one may look beyond an epoch's end and come back. Once an epoch is over only a small one is.
        others = [each for each in self._orders.items() if not each[1].ended or len(self) < _SMALL]
        self._orders = {**dict(others[-1:]), start: order}
        return iter(order)


_POINTER, _INTEGER = 8, 32
"""Bytes of an index in a list, and of the number itself."""


class _Order:
    """The batches of an epoch that were drawn so far, and where the others come from. The indices are those
    that the sampler holds until its end; this takes 8 bytes more for each."""

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner = inner
        self._drawn: list[Any] = []
        self._indices = 0
        self._draw()
        self.after = torch.default_generator.get_state()

    def _draw(self) -> None:
        drawn: Any = next(self._inner, END)
        self._drawn.append(drawn)
        if drawn is not END:
            self._indices += len(drawn)

    @property
    def nbytes(self) -> int:
        """The memory that is kept for it alone: at its end the sampler lets go of the indices themselves."""
        return self._indices * (_POINTER + _INTEGER * self.ended)

    @property
    def ended(self) -> bool:
        """Whether all of it was drawn."""
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
            drawn = next(self._begun(), END)
        if drawn is END:
            raise StopIteration
        if self._sampler.tags:
            drawn = self._tagged(drawn)
        elif self._sampler.round is not None:
            drawn = self._marked(drawn, self._sampler.round)
        return drawn if self._sampler.share is None else self._cut(drawn, self._sampler.share)

    def _cut(self, drawn: Any, share: Share) -> Any:
        """Only this rank's samples are loaded. Where it has none, one is, for nothing: a loader of torch's
        cannot load none."""
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
        """Skipping draws it; without any to skip, the first index does. Not one index more than that:
        a sampler that reaches its end may draw again from a generator it shares."""
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
