"""How each kind of loader is walked: what it can skip, what it draws, what it keeps."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _DatasetKind

from ..store import hdf5_library
from .in_memory import OnDevice, gathering, looks_up
from .rank_share import Idle, Share
from .rng import SharedDraws, mix
from .sampling import SeededDataset, SkippingSampler
from .stop_iteration import Once, collate_makes_no_end, next_of


def walk_for(loader: Any, seeded: bool, share: Share | None = None) -> Walk:
    """Return the way to walk this loader. With a share, it gives only this rank's part of batches if
    `cuts`."""
    walk = _walk_for(loader, seeded)
    if share is not None:
        walk.take_share(share)
    return walk


def _walk_for(loader: Any, seeded: bool) -> Walk:
    if _is_plain_loader(loader):
        return _LoaderWalk(loader, seeded)
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        return _StatefulWalk(loader)
    if isinstance(loader, Sequence):
        return _SequenceWalk(loader)
    return _OnceWalk(loader) if isinstance(loader, Iterator) else Walk(loader)


def length_of(loader: Any) -> int | None:
    """`len(loader)`, or None: an IterableDataset's loader has a `__len__` that raises."""
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    except TypeError:
        return None


def _is_plain_loader(loader: Any) -> bool:
    """Whether it is a DataLoader over a map-style dataset, and its iteration has not been replaced."""
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__
        and type(loader)._get_iterator is DataLoader._get_iterator
        and loader._dataset_kind == _DatasetKind.Map
    )


class Walk:
    """The way to walk any iterable: it can only be read up to the position."""

    skips = False
    """Whether `iterate(k)` loads none of the k batches before."""
    why = "this kind of loader cannot skip"
    """If it does load them: the reason, for the user who waits."""
    quiet = False
    """Whether fetching a batch in this process draws no random number."""
    seeds_all = False
    """Whether a seed comes before everything that fetching a batch draws."""
    generators: Sequence[torch.Generator] = ()
    """The loader's own random generators."""
    first_epoch = 0
    """What `set_epoch` gets for the first epoch: torch and Hugging Face count from 0."""
    tell: Callable[[str], None] = staticmethod(lambda text: None)
    """Where the user is told what this cannot do."""
    home: OnDevice | None = None
    """Where data that lie in memory are copied to, if they train from there."""
    gathers = False
    """Whether its data may lie there."""
    cuts = False
    """Whether each rank can walk its own loader and find the same batches; then `mine` gives its part.
    Otherwise one rank walks for all: it is not known what another kind of iterator draws, and when."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        if isinstance(loader, DataLoader):
            self.generators = _distinct([loader.generator])

    @property
    def warm(self) -> bool:
        """Whether workers of an earlier epoch still exist; they change what iteration draws."""
        return False

    def set_warm(self, warm: bool) -> None:
        """Make `warm` so before iterating."""

    def iterate(self, skip: int, base: int | None = None) -> Iterator[Any]:
        """Start an epoch after `skip` batches, with its order drawn. `base` seeds each sample."""
        with starting_workers(getattr(self.loader, "num_workers", 0)), collate_makes_no_end(self.loader):
            iterator: Iterator[Any] = iter(self.loader)
        kept = self._kept(iterator)
        return kept if self._draws is None else self._draws.around(kept)

    def begin(self, skip: int, base: int | None = None) -> Iterator[Any]:
        """The same, but the order is drawn later if the loader does so."""
        return self.iterate(skip, base)

    def watch(self, watch: SharedDraws) -> None:
        """Find out whether the data draw by turns with the steps."""
        if getattr(self.loader, "num_workers", 0) == 0:
            self._draws = watch

    _draws: SharedDraws | None = None

    def end(self, iterator: Iterator[Any] | None) -> None:
        """Release an iterator, and end its worker processes now. The garbage collector would do it in any
        thread or forked child, where it takes seconds or fails."""
        shut_down = getattr(iterator, _SHUT_DOWN, None)
        if shut_down is not None and iterator is not self._living_on:
            _at_work.discard(iterator)
            shut_down()

    def _kept(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Hold the iterator until it is ended; but not one that the user's loader holds and ends."""
        if hasattr(iterator, _SHUT_DOWN) and iterator is not getattr(self.loader, "_iterator", None):
            _at_work.add(iterator)
        return iterator

    @property
    def _living_on(self) -> Any:
        """The iterator whose workers wait for the next epoch."""
        return getattr(self.loader, "_iterator", None)

    @property
    def kept_bytes(self) -> int:
        """The memory that is kept for a return into an epoch."""
        return 0

    def take_share(self, share: Share) -> None:
        """Give only one rank's part of each batch, if that is possible."""

    def mine(self, batch: Any) -> Any:
        """Return this rank's part of what was fetched; Idle if it has none."""
        return batch

    def draw_order(self) -> None:
        """Draw the epoch's order now, after the start of the iteration."""

    def set_epoch(self, epoch: int) -> None:
        """Give the next epoch's number to the samplers that have `set_epoch`."""
        for name in (None, "sampler", "batch_sampler", "dataset"):
            part = self.loader if name is None else getattr(self.loader, name, None)
            tell = getattr(part, "set_epoch", None)
            if tell is not None:
                tell(epoch - 1 + self.first_epoch)

    def capture(self, inside: bool) -> Any:
        """Return the loader's own state, if it has one; `inside` an epoch, or before it."""
        return None

    def restore(self, state: Any) -> None:
        """Put a captured state back."""


