"""Rows that a metric keeps of all samples: appended step by step, and joined over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .base import AccumulatedText, AnyMetric, Counted, Floats, Metric

SMALLEST, LARGEST = 4 << 10, 16 << 20
"""Bytes of the first block, and of the largest block: memory that is reserved before rows fill it."""

Part = tuple[Tensor, ...]


class Appended:
    """Tensors that grow by rows together (scores and their targets).

    A part that `parts` has returned never changes: later rows are written after it, in the same memory, and
    no row is overwritten. So a captured state holds parts without a copy, and costs only the rows since the
    last one. The borders between parts depend on the rows alone: a state that was put back gives the same
    parts as one that never stopped.

    >>> kept = Appended()
    >>> kept.append(torch.tensor([1.0, 2.0]))
    >>> ((before,),) = kept.parts()
    >>> kept.append(torch.tensor([3.0]))
    >>> before.tolist(), [part.tolist() for part, in kept.parts()]
    ([1.0, 2.0], [[1.0, 2.0, 3.0]])

    Args:
        parts: the rows that are there already, from an earlier `parts` or from a file. It is never
            written to.
    """

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self._closed: list[Part] = list(parts)
        self._block: Part = ()
        self._filled = 0

    def __bool__(self) -> bool:
        return bool(self._closed) or self._filled > 0

    def append(self, *rows: Tensor) -> None:
        """Copy rows after the others: the same number for each tensor."""
        done, count = 0, len(rows[0])
        while done < count:
            if not self._has_room(rows):
                self._begin(rows)
            taken = min(count - done, len(self._block[0]) - self._filled)
            for block, each in zip(self._block, rows, strict=True):
                block[self._filled : self._filled + taken] = each[done : done + taken]
            self._filled += taken
            done += taken

    def parts(self) -> list[Part]:
        """Return all rows, in few pieces."""
        if not self._filled:
            return list(self._closed)
        return [*self._closed, tuple([block[: self._filled] for block in self._block])]

    def _has_room(self, rows: Part) -> bool:
        return bool(self._block) and self._filled < len(self._block[0]) and _alike(self._block, rows)

    def _begin(self, rows: Part) -> None:
        """Begin a new block, twice as long as the one before, or one that continues a part that was given."""
        self._closed, self._filled = self.parts(), 0
        last = self._closed[-1] if self._closed and not self._block else ()
        if last and _alike(last, rows) and len(last[0]) < _length(rows, len(self._closed) - 1):
            self._closed.pop()
        else:
            last = ()
        length = _length(rows, len(self._closed))
        with torch.inference_mode(False):  # later steps could not write to a tensor of that mode
            self._block = tuple(
                [
                    torch.empty((length, *each.shape[1:]), dtype=each.dtype, device=each.device)
                    for each in rows
                ]
            )
        if last:
            self.append(*last)


def _alike(some: Part, others: Part) -> bool:
    return all(
        [
            one.shape[1:] == other.shape[1:] and one.dtype == other.dtype and one.device == other.device
            for one, other in zip(some, others, strict=True)
        ]
    )


def _length(rows: Part, place: int) -> int:
    """How many rows the block at this place holds."""
    width = sum([each[:1].nbytes for each in rows]) or 1
    return max(1, min(SMALLEST << min(place, 16), LARGEST) // width)


ABSENT = object()
"""What a metric that counts later keeps for a step in which this rank had no sample."""


HOW_TO_MERGE = "define merge(self, state), which adds another one's state_dict() to its own"


@dataclass(frozen=True, slots=True)
class Rows:
    """What one rank measured in a block of steps, by metric."""

    steps: int
    values: Mapping[str, Floats]
    weights: Mapping[str, Floats]
    states: Mapping[str, Any]
    """What its metrics accumulated since the last call."""
    seconds: float = 0.0
    """The time of the steps, without the wait for other ranks; 0 if it was not measured."""


def counts_of(metric: Counted, kept: Sequence[Any]) -> Floats:
    """Return the counts of each step; those of a step without a sample are zero."""
    there = [index for index, each in enumerate(kept) if each is not ABSENT]
    if not there:
        return np.zeros((len(kept), 0))
    if len(there) == len(kept):
        return metric.count(kept)
    counts = metric.count([kept[index] for index in there])
    rows = np.zeros((len(kept), counts.shape[1]))
    rows[there] = counts
    return rows


def merged(metric: Metric, raw: Floats, weights: Floats, others: Sequence[Rows]) -> tuple[Floats, Floats]:
    """Return the values and weights of the same steps, of this rank and the others together."""
    nothing = np.full(len(raw), np.nan), np.zeros(len(raw))
    pairs = [(raw, weights)]
    for each in others:
        name = metric.name
        pairs.append((each.values[name], each.weights[name]) if name in each.values else nothing)
    if isinstance(metric, Counted):
        width = max(values.shape[1] for values, _ in pairs if values.ndim == 2)
        counted = [values for values, _ in pairs if values.ndim == 2 and values.shape[1] == width]
        counts: Floats = np.sum(counted, axis=0)
        return counts, metric.weights(counts)
    behind = np.stack([weights for _, weights in pairs])
    together = metric.merged(np.stack([values for values, _ in pairs]), behind)
    return together, behind.sum(0) if metric.weighted else behind.max(0)


def accumulates(metric: AnyMetric) -> bool:
    """Whether a metric has its own state, which ranks have to merge; counts are in the rows."""
    if isinstance(metric, Counted):
        return False
    for kind in (Metric, AccumulatedText):
        if isinstance(metric, kind):
            return type(metric).state_dict is not kind.state_dict
    return False


def says_how_to_merge(metric: AnyMetric) -> bool:
    """Whether the states of several ranks can be merged into one."""
    for kind in (Metric, AccumulatedText):
        if isinstance(metric, kind) and not isinstance(metric, Counted) and _keeps(metric):
            return accumulates(metric) and type(metric).merge is not kind.merge
    return True


def _keeps(metric: Metric | AccumulatedText) -> bool:
    """Whether it computes its value from its own state, returned by `state_dict` or not."""
    return accumulates(metric) or not isinstance(metric, Metric) or type(metric).compute is not Metric.compute
