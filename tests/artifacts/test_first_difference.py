"""The first step at which two records differ, however each of them is cut into blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.artifacts.diff import _compared
from notebook_learner.event.values import Column, MetricBlock, SplitRecord

STEPS = 12


def block(values: list[float], first: int) -> MetricBlock:
    column = Column(np.array(values), np.ones(len(values)))
    return MetricBlock(1, "train", first, len(values), first + len(values) - 1, {"Loss": column}, {}, 0.0)


def record(values: list[float], cuts: set[int]) -> Any:
    edges = [0, *sorted(cut for cut in cuts if cut < len(values)), len(values)]
    blocks = tuple(block(values[one:other], one + 1) for one, other in pairwise(edges) if one < other)
    return (SplitRecord(1, "train", blocks),)


cuts = st.sets(st.integers(1, STEPS - 1))
values = st.lists(st.sampled_from([0.0, 1.0, float("nan")]), min_size=1, max_size=STEPS)


@given(values, values, cuts, cuts)
def test_it_is_the_first_step_with_another_value(
    one: list[float], other: list[float], mine: set[int], its: set[int]
) -> None:
    (found,) = _compared(record(one, mine), record(other, its))
    pairs = list(zip(one, other, strict=False))
    same = [a == b or (a != a and b != b) for a, b in pairs]
    if all(same):
        assert found == (None, None, None, len(pairs))
    else:
        step = same.index(False)
        place, name, told, before = found
        assert place is not None and (place.step, name, before) == (step + 1, "Loss", step)
        np.testing.assert_array_equal(told, pairs[step])
