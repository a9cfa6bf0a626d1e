"""A rank's share of a global batch: which of its samples are this rank's.

Shares are contiguous, and their lengths differ by one sample at most. So the ranks' shares, joined in their
order, give the batch again. If a batch has fewer samples than there are ranks, some ranks get none; rank 0
always has one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any

from torch import Tensor, strided
from torch.utils.data import BatchSampler, DataLoader

from ..errors import DataError, StepError, a_kind
from .batch import count_samples, is_record, rebuilt


def per_device(loader: Iterable[Any], devices: int) -> tuple[Iterable[Any], int]:
    """Return the loader to walk, and how many of its batches a step takes.

    >>> per_device(DataLoader(list(range(10)), batch_size=2), 3)[0].batch_size
    6
    >>> per_device([[1, 2], [3, 4]], 3)
    ([[1, 2], [3, 4]], 3)
    """
    if devices == 1:
        return loader, 1
    if isinstance(loader, DataLoader) and type(loader.batch_sampler) is BatchSampler:
        return _longer(loader, loader.batch_sampler, devices), 1
    return loader, devices


def _longer(loader: DataLoader[Any], sampler: BatchSampler, times: int) -> DataLoader[Any]:
    longer = copy.copy(loader)
    size = sampler.batch_size * times
    # DataLoader forbids setting these after construction; a copy that has not been iterated is safe.
    changed: dict[str, Any] = {
        "batch_sampler": BatchSampler(sampler.sampler, size, sampler.drop_last),
        "batch_size": size,
        "_iterator": None,
    }
    longer.__dict__.update(changed)
    return longer


class CannotBeCut(DataError):
    """The learner does not know how to cut a batch into a part for each device."""


@dataclass(frozen=True, slots=True)
class Idle:
    """In place of a batch, for a rank that has no sample of it: a sample of another rank, with which it takes
    part in what all ranks do together."""

    batch: Any


class Several(list[Any]):
    """The batches of one step, one for each rank: a loader's batch is then for one device."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank gets.

    >>> [Share(rank, 3).of([10, 11, 12, 13]) for rank in range(3)]
    [[10, 11], [12], [13]]
    """

    rank: int
    world: int

    def bounds(self, samples: int) -> tuple[int, int]:
        """The index of the first sample, and the index after the last one."""
        return -(-self.rank * samples // self.world), -(-(self.rank + 1) * samples // self.world)

    def of(self, samples: Sequence[Any]) -> Sequence[Any]:
        """This rank's part of a sequence."""
        first, end = self.bounds(len(samples))
        return samples[first:end]

    def of_batch(self, batch: Any) -> Any:
        """This rank's part of a whole batch; Idle if it has none.

        Everything that is as long as the batch is cut, containers keep their type, and every rank gets the
        rest.

        Raises:
            CannotBeCut: it is not known how to cut the batch.
        """
        if type(batch) is Several:
            return batch[self.rank] if self.rank < len(batch) else Idle(batch[0])
        samples = count_samples(batch)
        if not _may_be_cut(batch):
            raise CannotBeCut(_why_not(batch))
        first, end = self.bounds(samples)
        return _cut(batch, samples, first, end) if first < end else Idle(_cut(batch, samples, 0, 1))


def parts_of(batch: Any, parts: int) -> list[tuple[Any, int]]:
    """A batch in so many parts, each with its number of samples; in less if it has less samples.

    >>> parts_of({"x": ["a", "b", "c"], "name": "a"}, 2)
    [({'x': ['a', 'b'], 'name': 'a'}, 2), ({'x': ['c'], 'name': 'a'}, 1)]

    Raises:
        StepError: the number of samples is not known, or not the same everywhere.
    """
    rows = rows_of(batch, parts)
    world = max(1, min(parts, rows))
    bounds = [Share(rank, world).bounds(rows) for rank in range(world)]
    return [(batch if world == 1 else _cut(batch, rows, *each), each[1] - each[0]) for each in bounds]


def rows_of(batch: Any, parts: int) -> int:
    """The number of samples of a batch that is to be cut into so many parts."""
    lengths = dict(_lengths(batch, "batch"))
    wrong = [f"{place} is {length}" for place, length in lengths.items() if isinstance(length, str)]
    if len(several := {*lengths.values()}) > 1 and not wrong:
        wrong = [" and ".join(f"{place} has {length}" for place, length in lengths.items())]
    if wrong or not several:
        told = wrong[0] if wrong else f"it is {a_kind(batch)} without any"
        raise StepError(
            f"split_batch({parts}) cuts a batch along the first dimension of its tensors, and {told}; write "
            "learner.split_batch(1), and a smaller batch size in the loader"
        )
    return int(several.pop())


def _lengths(value: Any, place: str) -> Iterator[tuple[str, int | str]]:
    """Where there is an entry for each sample, and how many there are; or what cannot be cut, and why."""
    if isinstance(value, Tensor) or getattr(value, "shape", None):
        dense = not isinstance(value, Tensor) or (value.layout is strided and not value.is_nested)
        yield place, len(value) if dense and value.ndim else "a tensor without rows"
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _lengths(each, f"{place}[{key!r}]")
    elif hasattr(value, "to"):  # PackedSequence, a graph: only its class knows how
        yield place, a_kind(value)
    elif isinstance(value, (list, tuple)) and value and is_column(value, len(value)):
        yield place, len(value)
    elif isinstance(value, (list, tuple)) or is_record(value):
        names = [f".{f.name}" for f in fields(value)] if is_record(value) else map("[{}]".format, count())
        for name, each in zip(names, _parts(value), strict=False):
            yield from _lengths(each, f"{place}{name}")
    elif not isinstance(value, (str, bytes, int, float, complex, type(None))):
        yield place, a_kind(value)


def first_of(value: Any, samples: int, count: int) -> Any:
    """The part of the first `count` samples, of a batch or an output of `samples` samples.

    >>> first_of({"text": ["a", "b", "c"], "scale": 2.0}, 3, 2)
    {'text': ['a', 'b'], 'scale': 2.0}
    """
    return _cut(value, samples, 0, count)


def _may_be_cut(batch: Any) -> bool:
    if isinstance(batch, Tensor):
        return batch.ndim > 0
    if isinstance(batch, Mapping):
        return any(_may_be_cut(value) for value in batch.values())
    if isinstance(batch, (list, tuple)) or is_record(batch):
        return any(_may_be_cut(value) for value in _parts(batch))
    return False


def _cut(value: Any, samples: int, first: int, end: int) -> Any:
    if isinstance(value, Tensor):
        return value[first:end] if value.ndim and len(value) == samples else value
    if type(value) in (list, tuple) and is_column(value, samples):
        return value[first:end]
    if isinstance(value, (Mapping, list, tuple)) or is_record(value):
        return rebuilt(value, lambda each: _cut(each, samples, first, end))
    if getattr(value, "shape", None) and not isinstance(value, type) and len(value) == samples:
        return value[first:end]  # a NumPy array
    return value


def is_column(value: Sequence[Any], samples: int) -> bool:
    """Whether it is texts or numbers, one for each sample; a list of tensors is a batch of several parts."""
    return len(value) == samples and not any(
        isinstance(each, (Tensor, Mapping, list, tuple)) or is_record(each) for each in value
    )


def _parts(batch: Any) -> list[Any]:
    return [getattr(batch, f.name) for f in fields(batch)] if is_record(batch) else list(batch)


def _why_not(batch: Any) -> str:
    return (
        f"a batch of type {type(batch).__name__} cannot be cut into a part for each device; give batches "
        "that are tensors, or lists, tuples, mappings or dataclasses of tensors with one row for each sample"
    )
