"""What the ranks of one training measured in the same steps, joined.

A step's value is that of the whole batch: sums of counts, or means weighted by the number of samples, never a
mean of means. What metrics accumulate is merged by their own rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .base import AccumulatedText, AnyMetric, Counted, Floats, Metric

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
