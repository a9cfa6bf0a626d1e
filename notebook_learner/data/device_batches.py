"""Where a loader's batch is that of one device: the loader whose batches are those of a step.

A loader of torch's that cuts an order of samples into batches is given longer ones, of which every rank loads
its part. Of any other, a step takes several batches, one for each rank, as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader


def per_device(loader: Iterable[Any], devices: int) -> tuple[Iterable[Any], int]:
    """The loader to walk, and how many of its batches a step takes.

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
    # DataLoader forbids setting these after construction; a copy that nobody has iterated is safe.
    changed: dict[str, Any] = {
        "batch_sampler": BatchSampler(sampler.sampler, size, sampler.drop_last),
        "batch_size": size,
        "_iterator": None,
    }
    longer.__dict__.update(changed)
    return longer
