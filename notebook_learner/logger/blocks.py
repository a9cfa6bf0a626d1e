"""Arithmetic on metric blocks: joining many small ones, cutting one, and how far two runs agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..event.values import Column, Floats, MetricBlock, SplitRecord

TextRuns = tuple[tuple[int, str], ...]


def text_runs(block: MetricBlock, name: str) -> TextRuns:
    """A text metric's lines over the block's rows, as (rows, text) runs."""
    return block.text_runs.get(name) or ((block.count, block.texts[name]),)


def last_step(record: SplitRecord) -> int:
    """The last step the pass's blocks know."""
    return record.blocks[-1].last if record.blocks else 0


# ------------------------------------------------------------------------------------------- join


def joined(blocks: Sequence[MetricBlock]) -> list[MetricBlock]:
    """The same rows in as few blocks as can be: neighbours with the same metrics become one."""
    groups: list[list[MetricBlock]] = []
    for block in blocks:
        if groups and joinable(groups[-1][-1], block):
            groups[-1].append(block)
        else:
            groups.append([block])
    return [group[0] if len(group) == 1 else _join(group) for group in groups]


def joinable(block: MetricBlock, following: MetricBlock) -> bool:
    """Whether two blocks are neighbours and hold the same metrics."""
    return following.first == block.last + 1 and _shape(block) == _shape(following)


def _shape(block: MetricBlock) -> tuple[dict[str, bool], frozenset[str]]:
    weighted = {name: column.weights is not None for name, column in block.columns.items()}
    return weighted, frozenset(block.texts)


def _join(group: Sequence[MetricBlock]) -> MetricBlock:
    first, last = group[0], group[-1]
    return MetricBlock(
        epoch=last.epoch,
        split=last.split,
        first=first.first,
        count=sum(block.count for block in group),
        iteration=last.iteration,
        columns=_join_columns(group),
        texts=last.texts,
        seconds=sum(block.seconds for block in group),
        text_runs=_join_texts(group),
    )


def _join_columns(group: Sequence[MetricBlock]) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    shared: list[Floats] = []  # most metrics weigh by samples: equal weights are kept once
    for name in group[0].columns:
        values = _frozen(np.concatenate([block.columns[name].values for block in group]))
        parts = [part for block in group if (part := block.columns[name].weights) is not None]
        columns[name] = Column(values, _share(np.concatenate(parts), shared) if parts else None)
    return columns


def _share(weights: Floats, shared: list[Floats]) -> Floats:
    for known in shared:
        if np.array_equal(known, weights):
            return known
    shared.append(_frozen(weights))
    return weights


def _frozen(array: Floats) -> Floats:
    array.flags.writeable = False
    return array


def _join_texts(group: Sequence[MetricBlock]) -> dict[str, TextRuns]:
    together: dict[str, TextRuns] = {}
    for name in group[0].texts:
        runs = _merge(run for block in group for run in text_runs(block, name))
        if len(runs) > 1:
            together[name] = runs
    return together


def _merge(runs: Iterable[tuple[int, str]]) -> TextRuns:
    merged: list[tuple[int, str]] = []
    for rows, text in runs:
        if merged and merged[-1][1] == text:
            merged[-1] = (merged[-1][0] + rows, text)
        else:
            merged.append((rows, text))
    return tuple(merged)


# ---------------------------------------------------------------------------------------- compare


def same_pass(ours: SplitRecord, theirs: SplitRecord) -> bool:
    """Whether two passes hold the same steps and end alike, NaN equal to NaN."""
    if ours is theirs:
        return True
    if (ours.epoch, ours.split) != (theirs.epoch, theirs.split) or not _same_finals(
        ours.finals, theirs.finals
    ):
        return False
    return last_step(ours) == last_step(theirs) == common_steps(ours, theirs)


def common_steps(ours: SplitRecord, theirs: SplitRecord) -> int:
    """How many leading steps of a pass are the same in both, every metric and text of them."""
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
    # repr tells -0.0 from 0.0 and takes NaN for NaN, as the log file does.
    return {k: repr(float(v)) for k, v in ours.items()} == {k: repr(float(v)) for k, v in theirs.items()}


def _equal_rows(ours: MetricBlock, theirs: MetricBlock, first: int, last: int) -> int:
    """How many rows of the steps first..last agree, from the first on."""
    if _shape(ours) != _shape(theirs):
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
        rows = _text_prefix(_expand(mine, a, rows), _expand(yours, b, rows))
    return rows


def _prefix(a: Floats, b: Floats) -> int:
    differ = ~((_bits(a) == _bits(b)) | (np.isnan(a) & np.isnan(b)))
    return int(differ.argmax()) if differ.any() else len(differ)


def _bits(array: Floats) -> NDArray[np.int64]:
    return np.asarray(array, dtype=np.float64).view(np.int64)


def _expand(runs: TextRuns, start: int, rows: int) -> list[str]:
    lines = [text for count, text in runs for _ in range(count)]
    return lines[start : start + rows]


def _text_prefix(a: list[str], b: list[str]) -> int:
    return next((row for row, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))
