"""Batches of data that lie in memory: one look-up for a whole batch, in place of one for each sample.

torch's loader looks up every sample of a batch and then stacks them, which takes 70 us for 32 samples; to
gather the same rows at once takes 6. This is done where the batch is certainly the same to the bit: torch's
own datasets, collate and fetcher, no workers, plain tensors. It is asked anew for each batch, as the user may
change data and code in between. All else goes torch's way, and so do errors: their words are torch's.

With `devices(..., data="device")` the rows come from a copy on the device that trains.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor
from torch._C._autograd import _profiler_enabled
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torch.utils.data._utils import collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from .batch import is_on

Numbers = NDArray[np.int64]


class _TorchsWay(Exception):
    """It is not certain that gathering gives the same."""


class OnDevice:
    """Copies of tensors on the device that trains. A tensor that was changed in place is copied anew."""

    def __init__(self, device: torch.device, tell: Callable[[str], None]) -> None:
        self.device, self._tell = device, tell
        self._copies: dict[int, tuple[weakref.ref[Tensor], Any, Tensor | None]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The tensor's copy, or the tensor itself if it is there already."""
        if is_on(tensor, self.device):
            return tensor
        state = tensor._version, tensor.data_ptr(), tensor.shape
        known = self._copies.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != state:
            alive = {key: each for key, each in self._copies.items() if each[0]() is not None}
            alive.pop(id(tensor), None)
            self._copies = alive  # before the new copy takes memory
            known = self._copies[id(tensor)] = weakref.ref(tensor), state, self._copied(tensor)
        if known[2] is None:
            raise _TorchsWay
        return known[2]

    def _copied(self, tensor: Tensor) -> Tensor | None:
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 2 * tensor.nbytes
        if 2 * tensor.nbytes <= free:
            return tensor.to(self.device)
        self._tell(
            f'devices(..., data="device"): {tensor.nbytes >> 20:,} MiB of data stay on the host: they would '
            f"take more than half of what is free on {self.device}, {free >> 20:,} MiB"
        )
        return None


def gathering(iterator: Any, home: OnDevice | None = None) -> Iterator[Any]:
    """An iterator of torch's DataLoader that gathers its batches, if it fetches them in torch's own way."""
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if (
        type(iterator) is not _SingleProcessDataLoaderIter
        or type(fetcher) is not _MapDatasetFetcher
        or not fetcher.auto_collation
        or fetcher.collate_fn is not collate.default_collate
        or not all(
            map(_is_torchs, (_MapDatasetFetcher.fetch, collate.default_collate, collate.collate, _STACKS))
        )
        or not looks_up(fetcher.dataset)
    ):
        return iterator  # type: ignore[no-any-return]
    return _Gathering(iterator, fetcher, home)


def looks_up(dataset: Any) -> bool:
    """Whether a sample is only looked up: a dataset of torch over tensors, which draws nothing."""
    if not _looks_up_as_torch(dataset):
        return False
    if type(dataset) is Subset:
        return looks_up(dataset.dataset)
    return type(dataset) is TensorDataset or all(map(looks_up, dataset.datasets))


class _Gathering:
    """Does what `next(inner)` does, faster. Few calls and attributes count here: code that runs once a step
    is not in the processor's cache, so that it takes three times as long as measured alone."""

    def __init__(self, inner: Any, fetcher: Any, home: OnDevice | None) -> None:
        self.inner, self._home = inner, home
        self._usual, self._dataset = fetcher, fetcher.dataset
        self._plain: dict[int, Any] = {}
        """By dataset: the tensors that were found to be plain. They are compared, so no id is taken amiss."""
        self._ways = _ways()
        inner._dataset_fetcher = self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        inner = self.inner
        if inner._pin_memory or _profiler_enabled() or _BaseDataLoaderIter.__next__ is not _NEXT:
            return next(inner)  # with torch's label for a profiler, which takes 4 us
        batch = self.fetch(next(inner._sampler_iter))
        inner._num_yielded += 1
        return batch

    def fetch(self, drawn: Any) -> Any:
        """The batch of these indices, in place of torch's fetcher."""
        try:
            if type(drawn) in _LISTS and collate.default_collate_fn_map == self._ways:
                return self._columns(self._dataset, _numbers(drawn))
        except Exception:  # also an index that is out of range: torch says so in its own words
            pass
        return self._usual.fetch(drawn)

    def _columns(self, dataset: Any, numbers: Numbers) -> list[Tensor]:
        """The samples of these numbers, joined."""
        if type(dataset) is not TensorDataset:
            return self._through(dataset, numbers)
        tensors = dataset.tensors
        if self._plain.get(id(dataset)) is not tensors:
            if not tensors or not _looks_up_as_torch(dataset) or not all(map(_is_plain, tensors)):
                raise _TorchsWay
            if type(tensors) is tuple:
                self._plain[id(dataset)] = tensors
        elif TensorDataset.__getitem__ is not _ITEM or hasattr(dataset, "__getitems__"):
            raise _TorchsWay
        at = torch.from_numpy(numbers)
        return [_rows(tensor, at, self._home) for tensor in tensors]

    def _through(self, dataset: Any, numbers: Numbers) -> list[Tensor]:
        if not _looks_up_as_torch(dataset):
            raise _TorchsWay
        if type(dataset) is Subset:
            return self._columns(dataset.dataset, _chosen(dataset.indices, numbers))
        ends, own = dataset.cumulative_sizes, list[int]()
        parts: dict[int, list[int]] = {}  # by part: the places in the batch of its samples
        for place, number in enumerate(numbers.tolist()):
            if number < 0:
                raise _TorchsWay
            part = bisect_right(ends, number)
            parts.setdefault(part, []).append(place)
            own.append(number - ends[part - 1] if part else number)
        mine = np.array(own)
        found = [self._columns(dataset.datasets[part], mine[places]) for part, places in parts.items()]
        return _joined(found, list(parts.values()))


