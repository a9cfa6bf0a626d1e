"""The `Evaluator`, which measures the weights of a saved run without a Learner."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ..artifacts import Artifacts
from ..artifacts.evaluations import Evaluation, Evaluations
from ..data.cursor import Cursor
from ..data.rng import capture_generators, capture_rng, restore_generators, restore_rng
from ..data.to_device import ToDevice
from ..errors import ConfigurationError, names_descriptors
from ..evaluation.prediction import AfterBatch, Forward, as_batches, output_of, predict, require_functions
from ..evaluation.set_pass import Tour, evaluate_set
from ..event import Evaluated, Event, FanOut, Sink, Split
from ..event.position import Position
from ..logger import ApplicationLogger, FileMetricLogger
from ..metric import Loss
from ..metric.base import AnyMetric
from ..run.control import Control
from ..run.driver import Driver
from ..run.modes import Modes, switch
from ..run.settings import PRECISIONS, Registered, Settings
from ..step.own_loss import LIGHTNING_STEPS, lightning_method
from ..step.step import ValidationStep
from ..store.layout import RunLayout
from .wiring.checks import listed, metric_mistakes, step_mistakes
from .wiring.loaders import not_a_loader

T = TypeVar("T")


class Evaluator:
    """Evaluate and predict with the weights of a saved run.

    `Evaluator("runs/digits", Net(), loss=F.cross_entropy, metrics=[Loss(), Accuracy()]).evaluate(loader)`

    The values go to the same place as those of `learner.evaluate`: below `test/<name>` of the run's
    directory. The rules of `learner.predict` for batches and outputs hold here, too.

    Args:
        run: the run's directory, or its `Artifacts`.
        model: a model of the same shape; the weights are loaded into it. It keeps its device and its mode.
        checkpoint: an epoch's number, "best", "latest", or a label such as "3-117".
        average: whether to take the moving average of the weights. By default it is taken if the run kept
            one, as in the run's validation. After `.ema(..., validate=False)`, give False.
        loss: for `(x, y)` batches, if there is no `valid_step`.
        valid_step: `fn(model, batch)`; by default the model's own `valid_step`, if it has one.
        metrics: by default the loss.
        precision: "fp32", "bf16" or "fp16", as for the builder.
        renderer: what shows the progress: "auto", "rich", "plain", "silent", or a sink.

    Raises:
        StateError: there is no such checkpoint, or it is of another model: every difference is listed.
        DamagedError: the checkpoint is damaged.
        ConfigurationError: nothing says how to measure a batch, or `metrics` has something else than metrics.
    """

    @names_descriptors
    def __init__(
        self,
        run: Artifacts | str | os.PathLike[str],
        model: nn.Module,
        *,
        checkpoint: int | str = "best",
        average: bool | None = None,
        loss: Callable[..., Any] | None = None,
        valid_step: Forward | None = None,
        metrics: Iterable[AnyMetric] | None = None,
        precision: Any = "fp32",
        renderer: Any = "auto",
    ) -> None:
        self.artifacts = run if isinstance(run, Artifacts) else Artifacts(run)
        self.metrics: list[AnyMetric] = [Loss()] if metrics is None else listed(metrics)
        self._settings = Settings(self.artifacts.directory, loss=loss, valid_step=valid_step)
        self._settings.precision = precision
        from ..renderer import resolve  # loads a display, which only an evaluation needs

        self._renderer = resolve(renderer)
        _require_sound(self._settings, self.metrics, model)
        self.checkpoint = self.artifacts.find(checkpoint)
        """The checkpoint that the weights come from."""
        label = self.checkpoint.label  # "best" and "latest" may name another one meanwhile
        averaged = self.artifacts.has_average(label) if average is None else average
        self.model = self.artifacts.load_model(model, label, average=averaged)
        self._driver = Driver(Control())

    def evaluate(
        self, loader: Any, name: str | None = None, metrics: Iterable[AnyMetric] | None = None
    ) -> Any:
        """Measure a set and return its values; several sets by name: `evaluate({"clean": a, "noisy": b})`.

        Args:
            loader: any iterable of batches.
            name: the set's name, by default "test".
            metrics: to use instead of the evaluator's.

        Raises:
            Paused: the user interrupted it. Nothing was recorded.
        """
        __tracebackhide__ = True
        chosen: list[AnyMetric] = self.metrics if metrics is None else listed(metrics)
        if wrong := _metric_mistakes(chosen):
            raise ConfigurationError(wrong, "evaluate() cannot measure with these metrics")
        if not isinstance(loader, Mapping):
            return self._evaluate(loader, "test" if name is None else name, chosen)
        if name is not None:
            raise ValueError(f"evaluate(..., name={name!r}) was given several loaders by name; leave it out")
        return Evaluations.of(self._evaluate(each, key, chosen) for key, each in loader.items())

    def predict(self, loader: Any, function: AfterBatch | None = None, *, step: Forward | None = None) -> Any:
        """Compute the model's outputs for all batches, joined, on the CPU.

        Args:
            loader: any iterable of batches; a tensor is one batch, `evaluator.predict(x)`.
            function: `fn(output, batch)`, whose value is kept in place of the output.
            step: `fn(model, batch)` that gives the output, for batches other than x, (x,) or (x, y).
        """
        __tracebackhide__ = True
        require_functions(function, step)
        if step is not None:
            runner = self._step(partial(step, self.model))
        else:
            own = self._validate() if self._settings.predicts_by_its_step(self.model) else None
            runner = self._step(partial(output_of, self.model, own))
        tour = self._tour(as_batches(loader), "predict", runner)
        return self._beside(tour, lambda: predict(tour, runner, function))

    def __repr__(self) -> str:
        directory = os.fspath(self.artifacts.directory)
        return f"Evaluator({directory!r}, {type(self.model).__name__}, checkpoint {self.checkpoint.label})"

    # -------------------------------------------------------------------------------------------------

    def _evaluate(self, loader: Any, name: str, metrics: list[AnyMetric]) -> Evaluation:
        __tracebackhide__ = True
        RunLayout("").test_dir(name)  # fail before an hour's work if it cannot be a folder's name
        step = self._step(self._validate())
        tour = self._tour(loader, f"evaluate {name}", step)
        at = self._place()
        found = self._beside(tour, lambda: evaluate_set(name, tour, step, metrics, at))
        self._record(found)
        return Evaluation.of(found)

    def _record(self, found: Evaluated) -> None:
        """Record the values as a learner does. A learner that trains in the directory meanwhile finds them
        when it next writes artifacts.h5; if no learner trains there, the evaluator writes that file again."""
        directory = Path(self.artifacts.directory)
        rests = self.artifacts.status != "running"
        recorders: list[Sink] = [FileMetricLogger(directory)]
        recorders.append(ApplicationLogger(RunLayout(directory).experiment_log))
        try:
            FanOut(recorders, [self._renderer]).emit(found)
        finally:
            for recorder in recorders:
                recorder.close()  # type: ignore[attr-defined]
        if rests:
            self.artifacts.renew()

    def _place(self) -> Position:
        """The training position of the weights: the end of an epoch is its last step."""
        info, history = self.checkpoint, self.artifacts.history
        if "-" in info.label:
            return Position(info.epoch, info.split, info.step, info.iteration)
        split: Split = "valid" if info.epoch in history.epoch_numbers("valid") else "train"
        known = info.epoch in history.epoch_numbers(split)
        steps = len(history.steps(split, info.epoch)) if known else info.step
        return Position(info.epoch, split, steps, info.iteration)

    def _validate(self) -> Callable[[Any], Any]:
        step = self._settings.step_for("valid", self.model)
        assert step is not None, "known since it was made"
        return step

    def _step(self, function: Callable[[Any], Any]) -> ValidationStep:
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        return ValidationStep(function, ToDevice(device), PRECISIONS[self._settings.precision])

    def _tour(self, loader: Any, what: str, step: ValidationStep) -> Tour:
        if wrong := list(not_a_loader(self._settings, what, loader)):
            raise ConfigurationError(wrong, "this data cannot be used")
        return Tour(what, Cursor(loader), self._driver.control, self._show, step.device)

    def _show(self, event: Event) -> None:
        self._renderer.handle(event)

    def _beside(self, tour: Tour, work: Callable[[], T]) -> T:
        """Do the work; afterwards the model's mode and all random generators are as they were."""
        __tracebackhide__ = True
        modes, generators = Modes(self.model, self.model), tour.cursor.walk.generators
        drawn, live = capture_generators(generators), capture_rng()
        try:
            with modes.kept():
                switch(self.model, training=False)
                value, interrupted = self._driver.here(work)
        finally:
            restore_generators(generators, drawn)
            restore_rng(live)
        if interrupted:  # it came when the work was as good as done
            raise KeyboardInterrupt
        return value


