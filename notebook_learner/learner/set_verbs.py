"""The part of a Learner that evaluates and predicts: it goes through other data than the training's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar, overload

from ..artifacts.evaluations import Evaluation, Evaluations
from ..data.cursor import Cursor
from ..errors import LoggerError
from ..evaluation.prediction import AfterBatch, Forward, as_batches, predict, require_functions
from ..evaluation.set_pass import Tour, beside, evaluate_set
from ..event import Notice
from ..run.rank_protocol import Alone, Others, Task
from ..step.step import ValidationStep
from ..store.layout import RunLayout
from .core import LearnerCore, Metrics

T = TypeVar("T")


class SetVerbs(LearnerCore):
    """Verbs that every Learner has; a class of their own only because a file has one subject."""

    _told_of_samples = ""
    """Why the last attempt to show samples failed."""

    @overload
    def evaluate(self, loader: Mapping[str, Any], *, metrics: Metrics = ...) -> Evaluations: ...

    @overload
    def evaluate(self, loader: Any, name: str = ..., metrics: Metrics = ...) -> Evaluation: ...

    def evaluate(
        self, loader: Any, name: str | None = None, metrics: Metrics = None
    ) -> Evaluation | Evaluations:
        """Measure other data with the current weights: run the validation step over the whole loader. It runs
        without gradients and in eval mode. Afterwards training goes on as if nothing had happened, to the
        bit.

        The values are in the logs below `test/<name>`, in `history["test/<name>", "Loss"]`, in
        `artifacts.h5`, and on the panel. A complete set replaces an older one of the same name.

        On several devices every rank measures its part of each batch, and the values are those of all
        samples. If a metric or a batch cannot be split, rank 0 measures alone, and a notice says why.

        >>> import torch
        >>> from torch.nn import functional as F
        >>> from notebook_learner import LearnerBuilder
        >>> from notebook_learner.logger import InMemoryMetricLogger
        >>> model = torch.nn.Linear(3, 2)
        >>> torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)  # doctest: +ELLIPSIS
        (...
        >>> learner = (
        ...     LearnerBuilder("unused").loss(F.mse_loss).renderer("silent")
        ...     .metric_logger(InMemoryMetricLogger()).with_application_logger(False)
        ...     .build(model, torch.optim.SGD(model.parameters(), lr=0.1))
        ... )
        >>> learner.evaluate([(torch.ones(4, 3), torch.full((4, 2), 3.0))], name="threes")
        threes: 1 batch, with the weights of epoch 1, train, step 0
        <BLANKLINE>
        metric  value
        ------  -----
        Loss    9.000

        Args:
            loader: any iterable of batches, or a dataset if the learner has a batch size; or several by name:
                `evaluate({"clean": a, "noisy": b})`.
            name: the set's name, by default "test".
            metrics: by default copies of the validation metrics. What the step logs by `learner.log` is
                measured in any case.

        Raises:
            Paused: the user interrupted it. Nothing was recorded, and the learner is unchanged.
            RankDied: another rank's process is gone; `devices.restart()` starts it anew.
            BusyError: the training runs in the background; `pause()` it, and `resume()` afterwards.
        """
        __tracebackhide__ = True
        if not isinstance(loader, Mapping):
            return self._leaving_locals(
                lambda: self._evaluate(loader, "test" if name is None else name, metrics)
            )
        if name is not None:
            raise ValueError(
                f"evaluate(..., name={name!r}) was given several loaders by name; leave out `name`, or give "
                "one loader"
            )
        if metrics is not None:
            metrics = list(metrics) if isinstance(metrics, Iterable) else [metrics]  # once for each set
        sets = [partial(self._evaluate, each, key, metrics) for key, each in loader.items()]
        return Evaluations.of(self._leaving_locals(work) for work in sets)

    def predict(self, loader: Any, function: AfterBatch | None = None, *, step: Forward | None = None) -> Any:
        """Compute the model's outputs for all batches, joined, on the CPU. The learner stays as it is, to the
        bit.

        If a batch is a tensor x, or (x,), or (x, y), the output is `model(x)`; else it is the `output` (or
        `logits`) of the validation step. The tensors of all batches become one tensor, also inside tuples and
        dicts; if their lengths differ, they become a list with one tensor for each batch. Lists are joined.
        Anything else becomes a list with an entry for each batch.

        On several devices every rank predicts its part of each batch. `function` and `step` are called in the
        rank's process, so what they change there is not seen in the notebook. `function` is tried once on a
        batch that is one sample shorter. Rank 0 does all of it alone, and a notice says why, if a kept value
        has no entry for each sample (a mean of the batch), if a function cannot be sent, or if the loader can
        be walked only once.

        `learner.predict(loader, lambda output, batch: output.argmax(1))`

        Args:
            loader: any iterable of batches, or a dataset if the learner has a batch size; a tensor is one
                batch, `learner.predict(x)`.
            function: `fn(output, batch)`, whose value is kept in place of the output.
            step: `fn(model, batch)` that gives the output, for other batches.

        Raises:
            Paused: the user interrupted it. The learner is unchanged.
            RankDied: another rank's process is gone; `devices.restart()` starts it anew.
            BusyError: the training runs in the background; `pause()` it, and `resume()` afterwards.
        """
        __tracebackhide__ = True
        require_functions(function, step)
        return self._leaving_locals(lambda: self._predict(as_batches(loader), function, step))

    def _evaluate(self, loader: Any, name: str, metrics: Metrics) -> Evaluation:
        __tracebackhide__ = True
        RunLayout("").test_dir(name)  # fail before an hour's work if it cannot be a folder's name
        what = f"evaluate {name}"
        chosen = self._supplies.metrics_for(metrics, what)
        step = self._supplies.validation_step(what)
        cursor = self._supplies.cursor_for(loader, what)
        self._enter()
        self._announce()
        found = self._through(
            Task(what, loader, metrics=chosen),
            cursor,
            step,
            lambda tour: evaluate_set(
                name, tour, step, chosen, self._replica.shown_position, self._replica.loop
            ),
        )
        self._emit(found)
        return Evaluation.of(found)

    def _show_samples(self) -> None:
        """Show what the model says of the chosen samples. If that fails, the training goes on, and the user
        is told once."""
        chosen = self._supplies.samples
        if chosen is None:
            return
        from ..evaluation.chosen_samples import WHAT  # loads what few trainings need
        from ..renderer.text import one_line

        try:
            step = self._supplies.validation_step(WHAT)
            self._emit(chosen.shown(self._replica, step, self._supplies.loss))
        except LoggerError:
            raise
        except Exception as error:
            told = f"no samples are shown: {one_line(str(error)) or type(error).__name__}"
            if told != self._told_of_samples:
                self._told_of_samples = told
                self._emit(Notice(told, "warning"))

    def _predict(self, loader: Any, function: AfterBatch | None, forward: Forward | None) -> Any:
        __tracebackhide__ = True
        step = self._supplies.prediction_step(forward)
        cursor = self._supplies.cursor_for(loader, "predict")
        task = Task("predict", loader, forward=forward, function=function)
        return self._through(task, cursor, step, lambda tour: predict(tour, step, function))

    def _through(self, task: Task, cursor: Cursor, step: ValidationStep, work: Callable[[Tour], T]) -> T:
        """Go through a set on all ranks, or on this rank alone."""
        __tracebackhide__ = True
        ranks = self._replica.ranks
        if ranks is not None:
            try:
                with ranks.tour(task, self._supplies.cursor_for) as others:
                    return self._beside(task, others.cursor, step, work, others)
            except Alone as why:
                self._replica.emit(Notice(f"{task.what}: on rank 0 alone, since {why}"))
        return self._beside(task, cursor, step, work)

    def _beside(
        self,
        task: Task,
        cursor: Cursor,
        step: ValidationStep,
        work: Callable[[Tour], T],
        others: Others | None = None,
    ) -> T:
        __tracebackhide__ = True
        loop = self._replica.loop
        with beside(self._replica, cursor, task.what):
            emit = self._replica.emit
            return work(Tour(task.what, cursor, loop.control, emit, step.device, loop.epoch, others))
