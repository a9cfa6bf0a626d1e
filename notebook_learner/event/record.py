"""Cuts and compares what was recorded: the arithmetic of going back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .texts import Run, Texts
from .values import Column, Floats, MetricBlock, Record, Split, SplitRecord

TextRuns = Sequence[Run]
Pass = tuple[int, Split]
"""Epoch and split."""


def text_runs(block: MetricBlock, name: str) -> TextRuns:
    """A text metric's lines over the block's rows, as (rows, text) runs."""
    return block.text_runs.get(name) or ((block.count, block.texts[name]),)


def joined(blocks: Sequence[MetricBlock]) -> list[MetricBlock]:
    """The same rows in as few blocks as possible: neighbours with the same metrics become one block."""
    groups: list[list[MetricBlock]] = []
    before: object = None
    for block in blocks:
        shape = shape_of(block)
        if groups and shape == before and _follows(groups[-1][-1], block):
            groups[-1].append(block)
        else:
            groups.append([block])
        before = shape
    return [group[0] if len(group) == 1 else _join(group) for group in groups]


def joinable(block: MetricBlock, following: MetricBlock) -> bool:
    """Whether two blocks are neighbours and hold the same metrics."""
    return _follows(block, following) and shape_of(block) == shape_of(following)


def _follows(block: MetricBlock, following: MetricBlock) -> bool:
    here = (block.epoch, block.split, block.last + 1)
    return here == (following.epoch, following.split, following.first)


def shape_of(block: MetricBlock) -> tuple[dict[str, bool], frozenset[str]]:
    """What two blocks must have in common to become one: the same metrics, with or without weights."""
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
    names = list(group[0].columns)
    weighted = [name for name in names if group[0].columns[name].weights is not None]
    values = _concatenated([block.columns[name].values for block in group for name in names], group)
    columns = {name: Column(_frozen(joint)) for name, joint in zip(names, values, strict=True)}
    parts = [
        part for block in group for name in weighted if (part := block.columns[name].weights) is not None
    ]
    shared: list[Floats] = []  # most metrics weigh by samples: equal weights are kept once
    for name, joint in zip(weighted, _concatenated(parts, group), strict=True):
        columns[name] = Column(columns[name].values, _share(joint, shared))
    return columns


def _concatenated(parts: list[Any], group: Sequence[MetricBlock]) -> list[Floats]:
    """Each metric's rows: all metrics of the first block, then all metrics of the second, and so on."""
    metrics = len(parts) // len(group)
    plain = all([part.dtype == np.float64 for part in parts[:metrics]])
    if parts and plain and all([block.count == 1 for block in group]):
        # With a breakpoint or a condition each step is a block. This takes a third of `concatenate`'s time.
        return [*np.ascontiguousarray(np.frombuffer(b"".join(parts)).reshape(len(group), metrics).T)]
    return [np.concatenate(parts[at::metrics]) for at in range(metrics)]


def _share(weights: Floats, shared: list[Floats]) -> Floats:
    for known in shared:
        if np.array_equal(known, weights):
            return known
    shared.append(_frozen(weights.copy()))  # a copy: a view would keep the weights of all metrics
    return shared[-1]


def _frozen(array: Floats) -> Floats:
    array.flags.writeable = False
    return array


def _join_texts(group: Sequence[MetricBlock]) -> dict[str, TextRuns]:
    together: dict[str, TextRuns] = {}
    for name in group[0].texts:
        runs = Texts.of(run for block in group for run in text_runs(block, name))
        if len(runs) > 1:
            together[name] = runs
    return together


Runs = Sequence[Run]

_ORDER = {"train": 0, "valid": 1}


def cut(record: Record, epoch: int, split: Split, step: int) -> Record:
    """What had been recorded when the run was at this position, before the split was closed."""
    kept: list[SplitRecord] = []
    here = (epoch, _ORDER[split])
    for part in record:
        place = (part.epoch, _ORDER[part.split])
        if place < here:
            kept.append(part)
        elif place == here and step > 0:
            kept.append(SplitRecord(part.epoch, part.split, _first_rows(part.blocks, step)))
    return tuple(kept)


