"""A sampler that can skip and tag, and the dataset that seeds itself by the tags."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import get_worker_info

from ..rng import mix, seed_host
from .share import Share

END = object()
"""What stands for "no further batch", where None could be one."""


class Tagged(NamedTuple):
    """A dataset index, and the seed of this sample or, with a `walk`, of this walk over the data."""

    index: Any
    seed: int
    walk: int | None = None


class SeededDataset:
    """A dataset whose randomness is a function of tags. Lives in worker processes too, hence a class
    of its own that can be pickled."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.walk: int | None = None
        if getattr(dataset, "__getitems__", None):
            self.__getitems__ = self._fetch_many

    def __getitem__(self, tagged: Tagged) -> Any:
        if type(tagged) is not Tagged:  # the first walk of unseeded workers: their own seeds hold
            return self.dataset[tagged]
        self._seed(tagged)
        return self.dataset[tagged.index]

    def _fetch_many(self, tagged: list[Any]) -> Any:
        if type(tagged[0]) is not Tagged:
            return self.dataset.__getitems__(tagged)
        self._seed(tagged[0])
        return self.dataset.__getitems__([tag.index for tag in tagged])

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
        if name in ("dataset", "__getitems__", "__setstate__"):  # not yet there while unpickling
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
        self._live: _Drawing | None = None

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        self.absent.clear()
        self._live = _Drawing(self)
        return self._live

    def __len__(self) -> int:
        return len(self.inner)

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
        mine = share.of(drawn)
        self._sampler.absent.append(not mine)
        return mine or drawn[:1]

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
            self._inner = iter(self._sampler.inner)
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
        return [Tagged(index, mix(base, place + i)) for i, index in enumerate(drawn)]