class _OnceWalk(Walk):
    """An iterator: it cannot be begun again, so an error in it may have been its end."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._once = Once(loader)

    def iterate(self, skip: int, base: int | None = None) -> Iterator[Any]:
        iterator = iter(self.loader)  # it may begin again here all the same
        if iterator is not self._once.inner:
            self._once = Once(iterator)
        return self._once

    def end(self, iterator: Iterator[Any] | None) -> None:
        super().end(iterator and self.loader)


class _SequenceWalk(Walk):
    """A list of batches: its position is an index."""

    skips = True
    quiet = True
    cuts = True
    _share: Share | None = None

    def take_share(self, share: Share) -> None:
        self._share = share

    def mine(self, batch: Any) -> Any:
        return batch if self._share is None else self._share.of_batch(batch)

    def iterate(self, skip: int, base: int | None = None) -> Iterator[Any]:
        if skip == 0:
            return iter(self.loader)
        return (self.loader[index] for index in range(skip, len(self.loader)))  # StopIteration is an error


class _StatefulWalk(Walk):
    """A loader that keeps its own position (torchdata's StatefulDataLoader, a user's own class)."""

    skips = True

    def watch(self, watch: SharedDraws) -> None:
        pass

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._pending: Any = None

    def iterate(self, skip: int, base: int | None = None) -> Iterator[Any]:
        if self._pending is not None:
            self.loader.load_state_dict(copy.deepcopy(self._pending))
            self._pending, skip = None, 0
        with collate_makes_no_end(self.loader):
            iterator = self._kept(iter(self.loader))
        for _ in range(skip):
            next_of(iterator)
        return iterator

    def capture(self, inside: bool) -> Any:
        if not inside and self._begins_to_tell():
            return None
        return copy.deepcopy(self._pending if self._pending is not None else self.loader.state_dict())

    def restore(self, state: Any) -> None:
        self._pending = state

    def _begins_to_tell(self) -> bool:
        """Whether `state_dict` begins an epoch where none is under way, as torchdata's does."""
        return isinstance(self.loader, DataLoader) or type(self.loader).__module__.startswith("torchdata")


