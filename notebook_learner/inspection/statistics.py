"""What a tensor's values are like: measured where they lie, brought over together.

Reading one number from a GPU waits for all that is queued there. So measuring gives `Pending` values,
which live on the device, and `bring_over` reads any number of them in one transfer per device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

BINS = 20
_CHUNK = {"cpu": 1 << 17, "other": 1 << 24}
"""Values measured at a time, whatever the tensor's size. On a CPU what fits its cache: 28 ns a value, and
175 ns with 4 million at a time, whose every temporary is fresh memory. A GPU wants larger ones."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A tensor's values. Mean, spread and range are those of its finite ones.

    Complex numbers count by their magnitude; of a sparse tensor the stored values count. A statistic
    of no values is NaN.
    """

    count: int
    mean: float
    std: float
    min: float
    max: float
    zeros: float
    """The share of values that are exactly zero, 0 to 1."""
    nan: int
    inf: int

    @property
    def norm(self) -> float:
        """The root of the sum of squares; not finite where a value is not."""
        if self.nan:
            return math.nan
        if self.inf:
            return math.inf
        return math.sqrt(self.count * (self.std**2 + self.mean**2)) if self.count else 0.0

    def scaled(self, factor: float) -> Statistics:
        """The statistics of the values times a positive factor."""
        mean, std, low, high = (factor * value for value in (self.mean, self.std, self.min, self.max))
        return Statistics(self.count, mean, std, low, high, self.zeros, self.nan, self.inf)


@dataclass(frozen=True, slots=True)
class Histogram:
    """How the finite values spread over equally wide bins from `low` to `high`."""

    low: float
    high: float
    counts: tuple[int, ...]

    def scaled(self, factor: float) -> Histogram:
        """The histogram of the values times a positive factor."""
        return Histogram(factor * self.low, factor * self.high, self.counts)


@dataclass(frozen=True, slots=True)
class Pending:
    """Numbers still on their device: a row of moments per chunk, and the bins' counts."""

    moments: Tensor
    bins: Tensor


def measure(tensors: Sequence[Tensor]) -> Pending | None:
    """Measure tensors as one set of values; None for what has no values to look at (a meta tensor)."""
    parts = [part for tensor in tensors if (part := values_of(tensor)) is not None]
    if not parts:
        return None
    with torch.no_grad():
        moments = torch.stack([_moments(chunk) for chunk in _chunks(parts)] or [_nothing(parts[0].device)])
        return Pending(moments, _bins(parts, moments[:, 3].min(), moments[:, 4].max()))


def values_of(tensor: Tensor) -> Tensor | None:
    """The stored numbers of any tensor as a plain real one; None where it holds none that can be read."""
    if is_lazy(tensor):
        return None
    tensor = tensor.detach()
    if tensor.is_meta:
        return None
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.is_sparse:  # a sparse gradient names a row as often as the batch does: sum it first
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    return tensor.abs() if tensor.is_complex() else tensor


def wide(device: torch.device) -> torch.dtype:
    """The widest float of a device: Apple's has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def pieces(values: Tensor) -> Sequence[Tensor]:
    """A tensor's values in portions of a size that its device works well with; none if it has none."""
    if not values.numel():
        return ()
    size = _CHUNK["cpu" if values.device.type == "cpu" else "other"]
    return torch.split(values.reshape(-1), size)


def _chunks(parts: Sequence[Tensor]) -> Iterator[Tensor]:
    device = parts[0].device
    for part in parts:
        for chunk in pieces(part):
            yield chunk.to(device, wide(device))


def _moments(x: Tensor) -> Tensor:
    """Of a chunk: finite values, their mean, squared deviations, least, greatest; zeros, NaNs, infs."""
    finite = x.isfinite()
    count = finite.sum()
    mean = x.where(finite, 0).sum() / count.clamp(min=1)
    squares = (x - mean).where(finite, 0).square().sum()
    low, high = x.where(finite, math.inf).min(), x.where(finite, -math.inf).max()
    row = [count, mean, squares, low, high, (x == 0).sum(), x.isnan().sum(), x.isinf().sum()]
    return torch.stack([number.to(x.dtype) for number in row])


def _nothing(device: torch.device) -> Tensor:
    row = [0.0, 0.0, 0.0, math.inf, -math.inf, 0.0, 0.0, 0.0]
    return torch.tensor(row, device=device, dtype=wide(device))


def _bins(parts: Sequence[Tensor], low: Tensor, high: Tensor) -> Tensor:
    width = high - low
    # As numpy does it: all values equal, they are the middle of a bin range one wide.
    low, width = torch.where(width > 0, low, low - 0.5), torch.where(width > 0, width, 1.0)
    total = torch.zeros(BINS + 1, device=low.device, dtype=torch.int64)
    for x in _chunks(parts):
        place = ((x - low) * (BINS / width)).nan_to_num_(0.0, 0.0, 0.0).clamp_(0, BINS - 1).long()
        place = place.where(x.isfinite(), BINS)  # one more bin, for what is in none
        total += torch.bincount(place, minlength=BINS + 1)
    return total.to(wide(low.device))


def bring_over(tensors: Sequence[Tensor]) -> list[np.ndarray[Any, Any]]:
    """Small device tensors as numpy arrays, in one transfer per device."""
    found: list[np.ndarray[Any, Any]] = [np.empty(0)] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        here = [at for at, tensor in enumerate(tensors) if tensor.device == device]
        flat = torch.cat([tensors[at].detach().reshape(-1).to(wide(device)) for at in here]).cpu().numpy()
        ends = np.cumsum([tensors[at].numel() for at in here])[:-1]
        for at, numbers in zip(here, np.split(flat, ends), strict=True):
            found[at] = numbers.reshape(tuple(tensors[at].shape)).astype(np.float64)
    return found


def finish(pending: Sequence[Pending | None]) -> list[tuple[Statistics, Histogram | None] | None]:
    """What was measured, on the host."""
    moments = iter(bring_over([one.moments for one in pending if one is not None]))
    bins = iter(bring_over([one.bins for one in pending if one is not None]))
    return [None if one is None else _finished(next(moments), next(bins)) for one in pending]


def _finished(
    moments: np.ndarray[Any, Any], bins: np.ndarray[Any, Any]
) -> tuple[Statistics, Histogram | None]:
    counts, means, squares, lows, highs, zeros, nans, infs = moments.T
    finite, nan, inf = int(counts.sum()), int(nans.sum()), int(infs.sum())
    total = finite + nan + inf
    if not finite:
        nothing = Statistics(total, *(math.nan,) * 4, 0.0 if total else math.nan, nan, inf)
        return nothing, None
    mean = float((counts * means).sum() / finite)
    # Chan's way to join chunks: no sum of squares, which loses a small spread around a large mean.
    spread = float((squares + counts * (means - mean) ** 2).sum())
    low, high = float(lows.min()), float(highs.max())
    std = math.sqrt(spread / finite)
    statistics = Statistics(total, mean, std, low, high, float(zeros.sum()) / total, nan, inf)
    edges = (low, high) if high > low else (low - 0.5, high + 0.5)
    return statistics, Histogram(*edges, tuple(int(value) for value in bins[:BINS]))


def look_at(tensors: Sequence[Tensor]) -> tuple[Statistics, Histogram | None] | None:
    """Statistics and histogram of tensors as one set of values, read at once.

    >>> statistics, histogram = look_at([torch.tensor([0.0, 1.0, 2.0, float("nan")])])
    >>> statistics.mean, statistics.max, statistics.nan, histogram.counts[0]
    (1.0, 2.0, 1, 1)
    """
    (found,) = finish([measure(tensors)])
    return found
