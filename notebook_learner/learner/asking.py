"""Asks the past of a learner's run, and keeps the answers of metrics with the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from ..artifacts.asked import ASKED, asked_names
from ..artifacts.clock import Clock, Series, series_of
from ..artifacts.diff import FirstCause
from ..errors import StateError, wrong_arguments
from ..event import MetricInfo, Notice, RunOpened, Split, SplitEnded
from ..event.position import Position
from ..event.values import Record
from ..logger.file import FileMetricLogger
from ..logger.history import History
from ..metric.base import AnyMetric, Metric, TextMetric
from ..run.bounds import counted
from ..run.compared import Difference
from ..run.replay import LeftLine
from ..run.replica import Replica
from ..store import durable
from ..store.json_text import to_text
from ..store.layout import RunLayout
from ..trial.ask import PastAnswer, Stretch, ask_function, ask_metrics, joined, numbers_of
from ..trial.first_cause import account_of, behind, first_cause, first_other_weights, weights_after_each_step
from .branching import line_of
from .core import LearnerCore

T = TypeVar("T")


def ask(
    learner: LearnerCore, what: Any, steps: Any, every: int, split: Split, processes: int
) -> Series | PastAnswer:
    """The answer of a metric or a function, over the training steps of the past."""
    whole = Stretch(*numbers_of(steps, _trained(learner)))
    count = counted("ask", processes, "give a number of processes from 1")
    if isinstance(what, (Metric, TextMetric)):
        return _measured(learner, what, whole, split, count)
    if not callable(what) or wrong_arguments(what, "the learner"):
        raise TypeError(f"ask({what!r:.60}): give a metric, such as Accuracy(), or a function fn(learner)")
    answers = _asked(learner, AskFunction(what, whole.first, every), whole, count, by_epochs=False)
    answer = joined([each for each in answers if each is not None])
    _tell(learner, answer.differs)
    return answer


class AskFunction(NamedTuple):
    """Asks a function after every so many steps from the first one on."""

    what: Callable[[Any], Any]
    begins: int
    every: int

    def __call__(self, learner: LearnerCore, part: Stretch) -> PastAnswer | None:
        """Ask it over a part of these steps; None if it is asked after none of them."""
        first = part.first + (self.begins - part.first) % self.every
        if first > part.last:
            return None
        return ask_function(learner._replica, lambda: self.what(learner), first, part.last, self.every)


class AskMetric(NamedTuple):
    """Measures a metric."""

    metric: AnyMetric

    def __call__(self, learner: LearnerCore, part: Stretch) -> tuple[Record, Difference | None]:
        """Measure it over whole epochs."""
        return ask_metrics(learner._replica, [self.metric], *part)


def _asked(learner: LearnerCore, ask: Any, whole: Stretch, count: int, by_epochs: bool) -> list[Any]:
    parts = [whole]
    if count > 1:
        from .asking_elsewhere import ask_side_by_side, stretches, why_not

        if why := why_not(learner):
            learner._emit(Notice(f"ask(processes={count}) takes the steps in this process: {why}"))
        else:
            parts = stretches(learner._replica, whole, count, by_epochs)
    if len(parts) == 1:
        return [ask(learner, whole)]
    return ask_side_by_side(learner, ask, parts)


@dataclass(frozen=True)
class Way:
    """A run by its learner, and one of its lines: a branch by its name, or the run's own."""

    learner: LearnerCore
    branch: str = ""

    @property
    def name(self) -> str:
        """What users know it by."""
        return f"branch {self.branch}" if self.branch else str(self.learner._opened.directory)

    @cached_property
    def record(self) -> Record:
        """What was measured on it."""
        return self.learner.history.snapshot() if self.line is None else self.line.record

    @cached_property
    def line(self) -> LeftLine | None:
        """The line that the run has left; None of its own."""
        return line_of(self.learner, self.branch)

    @property
    def taken(self) -> int:
        """How many training steps it has."""
        return sum(part.steps for part in self.record if part.split == "train")

    def ask(self, work: Callable[[Replica, int], T], number: int) -> T:
        """Look at the past of this line."""
        replica = self.learner._replica

        def look() -> T:
            with replica.looking_along(self.line):
                return work(replica, number)

        return self.learner._leaving_locals(look)


def first_cause_of(one: Way, other: Way, first: Position | None) -> tuple[FirstCause | None, tuple[str, ...]]:
    """What made two runs, or lines of them, leave other weights, and what limits that answer.

    Args:
        one: a line of a run.
        other: one of another run, or of the same.
        first: the first step that measured something else, if one did.
    """
    both = (one, other)
    taken = min(each.taken for each in both)
    last = taken if first is None else min(taken, _number_of(one.record, first))
    (ones, told), (others, told_too) = (each.ask(weights_after_each_step, last) for each in both)
    notes = tuple(
        f"{each.name} took other steps than its record has: {text}"
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
    mine, its = (each.ask(account_of, number) for each in both)
    return first_cause(mine, its, one.ask(behind, number)), notes


def _trained(learner: LearnerCore) -> int:
    return Way(learner).taken


def _number_of(record: Record, place: Position) -> int:
    """How many training steps had been taken at a place, with the step that ended there."""
    passes = [part for part in record if part.split == "train"]
    before = sum(part.steps for part in passes if part.epoch < place.epoch)
    here = sum(part.steps for part in passes if part.epoch == place.epoch)
    return before + (place.step if place.split == "train" else here)


def _measured(learner: LearnerCore, metric: Any, whole: Stretch, split: Split, count: int) -> Series:
    answers = _asked(learner, AskMetric(metric), whole, count, by_epochs=True)
    record = tuple(part for passes, _ in answers for part in passes)
    _tell(learner, next((differs for _, differs in answers if differs is not None), None))
    history = History()
    infos = tuple(MetricInfo(metric.name, each, getattr(metric, "unit", "")) for each in ("train", "valid"))
    history.handle(RunOpened(str(learner._opened.directory), "", 0, 0, infos))
    history.restore(record)
    if learner._announced and isinstance(metric, Metric):
        _keep(learner, record)
    if not any(part.split == split for part in record):
        raise StateError(f"ask(split={split!r}): the run has no {split} steps there")
    return replace(series_of(history, Clock(), metric.name, split, None), asked=True)


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
