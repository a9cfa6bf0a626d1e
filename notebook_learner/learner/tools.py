"""`learner.devices` and `learner.tools`: what is needed now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..artifacts.evaluations import Evaluation, Evaluations
from ..data.rank_share import rows_of
from ..errors import StateError, names_descriptors
from ..event import Notice, Split
from ..ranks.rank_table import RankInfo, RankTable, one_device
from ..run.loop import Loop
from ..run.lost_parts import find_lost
from ..run.rank_protocol import Ranks
from ..step.step import StepFunction
from .core import LearnerCore
from .display import why_built

if TYPE_CHECKING:
    from ..artifacts.branches import Branches, RecordedBranch
    from ..artifacts.clock import Series
    from ..artifacts.diff import FirstCause
    from ..artifacts.timeline import TimelineTable
    from ..event.position import Position
    from ..metric.base import AnyMetric
    from ..run.step_reports import RewindReport
    from ..trial.ask import PastAnswer
    from ..trial.lr_find import RateSearch
    from ..trial.reload_code import Reloaded
    from ..trial.what_if import Trial
    from .panel import LearnerPanel


_TOLD: WeakSet[nn.Module] = WeakSet()
"""The models whose user has been told of their BatchNorm."""


def _require_divisible(loop: Loop, parts: int) -> None:
    if loop.ranks is not None:
        raise StateError(
            f"split_batch({parts}) is for one device; on several, each takes its part of a batch: give a "
            "smaller batch size, and grads_accumulation(n) in the builder"
        )
    if loop.update.drives:
        loop.update.require_free(f"split_batch({parts})")
    if loop.batch is not None:
        rows_of(loop.batch, parts)


def _of_batch_norm(model: nn.Module, parts: int) -> str:
    """What to know of layers that measure a batch; empty if there are none, or it was told."""
    names = [name for name, each in model.named_modules() if isinstance(each, _BatchNorm)]
    if not names or model in _TOLD:
        return ""
    _TOLD.add(model)
    return (
        f"split_batch({parts}): BatchNorm ({', '.join(names[:3])}{', ...' if names[3:] else ''}) takes the "
        "mean and variance of each part, unlike that of whole batches, and a part of one sample is an error"
    )


class Tools:
    """The rare verbs of a Learner, as `learner.tools`.

    >>> [name for name in dir(Tools) if not name.startswith("_")]
    ['ask', 'branches', 'ema_model', 'evaluations', 'freeze', 'go_to', 'lr_find', 'note', 'panel', \
'reload_code', 'split_batch', 'timeline', 'try_step', 'use_step']
    """

    def __init__(self, learner: LearnerCore) -> None:
        self._learner = learner

    # Try -----------------------------------------------------------------------------------------------

    def try_step(self, function: StepFunction | None = None) -> Trial:
        """Take the next training step and take it back: afterwards everything is as it was, to the bit.

        >>> import torch
        >>> from torch.nn import functional as F
        >>> from notebook_learner import LearnerBuilder
        >>> model = torch.nn.Linear(3, 2)
        >>> builder = LearnerBuilder("tried").loss(F.mse_loss).renderer("silent")
        >>> batches = [(torch.ones(4, 3), torch.zeros(4, 2))] * 5
        >>> learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches)
        >>> trial = learner.tools.try_step()
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
        return self._learner._leaving_locals(partial(self._try_step, function))

    def _try_step(self, function: StepFunction | None) -> Trial:
        from ..trial.what_if import try_step

        __tracebackhide__ = True
        if function is None or "train" not in self._learner._replica.loop.passes:
            self._learner._supplies.require()
        self._learner.locals = {}
        return replace(try_step(self._learner._replica, function), locals=self._learner.locals)

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
        """Train with a growing learning rate, find where the loss falls fastest, and take all of it back.
        Afterwards everything is as it was, to the bit, also after an interrupt.

        Args:
            start: the first rate.
            end: the last one.
            steps: how many rates, one for each training step; a new epoch begins if the loader ends.
            growth: end when the smoothed loss is this many times its smallest value.
            smoothing: the weight of the old mean when a loss is added to it, from 0 to below 1.
        """
        from ..trial.lr_find import lr_find

        learner = self._learner
        learner._supplies.require()
        return learner._leaving_locals(
            lambda: lr_find(learner._replica, start, end, steps, growth, smoothing)
        )

    # Change how batches are taken ----------------------------------------------------------------------

    def split_batch(self, parts: int) -> None:
        """Take each batch in so many parts from the next one on: forward and backward for each, then one step
        with the mean over all of its samples. So a batch that a GPU has no memory for is trained all the
        same. 1 goes back to whole batches.

        The loss has to be a mean over samples (or over what the output's `weight` counts). Metrics see the
        whole batch: rows of the outputs are joined, numbers become their mean, and what is neither is None.
        Validation and `evaluate` do so, too. A step is called for each part: a cell's `batch` is one, and
        what it carries goes from part to part.

        It is a change by hand, kept in checkpoints and made again on a way back.

        >>> import torch
        >>> from torch.nn import functional as F
        >>> from notebook_learner import LearnerBuilder
        >>> model = torch.nn.Linear(3, 2)
        >>> builder = LearnerBuilder("split").loss(F.mse_loss).renderer("silent")
        >>> batches = [(torch.ones(4, 3), torch.zeros(4, 2))] * 5
        >>> learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches)
        >>> learner.split_batch(2)
        >>> report = learner.step()  # twice two samples, and one optimizer step

        Args:
            parts: how many. A batch with less samples has one for each.

        Raises:
            StateError: there are several devices.
            StepError: the step calls `optimizer.step()` itself, or `learner.batch` cannot be cut.
        """
        __tracebackhide__ = True
        learner, loop = self._learner, self._learner._replica.loop
        if type(parts) is not int or parts < 1:
            raise ValueError(
                f"split_batch({parts!r:.60}): give a whole number of parts, such as 2; 1 is whole"
            )
        with learner._changing():
            if parts > 1:
                _require_divisible(loop, parts)
                if told := _of_batch_norm(loop.update.model, parts):
                    (learner._emit if learner._announced else learner._untold.append)(Notice(told, "warning"))
            loop.update.divide(parts)
            learner._edited(note := f"split_batch({parts})")
            if learner._announced and not loop.iteration:  # an error in the first step led here
                learner._stand_anew()
                learner._mark("edited", note)

    # Look ----------------------------------------------------------------------------------------------

    @property
    def ema_model(self) -> nn.Module | None:
        """The moving average of the model, if `.ema(...)` asked for one."""
        average = self._learner._replica.loop.update.average
        return None if average is None else average.module

    @property
    def evaluations(self) -> Evaluations:
        """The sets that this learner evaluated, as a table."""
        return Evaluations.of(map(Evaluation.of, self._learner._replica.history.evaluated.values()))

    @property
    def branches(self) -> Branches:
        """The lines that the run has left by going back and on in another way, as a table and a tree."""
        from .branching import branches_of

        return branches_of(self._learner)

    @property
    def panel(self) -> LearnerPanel:
        """What the panel shows beside the run: `overlay(run)` lays another run over the curves, `compact()`
        makes the panel a strip."""
        learner: Any = self._learner
        panel: LearnerPanel = learner._shown_beside()
        return panel

    @property
    def timeline(self) -> TimelineTable:
        """What happened to the run, as a table: pauses, changes by hand, breakpoints, ways back."""
        from .branching import timeline_of

        return timeline_of(self._learner)

    @names_descriptors
    def go_to(
        self, branch: RecordedBranch | str | int, step: Position | tuple[Any, ...] | int | None = None
    ) -> RewindReport:
        """Go to a branch of this run: to its end, or to a step of it. What this line measured stays, as a
        branch.

        The learner goes to the nearest state on the way there, takes the steps from there again with what
        was changed by hand on that way, and compares them with what was recorded.

        Args:
            branch: one of `learner.branches`, or its name.
            step: the number of training steps since the run's beginning, or a position, `(7, 5)`.
        """
        from .branching import go_to

        return self._learner._drive(lambda: go_to(self._learner, branch, step))

    @names_descriptors
    def ask(
        self,
        what: AnyMetric | Callable[[Any], Any],
        *,
        steps: tuple[int, int] | range | int | None = None,
        every: int = 1,
        split: Split = "train",
        processes: int = 1,
    ) -> Series | PastAnswer:
        """Compute what was not measured: a metric, or a function of the learner, over steps of the past.

        The steps are taken again, aside: the learner stands afterwards where it stood, to the bit. They are
        compared with what was recorded, and with the checkpoints on their way; a line says where they differ.
        A metric's answer is a series, as `Artifacts.series` gives, and it stays in the run's directory:
        `Artifacts(dir).asked`.

        `learner.ask(Accuracy(), split="valid")`,
        `learner.ask(lambda learner: learner.model[0].weight.norm(), steps=(100, 200), every=10)`

        Args:
            what: a metric; or a function, which is called after each of the steps, with `learner.model`,
                `learner.batch` and `learner.output` as they were then.
            steps: the first and the last training step, from 1 on; by default all so far. A metric is
                measured from the beginning of an epoch on.
            every: ask a function after every so many steps.
            split: which series of a metric is returned.
            processes: take the steps in so many processes side by side, each from a checkpoint on. What a
                function keeps anywhere else than in its result stays in its process. It is worth their start
                of a few seconds if the steps take longer, and a processor is free for each.
        """
        from .asking import ask

        return self._learner._leaving_locals(lambda: ask(self._learner, what, steps, every, split, processes))

    def _first_cause(
        self, other: LearnerCore, branches: tuple[str, str], first: Position | None
    ) -> tuple[FirstCause | None, tuple[str, ...]]:
        """What made this run and another one differ, or branches of them, for `Artifacts.diff`."""
        from .asking import Way, first_cause_of

        return first_cause_of(Way(self._learner, branches[0]), Way(other, branches[1]), first)

    # Change the code of the step -----------------------------------------------------------------------

    def use_step(self, split: Split, function: StepFunction, note: str = "") -> None:
        """Train (or validate) with another step function, from the current step on.

        Args:
            split: "train" or "valid".
            function: `fn(model, batch)`, as the builder's `train_step` takes.
            note: the text that the history shows for this change.
        """
        if split not in ("train", "valid"):
            raise ValueError(f'use_step({split!r}, ...): the split is "train" or "valid"')
        if not callable(function):
            raise TypeError(f"use_step({split!r}, {function!r}): give a function fn(model, batch)")
        said = note or f"another {split} step"
        self._learner._drive(lambda: self._learner._use_step(split, function, said))

    def reload_code(self) -> Reloaded:
        """Give the model the new methods of classes that a cell has defined again; the weights stay.

        A class's `__init__` is not run. If the new code needs parts that only a new `__init__` makes, an
        error names them at once.

        Raises:
            StateError: the new code needs parts that the live model does not have. Nothing has changed.
        """
        return self._learner._drive(self._reloaded)

    def _reloaded(self) -> Reloaded:
        from ..trial.reload_code import reload_code  # it reads source code, which only this verb needs

        average = self._learner._replica.loop.update.average
        also = () if average is None else (average.module,)
        namespace = vars(sys.modules["__main__"])  # a notebook's cells, or a script
        report = reload_code(self._learner._replica.loop.update.model, namespace, also)
        if report.classes:
            self._learner._supplies.renew()
            self._learner._edited(f"code reloaded: {', '.join(report.classes)}")
        return report

    # The log and the page ------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Write a line into the application log, at a step boundary; from any thread."""
        with self._learner._driver.held():
            self._learner._emit(Notice(text))
            self._learner._rest()

    def freeze(self) -> None:
        """Reduce the panel to what a saved notebook shows: curves and table, as they are now."""
        if self._learner._display is not None:
            self._learner._display.freeze()


