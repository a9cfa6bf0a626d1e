"""The half of a Learner that looks at a training and tries things out: what a debugger is for code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

from ..breakpoint import Breakpoints
from ..errors import BusyError, LoggerError, StepError, names_descriptors
from ..event import Event, Marked, MetricAdded, MetricInfo, Notice, RunOpened, Split, Status
from ..event.position import Position
from ..run.breakpoint_watch import Hit
from ..run.driver import Driver
from ..run.replica import Replica
from ..state.state import State
from ..step.step import StepFunction
from ..store import check_metric_name, same_file
from .set_verbs import SetSupplies

if TYPE_CHECKING:
    from ..inspection import Inspection
    from ..trial.comparison import Comparison
    from ..trial.lr_find import RateSearch
    from ..trial.reload_code import Reloaded
    from ..trial.try_step import Trial

T = TypeVar("T")
MarkKind = Literal["breakpoint", "edited", "forked"]


@runtime_checkable
class OfOneLearner(Protocol):
    """A step that knows its learner, as a cell's does."""

    def of(self, learner: Any, /) -> StepFunction:
        """The same step for another one."""


class Supplies(SetSupplies, Protocol):
    """What a learner is given to work with: data, and the steps that work on it."""

    def use(self, learner: Any, split: Split, given: Any, /) -> None:
        """Train or validate on this from here on."""

    def use_step(self, split: Split, function: StepFunction, /) -> None:
        """Train or validate with this from here on."""

    def renew(self) -> None:
        """The model's code has changed: its steps are looked up again."""

    def step_of(self, split: Split, /) -> StepFunction | None:
        """What was given as the step of this split: by the builder, or by `use_step`."""

    def fork(self, learner: Any, state: State, directory: str | os.PathLike[str], /) -> Any:
        """A sibling of a learner, in this state."""

    def given(self) -> Mapping[Split, Any]:
        """The data of each split, as it was given."""

    @property
    def origin(self) -> Any:
        """What the learner was built from: settings, model, optimizer, scheduler."""

    @property
    def loss(self) -> Callable[..., Any] | None:
        """The loss function of `.loss(...)`, if there is one."""

    def require(self) -> None:
        """Raise where something is missing before training can begin."""


