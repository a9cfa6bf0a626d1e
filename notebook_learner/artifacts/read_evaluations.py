"""Reads the evaluated sets of a run: their values from the logs, and the place of their weights from the
timeline."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from ..event.values import Evaluated, MetricInfo, Record
from ..logger.application import unquoted
from ..store.layout import RunLayout
from .read_record import read_evaluations
from .timeline import TimelineMark, read_timeline


def evaluated_in(
    directory: str | os.PathLike[str],
    infos: Iterable[MetricInfo],
    marks: Sequence[TimelineMark],
    record: Record,
) -> list[Evaluated]:
    """The evaluations whose logs lie in a run's directory, the latest last.

    A set that is not on the timeline has epoch 0.

    Args:
        directory: the directory of the run.
        infos: what is known of its metrics.
        marks: its timeline.
        record: what was measured of its training.
    """
    known = tuple(info for info in infos if info.split == "valid")
    sets = read_evaluations(directory, known)
    if sets:  # another process may have evaluated a set: all processes write to the application log
        logged = read_timeline(RunLayout(directory).experiment_log)
        marks = sorted([*marks, *logged], key=lambda mark: mark.when)
    latest = marks_of(marks)
    found = [(latest.get(name, _UNKNOWN), name, past) for name, past in sets.items()]
    found.sort(key=lambda each: each[0].when)
    steps = [(past.epoch, past.steps) for past in record if past.split == "train"]
    epochs = [epoch for epoch, _ in steps]
    trained = [0, *accumulate(count for _, count in steps)]
    evaluated = []
    for mark, name, past in found:
        before = trained[bisect_left(epochs, mark.epoch)]
        at = before + mark.step if mark.split == "train" else trained[bisect_right(epochs, mark.epoch)]
        blocks = tuple(replace(block, epoch=mark.epoch, iteration=at) for block in past.blocks)
        measured = {*(past.finals or ()), *(metric for block in blocks for metric in block.columns)}
        evaluated.append(
            Evaluated(
                name,
                mark.epoch,
                mark.split,
                mark.step,
                replace(past, epoch=mark.epoch, blocks=blocks),
                tuple(info for info in known if info.name in measured),
            )
        )
    return evaluated


def marks_of(marks: Sequence[TimelineMark]) -> dict[str, TimelineMark]:
    """The last evaluation of each set, by its name. The name of a set has no colon."""
    found = {}
    for mark in marks:
        if mark.kind == "evaluated":
            name = mark.text.partition(": ")[0]
            found[name] = found[unquoted(name)] = mark  # as artifacts.h5 has it, and the application log
    return found


_UNKNOWN = TimelineMark("evaluated", 0, "train", 0, 0.0)
"""For a set whose weights the timeline does not name."""