def _joined(found: list[list[Tensor]], parts: list[list[int]]) -> list[Tensor]:
    """What the parts of a dataset gave, in the order of the batch."""
    if len(found) == 1:
        return found[0]
    if len({tuple((each.dtype, each.device, each.shape[1:]) for each in columns) for columns in found}) > 1:
        raise _TorchsWay
    order = torch.from_numpy(np.argsort(np.concatenate(parts)))
    return [_rows(torch.cat(columns), order) for columns in zip(*found, strict=True)]


def _rows(tensor: Tensor, at: Tensor, home: OnDevice | None = None) -> Tensor:
    # The rows of a tensor of four dimensions may have an order in memory of their own, as channels_last.
    ndim = tensor.ndim
    if tensor.requires_grad or not tensor.numel() or not ndim or (ndim > 3 and not tensor.is_contiguous()):
        raise _TorchsWay
    if home is not None:
        tensor = home.of(tensor)
    if not tensor.is_cpu:
        if not 0 <= int(at.min()) <= int(at.max()) < len(tensor):  # a device would fail for good
            raise _TorchsWay
        at = at.to(tensor.device, non_blocking=True)
    return tensor.index_select(0, at)


def _numbers(drawn: Any) -> Numbers:
    """Indices as a sampler gives them: Python's or NumPy's integers, or tensors of one each."""
    kinds = {*map(type, drawn)}
    if kinds == {Tensor} and all(each.dtype == torch.int64 and not each.ndim for each in drawn):
        return torch.stack(drawn).numpy()
    numbers = np.array(drawn)
    if not kinds <= _INTEGERS or numbers.dtype != np.int64:
        raise _TorchsWay
    return numbers


def _chosen(indices: Any, numbers: Numbers) -> Numbers:
    """The indices of a Subset at these places."""
    if type(indices) in (list, tuple, range):
        return _numbers([indices[number] for number in numbers.tolist()])
    if type(indices) is Tensor:
        indices = indices.numpy()
    if type(indices) is not np.ndarray or indices.dtype != np.int64 or indices.ndim != 1:
        raise _TorchsWay
    return indices[numbers]


_LISTS, _INTEGERS = {list, tuple}, {int, np.int64}

# Whether it is as torch made it ----------------------------------------------------------------------


def _is_plain(tensor: Any) -> bool:
    """Whether it is a tensor without anything special: not sparse, quantized, nested, a subclass ..."""
    return (
        type(tensor) is Tensor
        and tensor.device.type in ("cpu", "cuda")
        and torch._C._dispatch_keys(tensor) == torch._C._dispatch_keys(torch.empty(0, device=tensor.device))
    )


def _is_torchs(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_TORCHS)


_TORCHS = str(Path(torch.utils.data.__file__).parent)


def _look_ups() -> tuple[Any, ...]:
    return TensorDataset.__getitem__, ConcatDataset.__getitem__, Subset.__getitem__, Subset.__getitems__


def _looks_up_as_torch(dataset: Any) -> bool:
    """Whether it is a dataset of torch, and no code of the user's has a part in its look-ups."""
    if _look_ups() != _KNOWN:
        return False
    if type(dataset) is Subset:
        return "__getitems__" not in vars(dataset)
    return type(dataset) in (TensorDataset, ConcatDataset) and not hasattr(dataset, "__getitems__")


_KNOWN = _look_ups() if all(map(_is_torchs, _look_ups())) else None
_ITEM = TensorDataset.__getitem__
_NEXT = _BaseDataLoaderIter.__next__


def _ways() -> dict[Any, Any] | None:
    """How torch joins samples; None if the user has told it of another way for tensors, or tuples of them."""
    ways = collate.default_collate_fn_map
    told = ways.get(Tensor) is not _STACKS or any(isinstance((), kind) for kind in ways)
    return None if told else dict(ways)


_STACKS = collate.collate_tensor_fn
