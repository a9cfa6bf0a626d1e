"""Compares the records of two runs, to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import NDArray

from ..event.record import TextRuns, shape_of, text_runs
from ..event.values import Floats, MetricBlock, SplitRecord


def last_step(record: SplitRecord) -> int:
    """The last step in the pass's blocks."""
    return record.blocks[-1].last if record.blocks else 0


def same_pass(ours: SplitRecord, theirs: SplitRecord) -> bool:
    """Whether two passes hold the same steps and the same final values; NaN equals NaN."""
    if ours is theirs:
        return True
    if (ours.epoch, ours.split) != (theirs.epoch, theirs.split) or not _same_finals(
        ours.finals, theirs.finals
    ):
        return False
    return last_step(ours) == last_step(theirs) == common_steps(ours, theirs)


def common_steps(ours: SplitRecord, theirs: SplitRecord) -> int:
    """How many leading steps of a pass are equal in both, in every metric and text."""
    if (ours.epoch, ours.split) != (theirs.epoch, theirs.split):
        return 0
    step, i, j = 0, 0, 0
    while i < len(ours.blocks) and j < len(theirs.blocks):
        mine, other = ours.blocks[i], theirs.blocks[j]
        first = max(step + 1, mine.first)
        if first != max(step + 1, other.first):
            return step  # one of them has a gap here
        last = min(mine.last, other.last)
        equal = last if mine is other else first - 1 + _equal_rows(mine, other, first, last)
        if equal < last:
            return step if equal < first else equal
        step = last
        i += mine.last == last
        j += other.last == last
    return step


def _same_finals(ours: Mapping[str, float] | None, theirs: Mapping[str, float] | None) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    # Like the log file, repr distinguishes -0.0 from 0.0 and treats NaN as equal to NaN.
    return {k: repr(float(v)) for k, v in ours.items()} == {k: repr(float(v)) for k, v in theirs.items()}


def _equal_rows(ours: MetricBlock, theirs: MetricBlock, first: int, last: int) -> int:
    """How many rows of the steps first..last are equal, from the first on."""
    if shape_of(ours) != shape_of(theirs):
        return 0
    rows = last - first + 1
    a, b = first - ours.first, first - theirs.first
    for name, column in ours.columns.items():
        other = theirs.columns[name]
        rows = _prefix(column.values[a : a + rows], other.values[b : b + rows])
        if column.weights is not None and other.weights is not None:
            rows = _prefix(column.weights[a : a + rows], other.weights[b : b + rows])
    for name in ours.texts:
        mine, yours = text_runs(ours, name), text_runs(theirs, name)
        if mine is not yours or a != b:
            rows = _text_prefix(_expanded(mine, a, rows), _expanded(yours, b, rows), rows)
    return rows


def _prefix(a: Floats, b: Floats) -> int:
    differ = ~((_bits(a) == _bits(b)) | (np.isnan(a) & np.isnan(b)))
    return int(differ.argmax()) if differ.any() else len(differ)


def _bits(array: Floats) -> NDArray[np.int64]:
    return np.asarray(array, dtype=np.float64).view(np.int64)


def _expanded(runs: TextRuns, start: int, rows: int) -> Iterator[str]:
    lines = chain.from_iterable(repeat(text, count) for count, text in runs)
    return islice(lines, start, start + rows)


def _text_prefix(a: Iterator[str], b: Iterator[str], rows: int) -> int:
    return next((row for row, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), rows)