class Debugging:
    """Verbs that every Learner has; a class of their own only because a file has one subject."""

    _replica: Replica
    _driver: Driver
    _opened: RunOpened
    _supplies: Supplies

    def _drive(self, work: Callable[[], T]) -> T:
        raise NotImplementedError

    def _emit(self, event: Event) -> None:
        raise NotImplementedError

    def _set_status(self, status: Status, reason: str = "") -> None:
        raise NotImplementedError

    def _on_rank(self, rank: int) -> Any:
        raise NotImplementedError

    _seen: tuple[Inspection | None, tuple[int, int, int] | None] = (None, None)
    locals: dict[str, Any]
    """After a step of a `%%train` or `%%valid` cell: the values that the cell's body left. They are those
    of one step, and gone when the next one begins."""

    # The step ----------------------------------------------------------------------------------------

    def use_step(self, split: Split, function: StepFunction, note: str = "") -> None:
        """Train (or validate) with another step, from the very place where the learner stands.

        Args:
            split: "train" or "valid".
            function: `fn(model, batch)`, as the builder's `train_step` takes.
            note: what the history says of it.
        """
        if split not in ("train", "valid"):
            raise ValueError(f'use_step({split!r}, ...): the split is "train" or "valid"')
        if not callable(function):
            raise TypeError(f"use_step({split!r}, {function!r}): give a function fn(model, batch)")
        self._drive(lambda: self._use_step(split, function, note))

    def _use_step(self, split: Split, function: StepFunction, note: str) -> None:
        self._supplies.use_step(split, function)
        at = self._replica.loop.position
        if at.iteration:
            self._replica.timeline.wanted = True
            self._mark("edited", note or f"another {split} step")

    def step_in_use(self, split: Split) -> StepFunction | None:
        """This split's `fn(model, batch)`; None where a loss, or a method of the model, is in its place."""
        return self._supplies.step_of(split)

    def reload_code(self) -> Reloaded:
        """Give the live model the methods of classes that a cell has defined anew; the weights stay.

        A class's `__init__` is not run: what a new one would make is missed at once, and named.

        Raises:
            StateError: the new code needs parts that the live model does not have. Nothing has changed.
        """
        return self._drive(self._reloaded)

    def _reloaded(self) -> Reloaded:
        from ..trial.reload_code import reload_code  # reads source code: only for whoever edits it

        average = self._replica.loop.update.average
        also = () if average is None else (average.module,)
        namespace = vars(sys.modules["__main__"])  # a notebook's cells, or a script
        report = reload_code(self._replica.loop.update.model, namespace, also)
        if report.classes:
            self._supplies.renew()
            self._replica.timeline.wanted = True
            self._mark("edited", f"code reloaded: {', '.join(report.classes)}")
        return report

    # Breakpoints -------------------------------------------------------------------------------------

    @property
    def breakpoints(self) -> Breakpoints:
        """What stops the training before the update of a step that goes wrong.

        `learner.breakpoints.add(NonFinite())`; `notebook_learner.breakpoint` has the conditions. They hold
        in every verb that trains.
        """
        return self._replica.watch.breakpoints

    @property
    def hit(self) -> Hit | None:
        """The breakpoint that stopped the learner here, and what it found; None otherwise."""
        stands = self._replica.watch.stood == self._replica.loop.position.key
        return self._replica.hit if stands else None

    def _tell_hit(self) -> None:
        hit = self._replica.hit
        assert hit is not None
        self._mark("breakpoint", str(hit))
        self._set_status("paused", str(hit))

    # Look --------------------------------------------------------------------------------------------

    def inspect(self, batch: Any = None, *, tokenizer: Any = None, rank: int = 0) -> Inspection:
        """What a step looks like here: batch, single samples, every layer, optimizer, memory, time.

        It runs the training step once, and what its update would do; afterwards everything is as it was,
        to the bit. Shown as a report at the end of a cell.

        Args:
            batch: which batch: by default the one at hand (`learner.batch`: the last one, or the one that
                failed or hit a breakpoint), "next" for the one to come, or any batch of yours.
            tokenizer: with a `decode`, or a function from token numbers to text, to show texts.
            rank: on several devices, which one's step, with its part of the batch.
        """
        return self._leaving_locals(lambda: self._inspected(batch, tokenizer, rank))

    def _inspected(self, batch: Any, tokenizer: Any, rank: int) -> Inspection:
        from ..trial.inspect_step import inspect_step  # loads the whole report with it

        if "train" not in self._replica.loop.passes:
            self._supplies.require()
        if type(rank) is int and rank == 0:
            seen = inspect_step(self._replica, batch, tokenizer, self._supplies.loss)
        else:
            seen = self._on_rank(rank).inspect(rank, batch, tokenizer)
        self._seen = seen, self._replica.loop.position.key
        self._emit(Notice(f"inspected at {seen.place}"))
        return seen

    @property
    def seen(self) -> Inspection | None:
        """What `inspect()` last gave, while the learner stands where it was asked."""
        seen, place = self._seen
        return seen if place == self._replica.loop.position.key else None

    @property
    def reach(self) -> Position:
        """The earliest place that `rewind` can go back to."""
        return self._replica.reach

    # Try ---------------------------------------------------------------------------------------------

    def try_step(self, function: StepFunction | None = None) -> Trial:
        """Take the next training step, and take it back: nothing has happened, to the bit.

        >>> import torch
        >>> from torch.nn import functional as F
        >>> from notebook_learner import LearnerBuilder
        >>> model = torch.nn.Linear(3, 2)
        >>> builder = LearnerBuilder("tried").loss(F.mse_loss).renderer("silent")
        >>> batches = [(torch.ones(4, 3), torch.zeros(4, 2))] * 5
        >>> learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches)
        >>> trial = learner.try_step()
        >>> print(trial.position, "with an output of shape", tuple(trial.output.output.shape))
        epoch 1, train, step 1 of 5 with an output of shape (4, 2)
        >>> print(learner.position, learner.status)
        epoch 1, train, step 0 of 5 ready

        Args:
            function: `fn(model, batch)` to try in place of the step in use.

        Raises:
            StateError: there is no step to take, or the loader cannot give the batch a second time.
        """
        __tracebackhide__ = True
        return self._leaving_locals(partial(self._try_step, function))

    def _leaving_locals(self, work: Callable[[], T]) -> T:
        """What a step of a cell leaves is not what one that was only tried left."""
        __tracebackhide__ = True
        values = self.locals
        try:
            return self._drive(work)
        finally:
            self.locals = values

    def _try_step(self, function: StepFunction | None) -> Trial:
        from ..trial.try_step import try_step

        __tracebackhide__ = True
        if function is None or "train" not in self._replica.loop.passes:
            self._supplies.require()
        self.locals = {}
        return replace(try_step(self._replica, function), locals=self.locals)

    @names_descriptors
    def what_if(self, steps: int = 5, **changes: Any) -> Comparison:
        """Take the next training steps twice, as they would be and with a change, and take all of it back.

        `learner.what_if(lr=1e-2)`, `learner.what_if(20, train_step=another, clip_norm=1.0)`.

        Args:
            steps: how many training steps; a validation on the way is gone through, and not counted.
            changes: `train_step` (fn(model, batch)), `batch` (one for all steps, in place of the
                loader's), `clip_norm`, and every option of the optimizer: lr, weight_decay, ... A rate that
                is tried stays for all steps, whatever the schedule. A list has a value for each group.
        """
        from ..trial.what_if import what_if

        self._supplies.require()
        return self._leaving_locals(lambda: what_if(self._replica, steps, changes))

    @names_descriptors
    def lr_find(
        self,
        start: float = 1e-7,
        end: float = 10.0,
        *,
        steps: int = 100,
        growth: float = 4.0,
        smoothing: float = 0.9,
    ) -> RateSearch:
        """Train with a growing learning rate and see where the loss falls fastest, then take it all back:
        afterwards everything is as it was to the bit, also where it was interrupted.

        Args:
            start: the first rate.
            end: the last one.
            steps: how many rates, one a training step; epochs begin again as needed.
            growth: end where the smoothed loss is so many times its least value.
            smoothing: how much of the mean each loss leaves in place, from 0 to below 1.
        """
        from ..trial.lr_find import lr_find

        self._supplies.require()
        return self._leaving_locals(lambda: lr_find(self._replica, start, end, steps, growth, smoothing))

    def fork(self, directory: str | os.PathLike[str]) -> Any:
        """A sibling that goes on from this very step, in a directory of its own: another Learner, with
        copies of the model, the optimizer and the schedule. This one stays as it is.

        It knows what was measured so far. Both histories, and `experiment.log`, say where they parted.

        Args:
            directory: of the new run; it may not hold one yet.
        """
        return self._drive(lambda: self._forked(directory))

    def _forked(self, directory: str | os.PathLike[str]) -> Any:
        sibling = self._supplies.fork(self, self._replica.capture(), directory)
        for split in get_args(Split):
            step = self._supplies.step_of(split)
            if isinstance(step, OfOneLearner):
                sibling._supplies.use_step(split, step.of(sibling))
        with suppress(LoggerError):  # a directory that was moved is a reason to fork; it has kept the line
            self._mark("forked", f"to {os.fspath(directory)}")
        return sibling

    def note_fork(self, parent: str) -> None:
        """Note in history and logs which run this one was forked from, and where."""
        self._mark("forked", f"from {parent}")

    def _mark(self, kind: MarkKind, text: str) -> None:
        at = self._replica.loop.position
        self._emit(Marked(kind, at.epoch, at.split, at.step, text))

    # Values by name ----------------------------------------------------------------------------------

    def log(self, name: str, value: Any) -> None:
        """Inside a step: note a number under a name, which becomes a metric with a curve and a log.

        Args:
            name: of the metric, made at its first value.
            value: a number, or a tensor with one element. It stays on its device, and nothing waits for it.
        """
        loop = self._replica.loop
        if not self._driver.inside:
            raise BusyError(
                f"log({name!r}, ...) notes a value of a step, so it is called in one: in a %%train cell, in "
                "train_step or in valid_step"
            )
        if loop.quiet:
            return
        notes = loop.current.step.notes
        if notes is not None:
            notes.append((name, value))
            return
        group = loop.current.metrics
        if name not in group.logged:
            _require_file_of_its_own(name, [metric.name for metric in group.metrics])
        if group.log(name, value) and not loop.passing:  # else it goes again with the steps themselves
            self._tell_logged()

    def _tell_logged(self) -> None:
        """Let everybody who shows metrics know of the logged ones."""
        known = {(info.name, info.split) for info in self._opened.metrics}
        for split, each in self._replica.loop.passes.items():
            for name in each.metrics.logged:
                if (name, split) not in known:
                    info = MetricInfo(name, split)
                    self._opened = replace(self._opened, metrics=(*self._opened.metrics, info))
                    self._emit(MetricAdded(info))


def _require_file_of_its_own(name: str, others: Iterable[str]) -> None:
    if mistake := check_metric_name(name):
        raise StepError(f"log({name!r}, ...): {mistake}")
    for other in others:
        if other != name and same_file(other, name):
            raise StepError(
                f"log({name!r}, ...) would write the log of {other!r}: spaces become `_` in a file's "
                "name, and case may not count; log by another name"
            )