class Devices(Sequence[RankInfo]):
    """The processes that train, as a table: rank, host, device, process, whether it is alive, its step, its
    own speed, and its memory. With one device the table has one row. The processes are asked once, when the
    table is first read.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> from notebook_learner import LearnerBuilder
    >>> model = torch.nn.Linear(3, 2)
    >>> builder = LearnerBuilder("unused").loss(F.mse_loss).renderer("silent")
    >>> learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> [(each.rank, each.device, each.alive) for each in learner.devices]
    [(0, 'cpu', True)]
    """

    def __init__(self, learner: LearnerCore) -> None:
        self._learner = learner

    def restart(self) -> None:
        """Start the other ranks again, after one of them died. `fit()` goes on from where the learner stands.

        If a rank took something of its own with it, such as its random numbers, the steps since the last
        state that holds it are taken again, and a line in the log says so.

        Raises:
            StateError: the learner has one device, and trains in this process.
        """
        ranks = self._learner._replica.ranks
        if ranks is None:
            raise StateError(
                "devices.restart() starts the processes of other devices anew, and this learner has one "
                "device; fit() goes on from where it stands"
            )
        self._learner._drive(lambda: self._restart(ranks))

    def _restart(self, ranks: Ranks) -> None:
        ranks.release()
        find_lost(self._learner._replica)
        ranks.enter()
        ranks.leave()

    @cached_property
    def _table(self) -> RankTable:
        replica = self._learner._replica
        return one_device(replica) if replica.ranks is None else replica.ranks.table()

    @names_descriptors
    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # as a tuple's own: by number or slice
        return self._table[index]

    @names_descriptors
    def __len__(self) -> int:
        return len(self._table)

    @names_descriptors
    def __iter__(self) -> Iterator[RankInfo]:
        return iter(self._table)

    @names_descriptors
    def __repr__(self) -> str:
        return repr(self._table)

    def __call__(self, *given: Any, **named: Any) -> NoReturn:
        raise TypeError(why_built("devices"))
