"""The half of a Learner that looks at a training and tries things out, like a debugger for code."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

from ..breakpoint import Breakpoints
from ..errors import BusyError, LoggerError, StepError, names_descriptors
from ..event import Notice, Split
from ..event.position import Position
from ..metric.torch_metric import object_in
from ..run.bounds import counted
from ..run.loop import Act
from ..step.step import StepFunction
from ..store import check_metric_name, same_file

if TYPE_CHECKING:
    from ..inspection import Inspection
    from ..trial.certify import Certification
    from ..trial.changes import Comparison
    from ..trial.verify import Verification, Verified


from .core import LearnerCore, OfOneLearner


class Debugging(LearnerCore):
    """Verbs that every Learner has; a class of their own only because a file has one subject."""

    _seen: tuple[Inspection | None, tuple[int, int, int] | None] = (None, None)
    _verified: Verified | None = None
    """What `verify` found last."""

    def _step_in_use(self, split: Split) -> StepFunction | None:
        """This split's `fn(model, batch)`; None if a loss, or a method of the model, is used instead."""
        return self._supplies.step_of(split)

    # Breakpoints -------------------------------------------------------------------------------------

    @property
    def breakpoints(self) -> Breakpoints:
        """The conditions that stop training before the update of a step that goes wrong.

        `learner.breakpoints.add(NonFinite())`; `notebook_learner.breakpoint` has the conditions. They hold
        in every verb that trains.
        """
        return self._replica.watch.breakpoints

    # Look --------------------------------------------------------------------------------------------

    def inspect(self, batch: Any = None, *, tokenizer: Any = None, rank: int = 0) -> Inspection:
        """Report what a step does here: batch, single samples, every layer, optimizer, memory, time.

        The training step runs once, and its update is tried; afterwards everything is as it was, to the bit.
        At the end of a cell the result is shown as a report.

        Args:
            batch: by default `learner.batch` (the last batch, or the one that failed or hit a breakpoint);
                "next" for the next batch; or any batch of yours.
            tokenizer: an object with a `decode`, or a function from token numbers to text, to show texts.
            rank: on several devices, the rank whose step is shown, with its part of the batch.
        """
        return self._leaving_locals(lambda: self._inspected(batch, tokenizer, rank))

    def _inspected(self, batch: Any, tokenizer: Any, rank: int) -> Inspection:
        from ..trial.inspect_step import inspect_step  # it loads all that a report needs

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
    def _last_seen(self) -> Inspection | None:
        """The last result of `inspect()`, while the learner still stands at the same step."""
        seen, place = self._seen
        return seen if place == self._replica.loop.position.key else None

    @property
    def _reach(self) -> Position:
        """The earliest position that `rewind` can go back to."""
        return self._replica.reach

    # Try ---------------------------------------------------------------------------------------------

    @names_descriptors
    def what_if(self, steps: int = 5, **changes: Any) -> Comparison:
        """Compare the next training steps with and without a change; afterwards take all of them back.

        `learner.what_if(lr=1e-2)`, `learner.what_if(20, train_step=another, clip_norm=1.0)`,
        `learner.what_if(then=unfreeze)`.

        Args:
            steps: the number of training steps. Validation steps between them are taken, too, and not
                counted.
            changes: `then` (fn(learner), which may reshape the training, as for `reshape`), `train_step`
                (fn(model, batch)), `batch` (one for all steps, in place of the
                loader's), `clip_norm`, and every option of the optimizer: lr, weight_decay, ... A rate given
                here stays for all steps; the schedule does not change it. A list has a value for each group,
                a mapping has values by the optimizers' names.
        """
        from ..trial.what_if import what_if

        self._supplies.require()
        if callable(then := changes.get("then")):
            changes["then"] = Act(then, weakref.ref(self))
        return self._leaving_locals(lambda: what_if(self._replica, steps, changes))

    @names_descriptors
    def verify(
        self, steps: int = 3, *, replay: bool = False, segments: int | None = None
    ) -> Verification | Certification:
        """Check that the run is exact: take steps, go back, take them again, and compare everything to the
        bit; then do the same from a checkpoint in a new process. Afterwards the learner stands where it
        stood, and nothing is left on the disk.

        The result says `exact`, or it names the first step and the first value that differ and, as far as
        that can be known, why: the data, an operation that is not deterministic (with the setting that makes
        it so), or a value that is not in the state. The new process takes a few seconds, and needs the extra
        `devices`.

        Args:
            steps: how many steps, of training or of validation.
            replay: take all steps of the run again instead, from the state that it began with, and from each
                checkpoint to the next one, and compare every value and every state with what was recorded.
                The run's directory gets a `certificate.json`, which `Artifacts(dir).verify(certificate)`
                checks elsewhere.
            segments: with `replay`, take only so many of these stretches.
        """
        if replay:
            self._supplies.require()
            return self._leaving_locals(lambda: self._certify(segments))
        count = counted("verify", steps, "take at least one step")
        self._supplies.require()
        return self._leaving_locals(lambda: self._verify(count))

    def _certify(self, segments: int | None) -> Certification:
        from .certifying import certify

        return certify(self, segments)

    def _verify(self, steps: int) -> Verification:
        from ..trial.verify import noted
        from .hand_over import verified  # it loads what packs and starts a process

        found = verified(self, steps)
        self._verified = noted(found, self._verified)
        return found

    def fork(self, directory: str | os.PathLike[str]) -> Any:
        """Make another Learner that goes on from this step, in a directory of its own, with copies of the
        model, the optimizer and the schedule. This learner stays as it is.

        The new learner has the history up to this step. Both histories, and `experiment.log`, say where the
        new run began.

        Args:
            directory: of the new run; it must not hold a run.
        """
        return self._drive(lambda: self._forked(directory))

    def _forked(self, directory: str | os.PathLike[str]) -> Any:
        sibling = self._supplies.fork(self, self._replica.capture(), directory)
        for split in get_args(Split):
            step = sibling._supplies.step_of(split)
            if isinstance(step, OfOneLearner):
                sibling._supplies.use_step(split, step.of(sibling))
        with suppress(LoggerError):  # a moved directory is a reason to fork; the line is kept
            self._mark("forked", f"to {os.fspath(directory)}")
        return sibling

    def _note_fork(self, parent: str) -> None:
        """Note in history and logs from which run, and at which step, this run was forked."""
        self._mark("forked", f"from {parent}")

    # Values by name ----------------------------------------------------------------------------------

    def log(self, name: str, value: Any) -> None:
        """Inside a step: note a number under a name, which becomes a metric with a curve and a log.

        Args:
            name: of the metric, which is made at its first value.
            value: a number, or a tensor with one element. A tensor stays on its device, and the step does not
                wait for it. Or a metric of torchmetrics that the step has updated, `self.f1` of the model:
                the epoch's value is that of all its batches, on several devices, too.
        """
        loop = self._replica.loop
        if not self._driver.inside:
            raise BusyError(
                f"log({name!r}, ...) notes a value of a step, so it is called in one: in a %%train cell, in "
                "train_step or in valid_step"
            )
        if loop.acting in ("validated", "epoch"):
            raise BusyError(
                f"log({name!r}, ...) notes a value of a step, and .on({loop.acting!r}, ...) runs between two "
                "steps: log it in the step, or register a metric"
            )
        group = loop.measuring
        if group is None:
            return
        notes = None if loop.visit is not None else loop.current.step.notes
        if notes is not None:
            if object_in(value) is not None:
                raise StepError(
                    f"log({name!r}, ...) was given a metric object, and graph() records what tensors do; "
                    "register it: .metrics(TorchMetric(...))"
                )
            notes.append((name, value))
            return
        if (pieces := loop.update.pieces) is not None:
            value = pieces.logged(name, value)
        if name not in group.logged:
            _require_file_of_its_own(name, [metric.name for metric in group.metrics])
        if group.log(name, value) and not loop.passing:  # a replayed value goes out with its step
            self._tell_logged()


def _require_file_of_its_own(name: str, others: Iterable[str]) -> None:
    if mistake := check_metric_name(name):
        raise StepError(f"log({name!r}, ...): {mistake}")
    for other in others:
        if other != name and same_file(other, name):
            raise StepError(
                f"log({name!r}, ...) would write the log of {other!r}: spaces become `_` in a file's "
                "name, and case may not count; log by another name"
            )
