"""Measure the values of tensors on their device, and read all results together.

Reading one number from a GPU waits for all queued work. So results stay on their device, and `bring_over`
reads any number of them in one transfer per device. Each call of torch costs microseconds. So tensors of one
shape are measured together, as the rows of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

_MOST_WAITING = 256
"""The most copies of small tensors at a time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How many of some values are not finite, and their range."""

    low: float = 0.0
    high: float = 0.0
    count: int = 0
    total: int = 0

    @property
    def level(self) -> int:
        """0: all finite; 1: -inf, as in masks, but no NaN or inf; 2: NaN or inf."""
        if math.isnan(self.low) or math.isnan(self.high) or self.high == math.inf:
            return 2
        return 1 if self.count else 0

    def __str__(self) -> str:
        return f"{self.count:,} of {self.total:,} values"


_FINITE = Finding()


class Questions:
    """Checks of tensors, started now and read later. Each costs two passes or a copy, and no waiting."""

    def __init__(self) -> None:
        self._totals: list[int] = []
        self._rows: Rows = []
        self._waiting: dict[int, Tensor] = {}

    def ask(self, tensors: Sequence[Tensor]) -> range:
        """Check tensors; return the numbers of the questions."""
        first, together, parts = len(self._totals), 0, dict[int, Tensor]()
        for number, tensor in enumerate(tensors, first):
            size = 0
            if tensor.is_floating_point() or tensor.is_complex():
                for values in values_in([tensor]):
                    parts[number], size = values, values.numel()
            self._totals.append(size)
            together += size
        if together <= FEW:  # it may be overwritten or freed before there are enough
            for number, values in parts.items():
                self._waiting[number] = values.clone()
            if len(self._waiting) > _MOST_WAITING:
                self._look()
        else:
            self._rows += _looked_at(parts)
        return range(first, len(self._totals))

    def answers(self) -> list[Finding]:
        """Return the findings, one for each question."""
        self._look()
        found = [_FINITE] * len(self._totals)
        places, rows = read(self._rows)
        for at in np.flatnonzero(rows[:, 2]) if places else ():
            number, (low, high, count) = places[at], rows[at].tolist()
            known = found[number]
            worse = (float(np.minimum(known.low, low)), float(np.maximum(known.high, high)))  # NaN stays
            found[number] = Finding(*worse, known.count + int(count), self._totals[number])
        return found

    def _look(self) -> None:
        self._rows += _looked_at(self._waiting)
        self._waiting = {}


def worst(findings: Iterable[Finding]) -> Finding:
    """The finding of the highest level."""
    return max(findings, key=lambda finding: finding.level, default=Finding())


def _looked_at(parts: dict[int, Tensor]) -> Rows:
    numbers = [*parts]
    rows = rows_of([*parts.values()], _bounds)
    return [([numbers[at] for at in places], found) for places, found in rows]


def _bounds(values: Tensor) -> Tensor:
    """For each row: least, greatest (both NaN if one value is NaN), and the number of values not finite."""
    values = values.float() if values.element_size() == 1 else values
    low, high = values.aminmax(dim=1)
    count = values.shape[1] - values.isfinite().sum(1)
    return torch.stack([number.to(wide(values.device)) for number in (low, high, count)], 1)


BINS = 20
_CHUNK = {"cpu": 1 << 17, "other": 1 << 24}
"""Values measured at a time, for tensors of any size. On a CPU they fit its cache: 28 ns per value. With
4 million at a time it takes 175 ns, because every temporary is new memory. A GPU needs larger portions."""
FEW = 4096
"""Up to this number of values, it is faster to copy them and measure them later together with others."""
UNREADABLE = (RuntimeError, NotImplementedError, TypeError)
"""The errors for a number format that the device cannot compute with."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a tensor's values. Mean, spread and range cover only the finite ones.

    Complex numbers count by their magnitude. Of a sparse tensor, only the stored values count. A statistic of
    no values is NaN.
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
        """The root of the sum of squares; not finite if a value is not."""
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
    """The counts of the finite values in equally wide bins from `low` to `high`."""

    low: float
    high: float
    counts: tuple[int, ...]

    def scaled(self, factor: float) -> Histogram:
        """The histogram of the values times a positive factor."""
        return Histogram(factor * self.low, factor * self.high, self.counts)


Both = tuple[Statistics, Histogram | None] | None
Rows = list[tuple[list[int], Tensor]]
"""Results still on their devices: a row for each piece of a tensor, and the tensors' places in their list."""


