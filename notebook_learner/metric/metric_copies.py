"""Copies of a metric: each copy accumulates one pass over one split, and belongs to one loop."""

from __future__ import annotations

import copy
from contextlib import suppress

from .base import AnyMetric


def own_copy(metric: AnyMetric) -> AnyMetric:
    """Return another metric that measures the same."""
    free = copy.copy(metric)
    with suppress(AttributeError):
        del free.context  # it refers to a loop, and to everything in the loop
    given = [getattr(free, name, None) for name in free.by_reference]
    return copy.deepcopy(free, {id(each): each for each in given if each is not None})
