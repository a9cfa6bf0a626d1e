"""What a run was trained on: the loaders' options, and a fingerprint of the data.

The fingerprint is of what the dataset holds: tensors, arrays, lists, texts. No sample is asked for, as that
might draw random numbers of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

SAMPLES = 64
"""Rows, or members, that are looked at where there are more."""
_WHOLE = 1 << 22
"""Bytes up to which a tensor is looked at as a whole."""
_DEEPEST = 8


def loader_of(given: Any, batch_size: int | None, shuffles: bool) -> dict[str, Any]:
    """The options of a loader, or of the one that is made of a dataset."""
    loader = isinstance(given, DataLoader)
    dataset = given.dataset if loader else given
    own = not loader and batch_size is not None and isinstance(given, Dataset)
    told = {
        "class": type(given).__name__,
        "length": _length(given),
        "batch_size": batch_size if own else getattr(given, "batch_size", None),
        "workers": getattr(given, "num_workers", None),
        "shuffle": isinstance(given.sampler, RandomSampler) if loader else shuffles if own else None,
        "drop_last": getattr(given, "drop_last", None),
        "dataset": type(dataset).__name__ if loader else None,
        "samples": _length(dataset) if loader else None,
    }
    return {name: value for name, value in told.items() if isinstance(value, (bool, int, str))}


def _length(given: Any) -> int | None:
    with suppress(Exception):  # the user's code; an iterable dataset has none
        return len(given) if isinstance(given, Sized) else None
    return None


def fingerprint(given: Any) -> str:
    """A digest of types, sizes and some of the values of what a loader, dataset or list of batches holds.

    >>> batches = [torch.ones(2, 3), torch.zeros(2, 3)]
    >>> fingerprint(batches) == fingerprint([each.clone() for each in batches])
    True
    >>> fingerprint(batches) == fingerprint(batches[::-1])
    False
    """
    import xxhash

    digest = xxhash.xxh3_128()
    for piece in _pieces(given.dataset if isinstance(given, DataLoader) else given, 0, set()):
        digest.update(piece)
    return digest.hexdigest()[:16]


def _pieces(value: Any, depth: int, seen: set[int]) -> Iterator[bytes | memoryview]:
    if isinstance(value, (Tensor, np.ndarray)):
        yield from _of_array(value)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, np.generic)):
        yield f"{type(value).__name__} {value!r:.200}".encode(errors="replace")
    elif depth < _DEEPEST and id(value) not in seen:
        seen = {*seen, id(value)}
        yield type(value).__qualname__.encode()
        if type(value) is dict:
            yield str(len(value)).encode()
            members: Iterable[Any] = chain.from_iterable(islice(value.items(), SAMPLES))
        elif type(value) in (list, tuple):  # a class of the user's may do anything when it is indexed
            yield str(len(value)).encode()
            members = _some(value)
        else:
            members = _held_by(value)
        for each in members:
            yield from _pieces(each, depth + 1, seen)


def _held_by(value: Any) -> Iterator[Any]:
    """What an object holds, by name. Numbers are left out: they may count how often it was asked."""
    if isinstance(value, (nn.Module, torch.Generator, np.random.Generator, type)) or callable(value):
        return
    for name, each in sorted(getattr(value, "__dict__", {}).items()):
        if not isinstance(each, (bool, int, float)):
            yield name
            yield each


def _some(members: Any) -> Any:
    if len(members) <= SAMPLES:
        return members
    return [members[round(at)] for at in np.linspace(0, len(members) - 1, SAMPLES)]


def _of_array(value: Any) -> Iterator[bytes | memoryview]:
    yield f"{value.dtype} {tuple(value.shape)}".encode()
    if isinstance(value, Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
            return
        value = value.detach()
        if value.numel() * value.element_size() > _WHOLE and value.ndim:
            value = value[_rows(len(value))]
        value = value.contiguous().flatten().view(torch.uint8).numpy()
    elif value.dtype == object:
        flat = value.reshape(-1)
        yield from _pieces([flat[at] for at in _rows(len(flat))], 0, set())
        return
    elif value.nbytes > _WHOLE and value.ndim:
        value = value[_rows(len(value))]
    yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def _rows(count: int) -> list[int]:
    return [round(at) for at in np.linspace(0, count - 1, min(count, SAMPLES))]
