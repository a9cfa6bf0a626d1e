"""Asks the past of a learner's run, and keeps the answers of metrics with the run."""

from __future__ import annotations

from typing import Any

from ..artifacts.asked import ASKED, asked_names
from ..artifacts.clock import Clock, Series, series_of
from ..errors import StateError, wrong_arguments
from ..event import MetricInfo, Notice, RunOpened, Split, SplitEnded
from ..logger.file import FileMetricLogger
from ..logger.history import History
from ..metric.base import Metric, TextMetric
from ..store import durable
from ..store.json_text import to_text
from ..store.layout import RunLayout
from ..trial.ask import PastAnswer, ask_function, ask_metrics, numbers_of
from .core import LearnerCore


def ask(learner: LearnerCore, what: Any, steps: Any, every: int, split: Split) -> Series | PastAnswer:
    """The answer of a metric or a function, over the training steps of the past."""
    taken = sum(part.steps for part in learner.history.snapshot() if part.split == "train")
    first, last = numbers_of(steps, taken)
    if isinstance(what, (Metric, TextMetric)):
        return _measured(learner, what, first, last, split)
    if not callable(what) or wrong_arguments(what, "the learner"):
        raise TypeError(f"ask({what!r:.60}): give a metric, such as Accuracy(), or a function fn(learner)")
    answer = ask_function(learner._replica, lambda: what(learner), first, last, every)
    _tell(learner, answer.differs)
    return answer


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
