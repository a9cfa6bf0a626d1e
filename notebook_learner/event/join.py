"""Many small metric blocks as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .texts import Run, Texts
from .values import Column, Floats, MetricBlock

TextRuns = Sequence[Run]


def text_runs(block: MetricBlock, name: str) -> TextRuns:
    """A text metric's lines over the block's rows, as (rows, text) runs."""
    return block.text_runs.get(name) or ((block.count, block.texts[name]),)


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
    here, there = (
        (block.epoch, block.split, block.last + 1),
        (following.epoch, following.split, following.first),
    )
    return here == there and shape_of(block) == shape_of(following)


def shape_of(block: MetricBlock) -> tuple[dict[str, bool], frozenset[str]]:
    """What two blocks have in common that can be one: their metrics, with or without weights."""
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
        runs = Texts.of(run for block in group for run in text_runs(block, name))
        if len(runs) > 1:
            together[name] = runs
    return together