def _require_sound(settings: Settings, metrics: list[AnyMetric], model: Any) -> None:
    wrong = [*_metric_mistakes(metrics), *step_mistakes(settings)]
    if not isinstance(model, nn.Module):
        wrong.append(f"the model is of type {type(model).__name__}; give a torch.nn.Module")
    elif settings.step_for("valid", model) is None and lightning_method(model, LIGHTNING_STEPS["valid"]):
        wrong.append(
            f"{type(model).__name__} measures by validation_step, which asks its learner for values by name: "
            "use LearnerBuilder(run).resume().build(model).evaluate(loader); or give loss= or valid_step="
        )
    elif not settings.says_how_to_validate(model):
        wrong.append(
            "nothing says how to measure it: give loss=F.cross_entropy for (x, y) batches, or "
            "valid_step=fn with fn(model, batch), or a model with a valid_step(self, batch)"
        )
    if settings.precision not in PRECISIONS:
        wrong.append(f'precision={settings.precision!r}: choose "fp32", "bf16" or "fp16"')
    if wrong:
        raise ConfigurationError(wrong, "this evaluator cannot be made")


def _metric_mistakes(metrics: list[AnyMetric]) -> list[str]:
    return list(metric_mistakes([Registered(metric, "valid", False) for metric in metrics]))