class _LoaderWalk(Walk):
    """torch's DataLoader over a map-style dataset: it skips by drawing indices.

    It iterates a shallow copy of the user's loader. The copy's sampler can skip, and its dataset seeds each
    sample if the run is seeded. The user's own object is never changed.
    """

    why = "worker processes draw random numbers that only reading repeats; .seed() makes this instant"

    def __init__(self, loader: DataLoader[Any], seeded: bool) -> None:
        super().__init__(loader)
        self._sampler = SkippingSampler(loader._index_sampler, batched=loader._auto_collation)
        self._epoch = 1
        self._first_seed = 0
        self._carries = False
        """Whether persistent workers carry their random state from epoch to epoch. It cannot be read or put
        back there. So from the second epoch on they get new seeds, from the first one's seed and the epoch.
        This is the only place where an unseeded run differs from a hand-written loop."""
        self._copy = self._copy_of(loader, seeded)
        self.generators = _distinct(
            [loader.generator, *(getattr(part, "generator", None) for part in _samplers_of(loader))]
        )
        self._sampler.generators = self.generators
        # The loader's own generator is also drawn from at the end of an epoch, with any number of workers.
        self._sampler.keeps = loader._auto_collation and not self.generators and _drawn_at_once(loader)
        self.cuts = loader._auto_collation and _known_order(loader)
        calm = looks_up(loader.dataset)
        self.skips = seeded or calm or loader.num_workers == 0
        self.seeds_all = seeded and self.cuts
        self.gathers = calm and loader.num_workers == 0 and _joins_as_torch(loader) and loader._auto_collation
        self.quiet = (calm and _order_drawn_at_start(loader)) or loader.num_workers > 0

    def _copy_of(self, loader: DataLoader[Any], seeded: bool) -> DataLoader[Any]:
        mine = copy.copy(loader)
        # DataLoader forbids setting these after construction; a copy that has not been iterated is safe.
        mine.__dict__["batch_sampler" if loader._auto_collation else "sampler"] = self._sampler
        mine.__dict__["_iterator"] = None
        if looks_up(loader.dataset):
            return mine
        self._sampler.tags = seeded
        self._carries = not seeded and loader.num_workers > 0 and loader.persistent_workers
        if seeded or self._carries:
            mine.__dict__["dataset"] = SeededDataset(loader.dataset)
        return mine

    def watch(self, watch: SharedDraws) -> None:
        if not _known_order(self.loader):
            self._sampler.draws = watch

    def take_share(self, share: Share) -> None:
        if self.cuts:
            self._sampler.share = share

    def mine(self, batch: Any) -> Any:
        absent = self._sampler.absent
        return Idle(batch) if self._sampler.share is not None and absent.popleft() else batch

    @property
    def kept_bytes(self) -> int:
        return self._sampler.kept_bytes

    def draw_order(self) -> None:
        self._sampler.draw_order()

    @property
    def warm(self) -> bool:
        return self._copy._iterator is not None

    @property
    def _living_on(self) -> Any:
        return self._copy._iterator

    def set_warm(self, warm: bool) -> None:
        if not warm:
            living, self._copy.__dict__["_iterator"] = self._copy._iterator, None
            self.end(living)
        elif self._copy._iterator is None and self._copy.persistent_workers:
            kept = self._first_seed
            self.iterate(0)  # a later epoch of persistent workers draws less than their first
            self._first_seed = kept

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self._epoch = epoch

    def capture(self, inside: bool) -> Any:
        return self._first_seed

    def restore(self, state: Any) -> None:
        self._first_seed = state

    def iterate(self, skip: int, base: int | None = None) -> Iterator[Any]:
        iterator = self.begin(skip, base)
        if skip or base is not None:
            self._sampler.draw_order()
        return iterator

    def begin(self, skip: int, base: int | None = None) -> Iterator[Any]:
        self._sampler.skip, self._sampler.base = skip, base
        if self._carries:
            self._sampler.round = mix(self._first_seed, self._epoch) if self.warm else None
        if self.home is not None and self.gathers:
            self._copy.__dict__["pin_memory"] = False  # only memory of the host can be pinned
        with starting_workers(self.loader.num_workers):
            iterator = iter(self._copy)
        if self._carries and self._sampler.round is None:
            self._first_seed = cast(int, iterator._base_seed)
        return self._kept(gathering(iterator, self.home))


# What a loader draws ---------------------------------------------------------------------------------


def _samplers_of(loader: DataLoader[Any]) -> list[Any]:
    batch_sampler = loader.batch_sampler
    return [loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]


def _distinct(generators: Iterable[torch.Generator | None]) -> list[torch.Generator]:
    found: list[torch.Generator] = []
    for generator in generators:
        if generator is not None and all(generator is not other for other in found):
            found.append(generator)
    return found


def _order_drawn_at_start(loader: DataLoader[Any]) -> bool:
    return _known_order(loader) and _joins_as_torch(loader)


def _joins_as_torch(loader: DataLoader[Any]) -> bool:
    return loader.collate_fn.__module__.startswith("torch.utils.data")


def _drawn_at_once(loader: DataLoader[Any]) -> bool:
    """Whether nothing is drawn between the first index and the end of an epoch, and drawing takes long."""
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        at_once = not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    else:
        at_once = type(sampler) in (SubsetRandomSampler, WeightedRandomSampler)
    return at_once and _known_order(loader)


def _known_order(loader: DataLoader[Any]) -> bool:
    """Samplers of torch that draw an epoch's order at once, before its first batch."""
    known = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
    plain = loader.batch_sampler is None or type(loader.batch_sampler) is BatchSampler
    return plain and type(loader.sampler) in known


# Worker processes ------------------------------------------------------------------------------------

_SHUT_DOWN = "_shutdown_workers"

_at_work: set[Iterator[Any]] = set()
"""Iterators whose workers have not been ended. The garbage collector must not collect one: it may remove the
queues before the workers get the signal to end, and then waits five seconds for each."""


@contextmanager
def starting_workers(workers: int) -> Iterator[None]:
    """Start worker processes with two signals blocked: the interrupt, and that of a closed terminal. The
    workers inherit the block for life.

    Both signals go to the whole process group, and a worker that gets one ends. Here they mean "pause" to the
    parent and nothing to the workers. A signal that comes during the start reaches this process afterwards.

    h5py is loaded before. Otherwise, a worker that is forked while another thread loads h5py would print
    "cannot release un-acquired lock" into the cell: h5py then releases a lock that it did not take in that
    process.
    """
    if workers:
        hdf5_library.load()
    if not workers or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
