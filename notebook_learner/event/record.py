"""Cuts and compares what was recorded: the arithmetic of going back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from .texts import Run, Texts
from .values import Column, MetricBlock, Record, Split, SplitRecord

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


def drift(one: MetricBlock, other: MetricBlock) -> tuple[float, int | None]:
    """The largest difference between the weighted values of two blocks over the same steps, and the first
    row that differs; (0, None) means that every bit is equal, NaN to NaN included."""
    worst, first = 0.0, None
    for name, column in one.columns.items():
        if column.weights is None or name not in other.columns:
            continue
        a, b = column.values, other.columns[name].values
        differs = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if differs.any():
            gap = np.abs(a[differs] - b[differs]).max()
            worst = max(worst, float("inf") if np.isnan(gap) else float(gap))
            row = int(differs.argmax())
            first = row if first is None else min(first, row)
    return worst, first


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
