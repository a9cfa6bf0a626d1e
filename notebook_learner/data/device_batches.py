"""Loaders whose batch is for one device, as loaders whose batch is for one step.

A torch loader that cuts an order of samples into batches gets longer batches, of which every rank loads its
part. From any other loader, a step takes several batches as they are, one for each rank.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader


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
