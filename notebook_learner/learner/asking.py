"""Asks the past of a learner's run, and keeps the answers of metrics with the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..artifacts.asked import ASKED, asked_names
from ..artifacts.clock import Clock, Series, series_of
from ..artifacts.diff import FirstCause
from ..errors import StateError, wrong_arguments
from ..event import MetricInfo, Notice, RunOpened, Split, SplitEnded
from ..event.position import Position
from ..logger.file import FileMetricLogger
from ..logger.history import History
from ..metric.base import Metric, TextMetric
from ..run.replica import Replica
from ..store import durable
from ..store.json_text import to_text
from ..store.layout import RunLayout
from ..trial.ask import PastAnswer, ask_function, ask_metrics, numbers_of
from ..trial.first_cause import account_of, behind, first_cause, first_other_weights, weights_after_each_step
from .core import LearnerCore

T = TypeVar("T")


def ask(learner: LearnerCore, what: Any, steps: Any, every: int, split: Split) -> Series | PastAnswer:
    """The answer of a metric or a function, over the training steps of the past."""
    first, last = numbers_of(steps, _trained(learner))
    if isinstance(what, (Metric, TextMetric)):
        return _measured(learner, what, first, last, split)
    if not callable(what) or wrong_arguments(what, "the learner"):
        raise TypeError(f"ask({what!r:.60}): give a metric, such as Accuracy(), or a function fn(learner)")
    answer = ask_function(learner._replica, lambda: what(learner), first, last, every)
    _tell(learner, answer.differs)
    return answer


def first_cause_of(
    learner: LearnerCore, other: LearnerCore, first: Position | None
) -> tuple[FirstCause | None, tuple[str, ...]]:
    """What made two runs leave other weights, and what limits that answer.

    Args:
        learner: a learner of one run.
        other: a learner of the other run.
        first: the first step that measured something else, if one did.
    """
    both = (learner, other)
    taken = min(map(_trained, both))
    last = taken if first is None else min(taken, _number_of(learner, first))
    (ones, told), (others, told_too) = (_asked(each, weights_after_each_step, last) for each in both)
    notes = tuple(
        f"{each._opened.directory} took other steps than its record has: {text}"
        for each, text in zip(both, (told, told_too), strict=True)
        if text
    )
    number = first_other_weights(ones, others)
    if number > last:
        if first is None:
            return None, notes
        if first.split == "valid":
            return FirstCause(first, "validation", "its data or its step, as the weights are the same"), notes
        number = last
    one, two = (_asked(each, account_of, number) for each in both)
    return first_cause(one, two, behind(learner._replica, number)), notes


def _asked(learner: LearnerCore, work: Callable[[Replica, int], T], number: int) -> T:
    return learner._leaving_locals(lambda: work(learner._replica, number))


def _trained(learner: LearnerCore) -> int:
    return sum(part.steps for part in learner.history.snapshot() if part.split == "train")


def _number_of(learner: LearnerCore, place: Position) -> int:
    """How many training steps had been taken at a place, with the step that ended there."""
    passes = [part for part in learner.history.snapshot() if part.split == "train"]
    before = sum(part.steps for part in passes if part.epoch < place.epoch)
    here = sum(part.steps for part in passes if part.epoch == place.epoch)
    return before + (place.step if place.split == "train" else here)


def _measured(learner: LearnerCore, metric: Any, first: int, last: int, split: Split) -> Series:
    record, differs = ask_metrics(learner._replica, [metric], first, last)
    _tell(learner, differs)
    history = History()
    infos = tuple(MetricInfo(metric.name, each, getattr(metric, "unit", "")) for each in ("train", "valid"))
    history.handle(RunOpened(str(learner._opened.directory), "", 0, 0, infos))
    history.restore(record)
    if learner._announced and isinstance(metric, Metric):
        _keep(learner, record)
    if not any(part.split == split for part in record):
        raise StateError(f"ask(split={split!r}): the run has no {split} steps there")
    return series_of(history, Clock(), metric.name, split, None)


def _keep(learner: LearnerCore, record: Any) -> None:
    """Write what was measured to the run's directory, in Burn's layout."""
    learner._enter()
    folder = RunLayout(learner._opened.directory).asked
    logger = FileMetricLogger(folder)
    for part in record:
        for block in part.blocks:
            logger.handle(block)
        if part.finals is not None:
            logger.handle(SplitEnded(part.epoch, part.split, part.steps, part.finals))
    logger.close()
    names = sorted({name for part in record for block in part.blocks for name in block.columns})
    told = {**{name: None for name in asked_names(folder)}, **dict.fromkeys(names)}
    data = to_text({"metrics": [*told]}).encode()
    durable.replace(folder / ASKED, [data], len(data))


def _tell(learner: LearnerCore, differs: Any) -> None:
    if differs is not None:
        learner._emit(Notice(f"ask() took other steps than the run: {differs}", "warning"))
