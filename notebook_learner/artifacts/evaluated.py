"""The sets that were evaluated, from the directory: their values from the logs, and which weights they are
of from the timeline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..event.values import Evaluated, MetricInfo, Record
from ..store.layout import RunLayout
from .reading import read_evaluations
from .timeline import Mark, read_timeline


def evaluated_in(
    directory: str | os.PathLike[str], infos: Iterable[MetricInfo], marks: Sequence[Mark], record: Record
) -> list[Evaluated]:
    """The evaluations whose logs lie in a run's directory, the latest last.

    One of which the timeline knows nothing is of epoch 0.

    Args:
        directory: of the run.
        infos: what is known of its metrics.
        marks: its timeline.
        record: what was measured of its training.
    """
    known = tuple(info for info in infos if info.split == "valid")
    sets = read_evaluations(directory, known)
    if sets:  # another process may have evaluated: the log of what happened is everybody's
        logged = read_timeline(RunLayout(directory).experiment_log)
        marks = sorted([*marks, *logged], key=lambda mark: mark.when)
    found = [(mark_of(name, marks), name, past) for name, past in sets.items()]
    found.sort(key=lambda each: each[0].when)
    evaluated = []
    for mark, name, past in found:
        at = _iteration(mark, record)
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


def mark_of(name: str, marks: Sequence[Mark]) -> Mark:
    """The last time that a set was evaluated."""
    of_it = [mark for mark in marks if mark.kind == "evaluated" and mark.text.startswith(f"{name}: ")]
    return of_it[-1] if of_it else Mark("evaluated", 0, "train", 0, 0.0)


def _iteration(mark: Mark, record: Record) -> int:
    """How many training steps the run had taken there."""
    trained = sum(past.steps for past in record if past.split == "train" and past.epoch < mark.epoch)
    if mark.split == "train":
        return trained + mark.step
    return trained + sum(past.steps for past in record if past.split == "train" and past.epoch == mark.epoch)
