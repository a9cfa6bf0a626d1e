"""The builder, which collects the parts of a training, checks all of them at once, and joins them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import nn
from typing_extensions import Self

from ...breakpoint import Condition, Moment
from ...checkpoint.recorder import Recorder
from ...checkpoint.strategy import Strategy
from ...errors import names_descriptors
from ...event import Sink, Split
from ...event.position import Position
from ...recipe.source_text import cell_now
from ...run.loop import After
from ...run.settings import EarlyStoppingRule, Settings
from ...state.checkpoint_files import Checkpointer, Which
from ...step.schedule import When
from ...step.step import StepFunction
from ..core import Batches
from ..learner import Learner
from .measuring_verbs import MeasuringVerbs

if TYPE_CHECKING:
    import logging

    from ipyparallel import Client, Cluster, DirectView  # type: ignore[import-untyped]

Whose = Literal["checkpoint", "given"]
"""Whose settings count where a run goes on: the checkpoint's, or those that the builder is given."""


class LearnerBuilder(MeasuringVerbs):
    """Configure a training, then `build` a `Learner`.

    The verbs raise no errors; `build` reports all mistakes together.

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
        directory: the folder of this run's files; it is made when training starts. If it holds an earlier run
            by then, that run is moved to a folder next to it; see `resume` and `overwrite`.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._settings = Settings(directory, first_cell=cell_now())

    if not TYPE_CHECKING:  # a type checker would take every misspelt verb for an attribute

        def __getattr__(self, name: str) -> Any:
            """Explain that a verb of the Learner needs a built one first; called for every unknown name."""
            own = f"{type(self).__name__!r} object has no attribute {name!r}"
            if hasattr(Learner, name):
                own += (
                    "; a Learner has it, and build(model, optimizer) gives one: "
                    f"learner = builder.build(...), then learner.{name}"
                )
            raise AttributeError(own, name=name, obj=self)

    # Where it goes -----------------------------------------------------------------------------------

    def metric_logger(self, logger: Sink) -> Self:
        """Keep metric values with this logger instead of in the log files. May be called several times."""
        self._settings.loggers.append(logger)
        return self

    def renderer(self, renderer: str | Sink) -> Self:
        """Choose what shows the training: "auto", "panel" (in a notebook), "terminal", "plain", "silent", or
        a sink of your own."""
        self._settings.renderer = renderer
        return self

    def with_application_logger(self, target: bool | str | os.PathLike[str] | logging.Logger) -> Self:
        """Choose the log of what happened, by default `experiment.log` in the directory. Give False for no
        log, a path for another file, or a `logging.Logger`."""
        self._settings.application_log = target
        return self

    def remote_control(self, on: bool) -> Self:
        """Allow your other processes to steer the run (the default is True): `notebook-learner ctl DIR pause`
        in a terminal, `notebook_learner.remote.control(...)` in a second notebook. The socket is in the
        folder for temporary files (TMPDIR, or /tmp), and `control.sock` in DIR says where.

        With False, too, only one process at a time trains in the directory.
        """
        self._settings.remote_control = on
        return self

    # What is recorded --------------------------------------------------------------------------------

    def config(self, values: Any) -> Self:
        """Record your own values with the run: `Artifacts(dir).config` gives them back, and
        `Artifacts.compare` shows those that vary. Several calls add up.

        `.config({"width": 64, "augment": True})`, `.config(vars(args))`

        Args:
            values: a mapping, a dataclass or a namespace. What JSON lacks is recorded as text.
        """
        self._settings.configs.append(values)
        return self

    def record(self, *, source: bool = True) -> Self:
        """Choose what is recorded of the program that trains, beside its options and versions.

        Args:
            source: whether source text is: of steps, loss, the model's classes, of the cells that were run
                since this builder was made, and what the work tree changes since its commit. Outputs of
                cells and environment variables are never recorded.
        """
        self._settings.records_source = source
        return self

    # How it trains -----------------------------------------------------------------------------------

    def num_epochs(self, epochs: int, *, first: int = 0) -> Self:
        """Set the number of epochs (1 by default).

        Args:
            epochs: how many there are.
            first: what the `set_epoch` of a sampler, a dataset or a loader gets for the first epoch: 0, as
                torch's own and Hugging Face's expect, or 1.
        """
        self._settings.num_epochs, self._settings.first_epoch = _whole(epochs), _whole(first)
        return self

    def with_batch_size(self, size: int) -> Self:
        """Set the batch size for datasets that are given instead of loaders; training data is shuffled."""
        self._settings.batch_size = _whole(size)
        return self

    def grads_accumulation(self, batches: int) -> Self:
        """Take one optimizer step for this number of batches, as if they were one batch."""
        self._settings.window = _whole(batches)
        return self

    def devices(
        self,
        devices: str | torch.device | Sequence[str | torch.device] | Cluster | Client | DirectView,
        *,
        batch: Literal["global", "per_device"] = "global",
        data: Literal["host", "device"] = "host",
        prefetch: bool = False,
        here: str | torch.device | None = None,
        address: str | None = None,
    ) -> Self:
        """Choose the devices to train on, such as ["cuda:0"]; by default the model's own device.

        With several, ["cuda:0", "cuda:1"] or ["cpu", "cpu"], each device has a process on this machine (this
        needs the extra `devices`), and each process takes its part of every batch. A loader's batch stays the
        whole batch, and losses and metrics are those of one device. Dropout masks and the mean of a BatchNorm
        differ from those of one device, because each part has its own.

        Engines of an ipyparallel cluster that you have started, here or on other machines (by ssh, Slurm,
        PBS, MPI, Kubernetes), become further ranks next to this process: give the `ipyparallel.Cluster`, a
        `Client`, a part of its engines (`client[:4]`), or the id of a cluster that runs. The first engine of
        a machine trains on its first CUDA device, the second on its second. The engines go on running when
        the learner is gone.

        Args:
            devices: one device, several, or engines.
            batch: with "per_device" a loader's batch is the batch of each device, as with torch's own
                DistributedSampler: two devices and `batch_size=32` train on 64 samples a step, and an
                epoch has half the steps.
            data: with "device", tensors of a TensorDataset, also of Subsets and ConcatDatasets of it, are
                copied to the device once, and no batch of them crosses. A tensor that takes more than half
                of the device's free memory stays. Other data, and loaders with workers, stay, too; you are
                told. A change in place is seen, but not one through NumPy or `.data`.
            prefetch: on a CUDA device, copy each batch by pinned memory and on a stream of its own, while the
                device still computes with the batch before. It draws no batch ahead: the numbers are the
                same.
            here: with engines, the device of this process; by default its first CUDA device, else the CPU.
            address: with engines, the address at which they reach this process, if its machine has several.
        """
        self._settings.devices = [devices] if isinstance(devices, (str, torch.device)) else devices
        self._settings.here, self._settings.address = here, address
        self._settings.batch, self._settings.data, self._settings.prefetch = batch, data, prefetch
        return self

    def strategy(self, strategy: Literal["ddp", "fsdp"]) -> Self:
        """Choose how several devices train together. With "ddp" (the default) each has the whole model; with
        "fsdp" each has a part of the weights, their gradients and the optimizer's state (torch's
        `fully_shard`).

        With "fsdp" a layer's weights are brought together only while it computes. A layer here is each member
        of a ModuleList or a Sequential that has several of one kind, and the rest of the model. Numbers,
        pauses, rewinding and checkpoints are as with "ddp", and a checkpoint of one goes on with the other,
        or on one device. While the learner stands still, this process has all of the weights and the
        optimizer's state, so that cells can look at them and change them, and for `evaluate` and `predict`.
        So they have to fit into its memory, and each stop takes the time to bring them there.

        All devices have to run the same layers in the same order. `build` refuses an optimizer that needs
        whole weights, `precision("fp16")`, `compile()` and `ema()`; a step that returns `TrainOutput`, and
        breakpoints that look at gradients or weights, are refused, too. "fsdp" was run with processes on the
        CPU; it was never tried on several GPUs.

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
        """Clip gradients before each optimizer step: all together by `norm`, or each entry by `value`."""
        self._settings.clip_norm, self._settings.clip_value = norm, value
        self._settings.clips = True
        return self

    def compile(self, **options: Any) -> Self:
        """Compile the model's forward with torch.compile, which gets the options (mode=, ...)."""
        self._settings.compile = options
        return self

    def graph(self) -> Self:
        """Record a whole training step (forward, backward, clipping, optimizer) as a CUDA graph and replay it
        without Python. Use it for small models, for which Python needs longer to start a kernel than the
        device needs to run it.

        A graph is for batches of one shape; other batches, such as a shorter last one, run without it.
        Pausing, stepping, rewinding and resuming work as before. If a step cannot be recorded (it reads a
        value from the device, or draws from a generator of the host), a warning says why, and training goes
        on without a graph. Python code in a step runs only during the recording: its prints and counters are
        not repeated, but `learner.log` is.

        Adam and similar optimizers become `capturable`, with their rate as a tensor: the last bits of their
        results then differ from those without `graph()`.
        """
        self._settings.graph = True
        return self

    def ema(self, decay: float = 0.999, *, validate: bool = True) -> Self:
        """Keep a moving average of the weights (`learner.tools.ema_model`); validation uses it, unless
        `validate=False`."""
        self._settings.ema_decay, self._settings.ema_validates = decay, validate
        return self

    def seed(self, seed: int) -> Self:
        """Seed the whole run with this number: order of the data, augmentation, dropout.

        With it, the number of loader workers does not matter, and resuming inside an epoch loads no
        sample twice.
        """
        self._settings.seed = _whole(seed)
        return self

    def carry(self, **objects: Any) -> Self:
        """Name further objects that a step changes: they become part of the state.

        What a step reaches is found without this: attributes of the model, variables of closures, globals,
        samplers, a dataset's attributes, and what these hold. Name what is not found, or cannot be taken by
        value.

        Args:
            objects: by a name of your choice: any object that holds plain data, tensors, arrays or
                generators; one with `state_dict` and `load_state_dict`; or a pair of functions, one that
                returns a copy of the value and one that takes such a value back.
        """
        self._settings.carried.update(objects)
        return self

    def exactness(self, level: Literal["told", "required", "off"]) -> Self:
        """Choose what happens to what a step reaches outside of model, optimizer and loaders.

        With "told" (the default) it is part of the state, and what cannot be taken is named in a line below
        the cell. With "required" the first step raises an error instead. With "off" nothing is looked for,
        and a rewind, `what_if` or a resume leaves such values as they are.
        """
        self._settings.exactness = level
        return self

    def loss(self, function: Callable[..., Any], *, output: Any = None) -> Self:
        """Train a plain module on (x, y) batches with the loss `function(model(x), y)`.

        Args:
            function: takes the model's output and the targets, and returns a scalar.
            output: the output class for metrics; by default ClassificationOutput for class numbers
                and RegressionOutput otherwise.
        """
        self._settings.loss, self._settings.loss_output = function, output
        return self

    def train_step(self, function: StepFunction) -> Self:
        """Use `fn(model, batch)` as the training step, for models that you cannot edit."""
        self._settings.train_step = function
        return self

    def valid_step(self, function: StepFunction) -> Self:
        """Use `fn(model, batch)` as the validation step."""
        self._settings.valid_step = function
        return self

    def on(self, when: After, function: Callable[[Learner], Any]) -> Self:
        """Call `function(learner)` at a place of the run, as a part of it: what it draws and writes counts,
        and going back and on again repeats it.

        `.on("update", clip_weights)`, `.on("epoch", lambda learner: sampler.set_epoch(...))`. Look at
        `learner.model`, `learner.batch` and `learner.history`, and use `learner.log` after an update. The
        verbs that train, evaluate or go back cannot be called there.

        Args:
            when: "update", after each optimizer step (of a step that calls `optimizer.step()` itself: after
                the step); "validated", after each validation; "epoch", at the end of each epoch.
            function: takes the learner. Several are called in the order in which they were given.
        """
        self._settings.acts.append((when, function))
        return self

    def reshapes(self, *functions: Callable[[Learner], Any]) -> Self:
        """Know the functions by which a run changes its shape in its midst. `learner.reshape(unfreeze)` makes
        the change and notes its name, and a checkpoint names it: `.resume()` calls them in the same order.

        `.reshapes(unfreeze, add_head)`

        Args:
            functions: each takes the learner. For a change that was made by hand, give a function that makes
                it.
        """
        self._settings.reshapes += functions
        return self

    def step_scheduler(self, when: When, *, metric: str | tuple[Split, str] | None = None) -> Self:
        """Step the scheduler after each "step" or each "epoch", if that differs from torch's convention.

        Args:
            when: after every optimizer step, or after every epoch.
            metric: the metric for ReduceLROnPlateau: a validation metric's name, or a pair such as ("train",
                "Loss"). By default the validation loss.
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
        restore: Literal["best"] | None = None,
    ) -> Self:
        """Finish when a registered metric has not improved for `patience` epochs in a row. A resumed run
        keeps its count.

        Args:
            metric: its name, such as "Loss".
            patience: epochs without an improvement.
            split: "valid" or "train".
            mode: whether "min" or "max" is better; by default the metric's own setting.
            min_delta: only a change of more than this, in the metric's unit, is an improvement.
            warmup: this number of first epochs does not count against `patience`.
            restore: with "best" the learner goes back to the best epoch when it finishes; the epochs behind
                it stay as a branch. By default it stands at the last one.
        """
        self._settings.early_stopping = EarlyStoppingRule(
            metric, _whole(patience), split, mode, min_delta, _whole(warmup), restore
        )
        return self

    # Stopping when a step goes wrong -----------------------------------------------------------------

    def break_on(self, *conditions: Condition | Callable[[Moment], bool | str], once: bool = False) -> Self:
        """Stop before the update of a step for which a condition holds, as `learner.breakpoints.add` does.

        `.break_on(NonFinite(), lambda moment: moment.loss > 100)`; see `notebook_learner.breakpoint`.

        Args:
            conditions: one or more.
            once: each condition stops the training once, and is then switched off.
        """
        self._settings.breakpoints += [(condition, once) for condition in conditions]
        return self

    # Going back --------------------------------------------------------------------------------------

    def keyframes(self, *, every: int | None = None, memory: int | None = None) -> Self:
        """Set how often `rewind` gets a state to go back to: after `every` training steps, within `memory`
        bytes. By default about twice a minute, within a quarter of the free memory."""
        self._settings.keyframe_every, self._settings.keyframe_memory = _whole(every), _whole(memory)
        return self

    def with_file_checkpointer(
        self, recorder: Recorder | None = None, *, base: str | None = None, start: bool = True
    ) -> Self:
        """Save checkpoints in the directory's `checkpoint` folder, after each epoch and at a pause: model,
        optimizer, scheduler and everything else that a step can change. Training does not wait for the disk.

        Args:
            recorder: the file format, by default `Hdf5Recorder()`; see `notebook_learner.checkpoint`.
            base: for fine-tuning, where the weights that do not train come from, such as a model's name. A
                checkpoint then holds the adapters, or the head, alone, and of the others only digests. To go
                on, the model needs the same base; another one is refused.
            start: whether the state that the run begins with is kept, too (the weights, once, in the folder
                `start`). Without it, `.resume(at=...)` and a rewind in a new process go back no further than
                to the first checkpoint that is there.
        """
        self._settings.files_asked = True
        self._settings.recorder, self._settings.base = recorder, base
        self._settings.keeps_start = start
        return self

    def with_checkpointing_strategy(self, strategy: Strategy) -> Self:
        """Choose which epochs' checkpoints are kept. By default these are the last two and the best by the
        validation loss: `KeepAny(KeepLast(2), KeepBest("Loss", "valid"))`."""
        self._settings.strategy = strategy
        return self

    def autosave(self, every: int | str | timedelta | None = None, *, on_pause: bool = True) -> Self:
        """Save checkpoints inside an epoch, too. Only the newest of them is kept, until the epoch's own is
        saved.

        `autosave(500)` saves every 500 training steps, `autosave("10 min")` every ten minutes.

        Args:
            every: a number of training steps; or a time such as "30 s", "10 min", "2 h" or a timedelta.
            on_pause: also save at a pause, a stop, an error, and when a signal ends the process (SIGTERM, or
                SIGHUP of a closed terminal).
        """
        self._settings.files_asked = True
        self._settings.autosave = (_whole(every), on_pause)
        return self

    def with_checkpointer(self, checkpointer: Checkpointer) -> Self:
        """Use your own object to save and load the state at the end of every epoch."""
        self._settings.checkpointer = checkpointer
        return self

    def checkpoint(self, which: Which, *, settings: Whose = "checkpoint") -> Self:
        """Go on from a checkpoint: an epoch's number, a label such as "3-117", "latest" or "best".

        Args:
            which: the checkpoint.
            settings: as for `resume`.
        """
        self._settings.checkpoint = _whole(which)
        self._take_settings(settings)
        return self

    def resume(
        self,
        *,
        at: Position | tuple[Any, ...] | int | None = None,
        take_back: bool = False,
        settings: Whose = "checkpoint",
    ) -> Self:
        """Go on from the newest checkpoint in the directory, or start from the beginning if there is no
        checkpoint.

        So the same cell works the first time, every later time, and after the kernel died.

        Args:
            at: go to this step of the run, which may be finished: the number of its training steps, as in
                `at=137`, or a position, `at=(7, 5)`. The learner goes to the nearest state before it and
                takes the steps up to it again, compared with what was recorded. `build` needs the data then.
                `%%train` cells that you ran on this machine are taken from the run's record; each step runs
                by the cell of then. Other people's are not run; run yours, and `learner.rewind(to=137)`.
            take_back: for a run that was handed to a process of its own (`learner.detach()`) that still
                trains. With True, `build` makes the process save exactly where it stands, and end; the
                learner goes on from there. With False, the process goes on, and an error names it.
            settings: which options count where the cell's and the checkpoint's differ (rate, betas, weight
                decay, schedule, seed): the "checkpoint"'s, or those "given" in the cell. A line names each.
        """
        self._settings.resume, self._settings.takes_back, self._settings.at = True, take_back, at
        self._take_settings(settings)
        return self

    def _take_settings(self, whose: Whose) -> None:
        if whose not in get_args(Whose):
            raise ValueError(f"settings={whose!r}: give 'checkpoint' or 'given'")
        self._settings.takes_given = whose == "given"

    def overwrite(self) -> Self:
        """Delete the run in the directory when the new run first writes; other files stay.

        Without this verb the earlier run is moved to the next free directory (`digits-1`, `digits-2`, ...),
        and a line says so.
        """
        self._settings.overwrite = True
        return self

    # Build -------------------------------------------------------------------------------------------

    @names_descriptors
    def build(
        self,
        model: nn.Module,
        optimizer: Any = None,
        lr_scheduler: Any = None,
        train: Batches | None = None,
        valid: Batches | None = None,
    ) -> Learner:
        """Check everything, and make the `Learner`.

        Args:
            model: any module; if it has a `train_step` and a `valid_step`, they are used, or those of
                Lightning (`training_step`, `validation_step`).
            optimizer: an optimizer over the model's parameters, or a factory that takes them (such as the
                class torch.optim.Adam). Several optimizers are a mapping by name, or a list. If the training
                step calls `optimizer.step()` itself, it runs backward and zero_grad, too; otherwise all of
                them are stepped after backward. May be left out if the model has `configure_optimizers`.
            lr_scheduler: a float (a constant rate), a torch scheduler, a factory that takes the optimizer, a
                function from the number of the optimizer step (from 0) to a rate, or None; with several
                optimizers, one of these for all, or a mapping by their names.
            train: the training loader or dataset, if you have it before `fit`.
            valid: the validation loader or dataset.

        Raises:
            ConfigurationError: lists every mistake, and what to write instead. Model and optimizer are then
                unchanged.
        """
        from .assembly import assemble  # it loads what only a build needs: ranks, steering, artifacts

        return assemble(self._settings, model, optimizer, lr_scheduler, train, valid)


def _whole(number: Any) -> Any:
    """Convert NumPy's whole numbers to Python's; the checks report anything else."""
    return int(number) if isinstance(number, Integral) and not isinstance(number, bool) else number


# After the build a Learner explains that such a verb is over. It imports nothing that builds.
Learner._builder_verbs = frozenset(name for name in dir(LearnerBuilder) if not name.startswith("_"))
