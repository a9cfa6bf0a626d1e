"""A rank's share of a global batch: which of its samples are this rank's.

Shares are contiguous, and their lengths differ by one sample at most. So the ranks' shares, joined in their
order, give the batch again. If a batch has fewer samples than there are ranks, some ranks get none; rank 0
always has one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from ..errors import DataError
from .batch import count_samples


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
    if isinstance(batch, (list, tuple)) or _is_record(batch):
        return any(_may_be_cut(value) for value in _parts(batch))
    return False


def _cut(value: Any, samples: int, first: int, end: int) -> Any:
    if isinstance(value, Tensor):
        return value[first:end] if value.ndim and len(value) == samples else value
    if isinstance(value, Mapping):
        cut = {key: _cut(each, samples, first, end) for key, each in value.items()}
        if not isinstance(value, MutableMapping):
            return type(value)(cut)  # type: ignore[call-arg]  # every read-only view takes a dict
        other = copy.copy(value)
        other.update(cut)
        return other
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_cut(each, samples, first, end) for each in value))
    if isinstance(value, (list, tuple)):
        if _is_column(value, samples):
            return value[first:end]
        return type(value)(_cut(each, samples, first, end) for each in value)
    if _is_record(value):
        return _cut_record(value, samples, first, end)
    if getattr(value, "shape", None) and not isinstance(value, type) and len(value) == samples:
        return value[first:end]  # a NumPy array
    return value


def _cut_record(value: Any, samples: int, first: int, end: int) -> Any:
    other = copy.copy(value)
    for f in fields(value):
        object.__setattr__(other, f.name, _cut(getattr(value, f.name), samples, first, end))
    return other


def _is_column(value: Sequence[Any], samples: int) -> bool:
    """Whether it is texts or numbers, one for each sample; a list of tensors is a batch of several parts."""
    return len(value) == samples and not any(
        isinstance(each, (Tensor, Mapping, list, tuple)) or _is_record(each) for each in value
    )


def _parts(batch: Any) -> list[Any]:
    return [getattr(batch, f.name) for f in fields(batch)] if _is_record(batch) else list(batch)


def _is_record(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _why_not(batch: Any) -> str:
    return (
        f"a batch of type {type(batch).__name__} cannot be cut into a part for each device; give batches "
        "that are tensors, or lists, tuples, mappings or dataclasses of tensors with one row for each sample"
    )