class Measurements:
    """Sets of tensors measured now and read later: `ask`, then `answers`."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: dict[int, list[Tensor]] = {}
        self._measured: list[_Measured] = []

    def ask(self, sets: Sequence[Sequence[Tensor]]) -> range:
        """Measure each set as one set of values; return the numbers of the sets."""
        numbers = range(self._count, self._count + len(sets))
        self._count += len(sets)
        parts = {number: values_in(tensors) for number, tensors in zip(numbers, sets, strict=True)}
        parts = {number: found for number, found in parts.items() if found}
        if sum(part.numel() for found in parts.values() for part in found) <= FEW:
            self._waiting |= {number: [part.clone() for part in found] for number, found in parts.items()}
        else:
            self._measured += _measured(parts)
        return numbers

    def answers(self) -> list[Both]:
        """Return the results by number; None for a set without readable values (a meta tensor)."""
        self._measured += _measured(self._waiting)
        self._waiting = {}
        found: list[Both] = [None] * self._count
        for one in self._measured:
            for number, both in zip(one.numbers, _finished(one), strict=True):
                found[number] = both
        return found


def values_in(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The values of those tensors that hold some."""
    found = []
    for tensor in tensors:
        try:
            values = values_of(tensor)
        except UNREADABLE:
            continue
        if values is not None:
            found.append(values)
    return found


def values_of(tensor: Tensor) -> Tensor | None:
    """The stored values of any tensor as a plain real tensor; None if it has no readable values."""
    if is_lazy(tensor) or tensor.is_meta or (tensor.is_nested and tensor.layout is torch.strided):
        return None
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.is_quantized:
        return tensor.dequantize()
    if tensor.is_sparse:  # a sparse gradient repeats a row as often as the batch does: sum first
        tensor = tensor.coalesce().values()
    elif tensor.layout is not torch.strided:
        tensor = tensor.values()
    return tensor.abs() if tensor.is_complex() else tensor


def wide(device: torch.device) -> torch.dtype:
    """The widest float type of a device: Apple's has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def pieces(values: Tensor) -> Sequence[Tensor]:
    """Split a tensor's values into portions of a good size for its device; no portions without values."""
    if not values.numel():
        return ()
    return torch.split(values.reshape(-1), _most(values))


def _most(values: Tensor) -> int:
    return _CHUNK["cpu" if values.device.type == "cpu" else "other"]


def rows_of(parts: Sequence[Tensor], work: Callable[[Tensor], Tensor]) -> Rows:
    """Apply `work` to matrices whose rows are pieces of these tensors, and return its results."""
    rows: Rows = []
    in_matrices(parts, lambda places, matrix: rows.append((places, work(matrix))))
    return rows


