"""The builder: collects what a training consists of, checks all of it at once, and wires it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from typing_extensions import Self

from ...breakpoint import Condition, Moment
from ...checkpoint.recorder import Recorder
from ...checkpoint.strategy import Strategy
from ...errors import names_descriptors
from ...event import Sink, Split
from ...metric.base import AnyMetric, TextMetric
from ...run.settings import EarlyStoppingRule, Registered, Settings
from ...state.checkpointer import Checkpointer, Which
from ...step.schedule import When
from ...step.step import StepFunction
from ..learner import Learner

if TYPE_CHECKING:
    import logging

    from ipyparallel import Client, Cluster, DirectView  # type: ignore[import-untyped]


class LearnerBuilder:
    """Configure a training, then `build` a `Learner`.

    No verb complains by itself: `build` reports all mistakes together.

    >>> import torch
    >>> from torch import nn
    >>> from notebook_learner import LearnerBuilder
    >>> from notebook_learner.metric import Loss
    >>> model = nn.Linear(4, 1)
    >>> batches = [(torch.ones(8, 4), torch.ones(8, 1))]
    >>> learner = (
    ...     LearnerBuilder("runs/example")
    ...     .metrics(Loss())
    ...     .loss(nn.functional.mse_loss)
    ...     .num_epochs(2)
    ...     .renderer("silent")
    ...     .build(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.1)
    ... )
    >>> model = learner.fit(batches)
    >>> learner.status, len(learner.history["train", "Loss"])
    ('finished', 2)

    Args:
        directory: where everything of this run is kept; made when training starts. A run that it holds
            by then is moved beside it; see `resume` and `overwrite`.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._settings = Settings(directory)

    if not TYPE_CHECKING:  # a type checker would take every misspelt verb for an attribute

        def __getattr__(self, name: str) -> Any:
            """Asked for what is not here: a verb of the Learner, perhaps, which is not built yet."""
            own = f"{type(self).__name__!r} object has no attribute {name!r}"
            if hasattr(Learner, name):
                own += (
                    "; a Learner has it, and build(model, optimizer) gives one: "
                    f"learner = builder.build(...), then learner.{name}"
                )
            raise AttributeError(own, name=name, obj=self)

    # Metrics -----------------------------------------------------------------------------------------

    def metric_train(self, metric: AnyMetric) -> Self:
        """Log and show a metric of the training split, without a curve."""
        return self._register(metric, "train", plotted=False)

    def metric_valid(self, metric: AnyMetric) -> Self:
        """Log and show a metric of the validation split, without a curve."""
        return self._register(metric, "valid", plotted=False)

    def metric_train_numeric(self, metric: AnyMetric) -> Self:
        """Log, show and plot a numeric metric of the training split."""
        return self._register(metric, "train", plotted=True)

    def metric_valid_numeric(self, metric: AnyMetric) -> Self:
        """Log, show and plot a numeric metric of the validation split."""
        return self._register(metric, "valid", plotted=True)

    def metrics(self, *metrics: AnyMetric) -> Self:
        """Log, show and plot numeric metrics of both splits; a text (`ConfusionMatrix()`) has no curve.
        Without any: no metric at all.

        A learner for which none is registered measures `Loss()` on both.
        """
        self._settings.metrics_given = True
        for metric in metrics:
            plotted = not isinstance(metric, TextMetric)
            self._register(metric, "train", plotted=plotted)
            self._register(metric, "valid", plotted=plotted)
        return self

    # Where it goes -----------------------------------------------------------------------------------

    def metric_logger(self, logger: Sink) -> Self:
        """Where metric values are kept, instead of the log files. May be given several times."""
        self._settings.loggers.append(logger)
        return self

    def renderer(self, renderer: str | Sink) -> Self:
        """What shows the training: "auto", "panel" (in a notebook), "terminal", "plain", "silent", or a sink
        of your own."""
        self._settings.renderer = renderer
        return self

    def with_application_logger(self, target: bool | str | os.PathLike[str] | logging.Logger) -> Self:
        """The log of what happened, by default `experiment.log` in the directory: False for none, a
        path for another file, or a `logging.Logger`."""
        self._settings.application_log = target
        return self

    def remote_control(self, on: bool) -> Self:
        """Whether other processes of yours may steer the run (True): `notebook-learner ctl DIR pause` in a
        terminal, `notebook_learner.remote.control(...)` in a second notebook. Its socket lies in the folder
        for temporary files (TMPDIR, or /tmp), and `control.sock` in DIR says where.

        With False, too, only one process at a time trains in the directory.
        """
        self._settings.remote_control = on
        return self

    # How it trains -----------------------------------------------------------------------------------

    def num_epochs(self, epochs: int) -> Self:
        """The number of epochs (1)."""
        self._settings.num_epochs = _whole(epochs)
        return self

    def with_batch_size(self, size: int) -> Self:
        """The batch size for datasets given in place of loaders; training data is shuffled."""
        self._settings.batch_size = _whole(size)
        return self

    def grads_accumulation(self, batches: int) -> Self:
        """Take one optimizer step per so many batches, as if they had been one."""
        self._settings.window = _whole(batches)
        return self

    def devices(
        self,
        devices: str | torch.device | Sequence[str | torch.device] | Cluster | Client | DirectView,
        *,
        batch: Literal["global", "per_device"] = "global",
        here: str | torch.device | None = None,
        address: str | None = None,
    ) -> Self:
        """The device to train on, such as ["cuda:0"]; by default the one the model is on.

        With several, ["cuda:0", "cuda:1"] or ["cpu", "cpu"], there is a process for each on this machine (the
        extra `devices` brings what starts them), and each takes its part of every batch: a loader's batch
        stays the whole one, and losses and metrics are those of one device. What a batch draws or averages
        by itself is not: dropout masks, and the mean of a BatchNorm, which is that of each part.

        Engines of an ipyparallel cluster that you have started, here or on other machines (by ssh, Slurm,
        PBS, MPI, Kubernetes), are further ranks next to this process: give the `ipyparallel.Cluster`, a
        `Client`, a part of its engines (`client[:4]`), or the id of a cluster that runs. The first engine of
        a machine trains on its first CUDA device, the second on its second. They are left running when the
        learner is gone.

        Args:
            devices: one, or several, or engines.
            batch: with "per_device" a loader's batch is that of each device, as it is with torch's own
                DistributedSampler: two devices and `batch_size=32` train on 64 samples a step, and an
                epoch has half the steps.
            here: with engines, the device of this process; by default its first CUDA device, else the CPU.
            address: with engines, where they reach this process, if its machine has several addresses.
        """
        self._settings.devices = [devices] if isinstance(devices, (str, torch.device)) else devices
        self._settings.here, self._settings.address = here, address
        self._settings.batch = batch
        return self

    def strategy(self, strategy: Literal["ddp", "fsdp"]) -> Self:
        """How several devices train together: with "ddp" (the default) each has the whole model; with "fsdp"
        each has a part of the weights, their gradients and the optimizer's state (torch's `fully_shard`).

        With "fsdp" a layer's weights are brought together for as long as it computes: each member of a
        ModuleList or a Sequential that has several of one kind, and the rest of the model. Numbers, pauses,
        rewinding and checkpoints are as with "ddp", and a checkpoint of either goes on with the other, or on
        one device. While the learner stands still, this process has weights and optimizer whole, for cells
        to look at and to change, for `evaluate` and `predict`; so they have to fit there, and each
        stop takes the time of bringing them.

        All devices have to run the same layers in the same order. An optimizer that goes by whole weights,
        `precision("fp16")`, `compile()`, `ema()`, a step that returns `TrainOutput`, and breakpoints that
        look at gradients or weights are refused. Run with processes on the CPU; on several GPUs it was
        never tried.

        Args:
            strategy: "ddp" or "fsdp".
        """
        self._settings.together = strategy
        return self

    def precision(self, precision: Any) -> Self:
        """Train in "fp32" (the default), or with autocast in "bf16" or in "fp16" (with loss scaling)."""
        self._settings.precision = precision
        return self

    def clip_gradients(self, *, norm: float | None = None, value: float | None = None) -> Self:
        """Clip gradients before each optimizer step: all together by norm, or entry by entry."""
        self._settings.clip_norm, self._settings.clip_value = norm, value
        self._settings.clips = True
        return self

    def compile(self, **options: Any) -> Self:
        """Compile the model's forward with torch.compile; options such as mode= are torch's."""
        self._settings.compile = options
        return self

    def graph(self) -> Self:
        """Record the kernels of a whole training step (forward, backward, clipping, optimizer) as a CUDA
        graph and play them, without any Python in between: for models so small that Python takes longer to
        start kernels than the device to run them.

        Steps are recorded for batches of one shape; others, such as a shorter last batch, are taken one by
        one. Pausing, stepping, rewinding and resuming stay what they are. Where a step cannot be recorded
        (it reads a value from the device, or draws from a generator of the host), a warning says why, and
        training goes on without. Python in a step runs only while it is recorded: what it prints or counts
        is not repeated, but for `learner.log`.

        Adam and its like become `capturable`, with their rate as a tensor: their last bits then differ from
        those without `graph()`.
        """
        self._settings.graph = True
        return self

    def ema(self, decay: float = 0.999, *, validate: bool = True) -> Self:
        """Keep a moving average of the weights (`learner.ema_model`); validation uses it unless told
        otherwise."""
        self._settings.ema_decay, self._settings.ema_validates = decay, validate
        return self

    def seed(self, seed: int) -> Self:
        """Make the run a function of this number: order of the data, augmentation, dropout.

        With it, the number of loader workers does not matter, and resuming inside an epoch loads no
        sample twice.
        """
        self._settings.seed = _whole(seed)
        return self

    def loss(self, function: Callable[..., Any], *, output: Any = None) -> Self:
        """For a plain module and (x, y) batches: train on `function(model(x), y)`.

        Args:
            function: from the model's output and the targets to a scalar.
            output: the output class for metrics; by default ClassificationOutput for class numbers
                and RegressionOutput otherwise.
        """
        self._settings.loss, self._settings.loss_output = function, output
        return self

    def train_step(self, function: StepFunction) -> Self:
        """The training step as `fn(model, batch)`, for models that cannot be edited."""
        self._settings.train_step = function
        return self

    def valid_step(self, function: StepFunction) -> Self:
        """The validation step as `fn(model, batch)`."""
        self._settings.valid_step = function
        return self

    def step_scheduler(self, when: When, *, metric: str | tuple[Split, str] | None = None) -> Self:
        """Step the scheduler per "step" or per "epoch" where that differs from torch's custom.

        Args:
            when: after every optimizer step, or after every epoch.
            metric: what ReduceLROnPlateau goes by: a validation metric's name, or a pair such as
                ("train", "Loss"). By default the validation loss.
        """
        self._settings.scheduler_when = when
        self._settings.scheduler_metric = ("valid", metric) if isinstance(metric, str) else metric
        return self

    def early_stopping(
        self,
        metric: str,
        patience: int,
        *,
        split: Split = "valid",
        mode: Literal["min", "max"] | None = None,
        min_delta: float = 0.0,
        warmup: int = 0,
    ) -> Self:
        """Finish when a registered metric has not improved for `patience` epochs in a row. A resumed run
        goes on counting where it was.

        Args:
            metric: its name, such as "Loss".
            patience: epochs without an improvement.
            split: "valid" or "train".
            mode: whether "min" or "max" is better; by default what the metric says of itself.
            min_delta: an improvement is more than this, in the metric's own unit.
            warmup: so many first epochs do not use up patience.
        """
        self._settings.early_stopping = EarlyStoppingRule(
            metric, _whole(patience), split, mode, min_delta, _whole(warmup)
        )
        return self

    # Stopping where it goes wrong --------------------------------------------------------------------

    def break_on(self, *conditions: Condition | Callable[[Moment], bool | str], once: bool = False) -> Self:
        """Stop before the update of a step for which a condition holds, as `learner.breakpoints.add` does.

        `.break_on(NonFinite(), lambda moment: moment.loss > 100)`; see `notebook_learner.breakpoint`.

        Args:
            conditions: one or more.
            once: each of them stops the training once, then switches itself off.
        """
        self._settings.breakpoints += [(condition, once) for condition in conditions]
        return self

    # Going back --------------------------------------------------------------------------------------

    def keyframes(self, *, every: int | None = None, memory: int | None = None) -> Self:
        """How densely states are held to go back to: every so many training steps, within so many
        bytes. By default about twice a minute, within a quarter of the free memory."""
        self._settings.keyframe_every, self._settings.keyframe_memory = _whole(every), _whole(memory)
        return self

    def with_file_checkpointer(self, recorder: Recorder | None = None) -> Self:
        """Save model, optimizer, scheduler and everything else that a step can change after each epoch,
        and at a pause, in the directory's `checkpoint` folder. Training does not wait for the disk.

        Args:
            recorder: the file format, by default `Hdf5Recorder()`; see `notebook_learner.checkpoint`.
        """
        self._settings.files_asked = True
        self._settings.recorder = recorder
        return self

    def with_checkpointing_strategy(self, strategy: Strategy) -> Self:
        """Which epochs' checkpoints stay, by default `KeepAny(KeepLast(2), KeepBest("Loss", "valid"))`."""
        self._settings.strategy = strategy
        return self

    def autosave(self, every: int | str | timedelta | None = None, *, on_pause: bool = True) -> Self:
        """Save inside an epoch, too; only the newest of these is kept, until the epoch's own is there.

        `autosave(500)` saves every 500 training steps, `autosave("10 min")` every ten minutes.

        Args:
            every: a number of training steps; or a time such as "30 s", "10 min", "2 h" or a timedelta.
            on_pause: also at a pause, a stop, an error, and when the process is told to end (SIGTERM, or
                SIGHUP of a closed terminal).
        """
        self._settings.files_asked = True
        self._settings.autosave = (_whole(every), on_pause)
        return self

    def with_checkpointer(self, checkpointer: Checkpointer) -> Self:
        """Keep the state at the end of every epoch with an object that saves and loads it."""
        self._settings.checkpointer = checkpointer
        return self

    def checkpoint(self, which: Which) -> Self:
        """Go on from a checkpoint: an epoch's number, a label such as "3-117", "latest" or "best"."""
        self._settings.checkpoint = _whole(which)
        return self

    def resume(self, *, take_back: bool = False) -> Self:
        """Go on from the newest checkpoint in the directory; where there is none, start anew.

        A cell that says so can be run for ever: also the first time, and after the kernel died.

        Args:
            take_back: where the run was handed to a process of its own (`learner.detach()`) that still
                trains, `build` has it save exactly where it stands, and end; the learner goes on from
                there. Otherwise such a run is left alone, and an error says who has it.
        """
        self._settings.resume, self._settings.takes_back = True, take_back
        return self

    def overwrite(self) -> Self:
        """Delete the run that the directory holds, when this one first writes; other files stay.

        Without this, nothing is lost: the earlier run is kept in the next free directory beside it
        (`digits-1`, `digits-2`, ...), and a line says so.
        """
        self._settings.overwrite = True
        return self

    # Build -------------------------------------------------------------------------------------------

    @names_descriptors
    def build(
        self,
        model: nn.Module,
        optimizer: Any,
        lr_scheduler: Any = None,
        train: Iterable[Any] | None = None,
        valid: Iterable[Any] | None = None,
    ) -> Learner:
        """Check everything and wire it.

        Args:
            model: any module; its `train_step` and `valid_step` are used where it has them.
            optimizer: an optimizer over the model's parameters, or a factory that is given them
                (a class such as torch.optim.Adam is one).
            lr_scheduler: a float (constant), a torch scheduler or a factory that is given the
                optimizer, a function from the optimizer step's number (from 0) to a rate, or None.
            train: the training loader or dataset, if it is to be known before `fit`.
            valid: the validation loader or dataset.

        Raises:
            ConfigurationError: with every mistake, and what to write instead. Model and optimizer
                are then as they were.
        """
        from .assembly import assemble  # it loads what only a build needs: ranks, steering, artifacts

        return assemble(self._settings, model, optimizer, lr_scheduler, train, valid)

    def _register(self, metric: AnyMetric, split: Split, *, plotted: bool) -> Self:
        self._settings.metrics_given = True
        self._settings.metrics.append(Registered(metric, split, plotted))
        return self


def _whole(number: Any) -> Any:
    """NumPy's whole numbers as Python's; whatever else it is, the checks will say so."""
    return int(number) if isinstance(number, Integral) and not isinstance(number, bool) else number


# A Learner explains that such a verb is over once it is built, and imports nothing that builds it.
Learner._builder_verbs = frozenset(name for name in vars(LearnerBuilder) if not name.startswith("_"))