def with_more(
    record: Record, blocks: Sequence[MetricBlock], finals: Mapping[Pass, Mapping[str, float]]
) -> Record:
    """A record with the metrics that these blocks, of steps that were taken again, have and it does not."""
    return tuple(
        replace(
            part,
            blocks=tuple(_with_columns(part.blocks, blocks)),
            finals=part.finals and {**finals.get((part.epoch, part.split), {}), **part.finals},
        )
        for part in record
    )


def _with_columns(own: Sequence[MetricBlock], others: Sequence[MetricBlock]) -> Iterator[MetricBlock]:
    for block in own:
        left = block.first
        for other in others:
            first, last = max(left, other.first), min(block.last, other.last)
            if (other.epoch, other.split) == (block.epoch, block.split) and first <= last:
                if first > left:
                    yield _rows_of(block, left, first - 1)
                yield _merged(_rows_of(block, first, last), _rows_of(other, first, last))
                left = last + 1
        if left <= block.last:
            yield _rows_of(block, left, block.last)


def _rows_of(block: MetricBlock, first: int, last: int) -> MetricBlock:
    return rows(block, first - block.first, last - block.first + 1)


def _merged(block: MetricBlock, other: MetricBlock) -> MetricBlock:
    return replace(
        block,
        columns={**other.columns, **block.columns},
        texts={**other.texts, **block.texts},
        text_runs={**other.text_runs, **block.text_runs},
    )


def rows(block: MetricBlock, start: int, stop: int) -> MetricBlock:
    """Part of a block: rows start..stop, counted from 0."""
    columns = {
        name: Column(
            column.values[start:stop], None if column.weights is None else column.weights[start:stop]
        )
        for name, column in block.columns.items()
    }
    count = max(0, min(stop, block.count) - start)
    behind = block.count - start - count  # rows left out at the end have not been trained yet
    iteration = block.iteration - (behind if block.split == "train" else 0)
    return replace(
        block,
        first=block.first + start,
        count=count,
        iteration=iteration,
        columns=columns,
        texts={name: _text_at(block, name, start + count) for name in block.texts},
        seconds=block.seconds * count / block.count,
        text_runs={name: _part_of(runs, start, start + count) for name, runs in block.text_runs.items()},
    )


def drift(one: MetricBlock, other: MetricBlock) -> tuple[float, int | None, str]:
    """The largest difference between the weighted values of two blocks over the same steps, and the first
    row that differs with a name there; (0, None, "") means that every bit is equal, NaN to NaN included."""
    worst, first, what = 0.0, None, ""
    for name, column in one.columns.items():
        if column.weights is None or name not in other.columns:
            continue
        a, b = column.values, other.columns[name].values
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if differs.any():
            gap = np.abs(a[differs] - b[differs]).max()
            worst = max(worst, float("inf") if np.isnan(gap) else float(gap))
            row = int(differs.argmax())
            if first is None or row < first:
                first, what = row, name
    return worst, first, what


def steps_before(record: Record, count: int) -> Iterator[tuple[SplitRecord, int]]:
    """Walk back over the recorded passes: yield each pass with the step that lies `count` steps back."""
    left = count
    for part in reversed(record):
        if left <= part.steps:
            yield part, part.steps - left
            return
        left -= part.steps
        yield part, 0


def _part_of(runs: Runs, start: int, stop: int) -> Runs:
    return Texts.of(between(runs, start, stop))


def between(runs: Runs, start: int, stop: int) -> Iterator[Run]:
    """The (rows, text) runs of rows start..stop, counted from 0."""
    begin = 0
    for length, text in runs:
        if begin >= stop:
            return
        here = min(begin + length, stop) - max(begin, start)
        if here > 0:
            yield here, text
        begin += length


def _text_at(block: MetricBlock, name: str, stop: int) -> str:
    """The text of the row before `stop`. In a joined block this is not always the block's last text."""
    runs = block.text_runs.get(name, ())
    return next((text for _, text in between(runs, stop - 1, stop)), block.texts[name])


def _first_rows(blocks: tuple[MetricBlock, ...], steps: int) -> tuple[MetricBlock, ...]:
    kept: list[MetricBlock] = []
    for block in blocks:
        if block.first > steps:
            break
        kept.append(block if block.last <= steps else rows(block, 0, steps - block.first + 1))
    return tuple(kept)


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