def read(rows: Rows) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Read the places and the rows to the host."""
    places = [at for which, _ in rows for at in which]
    numbers = bring_over([found for _, found in rows])
    return places, np.concatenate(numbers) if numbers else np.empty((0, 0))


@torch.no_grad()
def in_matrices(parts: Sequence[Tensor], work: Callable[[list[int], Tensor], None]) -> None:
    """Call `work` with the places of tensors and a matrix of their values, one row each.

    A matrix holds many small tensors of one shape, or a piece of one tensor. Unreadable tensors are left out.
    """
    alike: dict[Any, list[int]] = {}
    for at, part in enumerate(parts):
        alike.setdefault((part.shape, part.dtype, part.device), []).append(at)
    for places in alike.values():
        with suppress(*UNREADABLE):
            for which, matrix in _matrices(parts, places):
                work(which, matrix)


def _matrices(parts: Sequence[Tensor], places: list[int]) -> Iterator[tuple[list[int], Tensor]]:
    size, most = parts[places[0]].numel(), _most(parts[places[0]])
    if len(places) == 1 or not 0 < size <= most // 2:
        yield from (([at], piece[None]) for at in places for piece in pieces(parts[at]))
        return
    for start in range(0, len(places), most // size):
        which = places[start : start + most // size]
        yield which, torch.stack([parts[at] for at in which]).reshape(len(which), size)


@dataclass(frozen=True, slots=True)
class _Measured:
    """Results of sets, still on a device.

    They are a row of moments for each piece, the place of its set, and a row of bins for each set.
    """

    numbers: list[int]
    moments: Tensor
    owners: Tensor
    bins: Tensor


def _measured(sets: dict[int, list[Tensor]]) -> list[_Measured]:
    by_device: dict[torch.device, dict[int, list[Tensor]]] = {}
    for number, parts in sets.items():
        device = parts[0].device
        by_device.setdefault(device, {})[number] = [part.to(device) for part in parts]
    return [_measured_on(device, own) for device, own in by_device.items()]


@torch.no_grad()
def _measured_on(device: torch.device, sets: dict[int, list[Tensor]]) -> _Measured:
    parts = [part for own in sets.values() for part in own]
    owner = [at for at, own in enumerate(sets.values()) for _ in own]
    rows = rows_of(parts, _moments)
    places = [owner[at] for which, _ in rows for at in which]
    empty = [at for at, part in zip(owner, parts, strict=True) if not part.numel()]
    rows.append((empty, _nothing(device).expand(len(empty), -1)))
    moments = torch.cat([found for _, found in rows])
    owners = torch.tensor([*places, *empty], dtype=torch.int64, device=device)
    low = torch.full((len(sets),), math.inf, dtype=moments.dtype, device=device)
    high = (-low).scatter_reduce_(0, owners, moments[:, 4], "amax")
    low.scatter_reduce_(0, owners, moments[:, 3], "amin")
    return _Measured([*sets], moments, owners, _bins(parts, owner, low, high))


def _moments(values: Tensor) -> Tensor:
    """For each row: finite values, their mean, squared deviations, least, greatest; zeros, NaNs, infs."""
    x = values.to(wide(values.device))
    finite = x.isfinite()
    count = finite.sum(1)
    mean = x.where(finite, 0).sum(1) / count.clamp(min=1)
    squares = (x - mean[:, None]).where(finite, 0).square().sum(1)
    low, high = x.where(finite, math.inf).amin(1), x.where(finite, -math.inf).amax(1)
    row = [count, mean, squares, low, high, (x == 0).sum(1), x.isnan().sum(1), x.isinf().sum(1)]
    return torch.stack([number.to(x.dtype) for number in row], 1)


def _nothing(device: torch.device) -> Tensor:
    row = [0.0, 0.0, 0.0, math.inf, -math.inf, 0.0, 0.0, 0.0]
    return torch.tensor(row, device=device, dtype=wide(device))


def _bins(parts: Sequence[Tensor], owner: Sequence[int], low: Tensor, high: Tensor) -> Tensor:
    width = high - low
    # As in numpy: if all values are equal, the range is one wide with the value in its middle.
    low, width = torch.where(width > 0, low, low - 0.5), torch.where(width > 0, width, 1.0)
    total = torch.zeros(len(low), BINS + 1, device=low.device, dtype=torch.int64)

    def count(which: list[int], values: Tensor) -> None:
        own = torch.tensor([owner[at] for at in which], device=low.device)
        x = values.to(low.dtype)
        place = (x - low[own, None]) * (BINS / width[own, None])
        place = place.nan_to_num_(0.0, 0.0, 0.0).clamp_(0, BINS - 1).long()
        place = place.where(x.isfinite(), BINS)  # one more bin, for values outside all bins
        place += torch.arange(len(which), device=low.device)[:, None] * (BINS + 1)
        counts = torch.bincount(place.reshape(-1), minlength=len(which) * (BINS + 1))
        total.index_add_(0, own, counts.reshape(len(which), BINS + 1))

    in_matrices(parts, count)
    return total


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


def _finished(one: _Measured) -> list[Both]:
    moments, owners, bins = bring_over([one.moments, one.owners, one.bins])
    counts, means, squares, lows, highs, zeros, nans, infs = moments.T
    places, sets = owners.astype(np.int64), len(one.numbers)

    def total(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.bincount(places, values, sets)

    low, high = np.full(sets, math.inf), np.full(sets, -math.inf)
    np.minimum.at(low, places, lows)
    np.maximum.at(high, places, highs)
    finite = total(counts)
    mean = total(counts * means) / np.maximum(finite, 1)
    # Chan's method to join pieces: a sum of squares would lose a small spread around a large mean.
    spread = total(squares + counts * (means - mean[places]) ** 2)
    std = np.sqrt(spread / np.maximum(finite, 1))
    known = np.bincount(places, minlength=sets)
    columns = [known, finite, mean, std, low, high, total(zeros), total(nans), total(infs)]
    rows = zip(
        *(column.tolist() for column in columns), bins[:, :BINS].astype(np.int64).tolist(), strict=True
    )
    return [_described(*row) if row[0] else None for row in rows]


def _described(
    _: int,
    finite: float,
    mean: float,
    std: float,
    low: float,
    high: float,
    zeros: float,
    nan: float,
    inf: float,
    bins: list[int],
) -> Both:
    total = int(finite + nan + inf)
    if not finite:
        return Statistics(total, *(math.nan,) * 4, 0.0 if total else math.nan, int(nan), int(inf)), None
    statistics = Statistics(total, mean, std, low, high, zeros / total, int(nan), int(inf))
    edges = (low, high) if high > low else (low - 0.5, high + 0.5)
    return statistics, Histogram(*edges, tuple(bins))


def look_at(tensors: Sequence[Tensor]) -> Both:
    """Return statistics and histogram of tensors as one set of values, and wait for the device.

    >>> statistics, histogram = look_at([torch.tensor([0.0, 1.0, 2.0, float("nan")])])
    >>> statistics.mean, statistics.max, statistics.nan, histogram.counts[0]
    (1.0, 2.0, 1, 1)
    """
    asked = Measurements()
    asked.ask([tensors])
    (found,) = asked.answers()
    return found
