"""The options of a LearnerBuilder as plain values, for the checks and for the assembly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch

from ..checkpoint.recorder import Recorder
from ..checkpoint.strategy import Strategy
from ..cluster import Attached
from ..data.rank_share import Share
from ..event import Sink, Split
from ..metric.base import AnyMetric, Metric, TextMetric
from ..metric.step_values import Loss, LossIfAny
from ..state.checkpoint_files import Checkpointer, Which
from ..state.shape import Change
from ..step.own_loss import LIGHTNING_STEPS, StepKind, lightning_method, takes_targets, with_its_own_loss
from ..step.schedule import When
from ..step.step import StepFunction, supervised
from .early_stopping import EarlyStopping


@dataclass
class Registered:
    """A metric of one split."""

    metric: AnyMetric
    split: Split
    plotted: bool


@dataclass
class EarlyStoppingRule:
    """The arguments of `.early_stopping`; the direction may come from the metric."""

    metric: str
    patience: int
    split: Split
    mode: str | None
    min_delta: float
    warmup: int
    restore: Any = None

    def watch(self, higher_is_better: bool | None) -> EarlyStopping:
        """The rule that runs in training."""
        mode = self.mode or ("max" if higher_is_better else "min")
        return EarlyStopping(
            self.metric,
            patience=self.patience,
            split=self.split,
            mode="max" if mode == "max" else "min",
            min_delta=self.min_delta,
            warmup=self.warmup,
            returns=self.restore == "best",
        )


@dataclass(frozen=True)
class AskedSamples:
    """The arguments of `.samples`."""

    loader: Any
    n: Any
    labels: Any
    tokenizer: Any


@dataclass
class Settings:
    """All options with their defaults."""

    directory: Any
    metrics: list[Registered] = field(default_factory=list)
    narrowed: list[tuple[Any, Any]] = field(default_factory=list)
    """What each call of `.metrics` was given as `train` and `valid`."""
    metrics_given: bool = False
    samples: AskedSamples | None = None
    """Samples whose predictions are shown."""
    loggers: list[Sink] = field(default_factory=list)
    renderer: Any = "auto"
    application_log: Any = True
    remote_control: bool = True
    batch_size: int | None = None
    window: int = 1
    num_epochs: int = 1
    first_epoch: Any = 0
    """The number that samplers get for the first epoch."""
    devices: Any = None
    here: Any = None
    """With a cluster's engines: the device of this process."""
    address: str | None = None
    """With a cluster's engines: the address at which they reach this process."""
    cluster: Attached | None = None
    """The engines that run the other ranks, if this process does not start the ranks."""
    batch: Any = "global"
    """Whether a loader's batch is for all devices together or, "per_device", for each one."""
    data: Any = "host"
    """Whether data that lie in memory are copied to the "device" that trains."""
    prefetch: Any = False
    """Whether batches are copied to a CUDA device on a stream of their own."""
    together: Any = "ddp"
    """The way several devices train together."""
    share: Share | None = None
    """With several devices: the part of each batch that this process takes."""
    checkpointer: Checkpointer | None = None
    checkpoint: Which | None = None
    resume: bool = False
    at: Any = None
    """The step of the run to go to, if it is not the newest checkpoint's."""
    keeps_start: bool = True
    """Whether the state that the run begins with is kept."""
    takes_given: bool = False
    """Whether the options that the optimizer was built with count, and not those of the checkpoint."""
    takes_back: bool = False
    """Whether a process that continues the run is asked to stop first."""
    overwrite: bool = False
    detached: bool = False
    """Whether this is such a process: it shares only the directory with the one that takes the run back."""
    goes_on: bool = False
    """Whether a checkpointer of the user gave a state to go on from."""
    files_asked: bool = False
    recorder: Recorder | None = None
    base: str | None = None
    """Where the weights that do not train come from, if checkpoints leave them out."""
    strategy: Strategy | None = None
    autosave: tuple[Any, bool] | None = None
    early_stopping: EarlyStoppingRule | None = None
    precision: Any = "fp32"
    clips: bool = False
    clip_norm: float | None = None
    clip_value: float | None = None
    compile: dict[str, Any] | None = None
    graph: bool = False
    """Whether training steps are recorded and replayed."""
    ema_decay: float | None = None
    ema_validates: bool = True
    seed: int | None = None
    keyframe_every: int | None = None
    keyframe_memory: int | None = None
    configs: list[Any] = field(default_factory=list)
    """The user's own values for the record: mappings, or what has such."""
    records_source: bool = True
    """Whether the record has source text, cells and the work tree's changes."""
    first_cell: int | None = None
    """The notebook's cell in which the builder was made."""
    parent: str = ""
    """The origin of a forked run, in words."""
    carried: dict[str, Any] = field(default_factory=dict)
    """Further objects that a step changes, by the names that the user gave them."""
    exactness: Any = "told"
    """Whether what a step reaches is kept and what cannot be is told, is an error, or is not looked for."""
    breakpoints: list[tuple[Any, bool]] = field(default_factory=list)
    loss: Callable[..., Any] | None = None
    loss_output: Any = None
    train_step: StepFunction | None = None
    valid_step: StepFunction | None = None
    acts: list[tuple[Any, Any]] = field(default_factory=list)
    """Functions of the user that are part of the run, each with the place at which it is called."""
    reshapes: list[Callable[[Any], Any]] = field(default_factory=list)
    """Functions that change the shape of the training: a state from a file may name them."""
    reshaped: Sequence[Change] = ()
    """The changes that led to the given objects, if they come from the middle of a run."""
    scheduler_when: When | None = None
    scheduler_metric: Any = None
    scheduler_by_log: bool = False
    """Whether that metric is one that steps log, so that no one knows of it before."""

    def registered(self) -> list[Registered]:
        """The requested metrics; the loss on both splits if the user chose none."""
        if self.metrics_given:
            return self.metrics
        return [Registered(LossIfAny(), "train", True), Registered(Loss(), "valid", True)]

    def metrics_of(self, split: str) -> dict[str, AnyMetric]:
        """A split's metrics by name. An object that is not a metric is left out: another check reports it."""
        found = [r.metric for r in self.registered() if r.split == split]
        return {m.name: m for m in found if isinstance(m, (Metric, TextMetric)) and hasattr(m, "name")}

    def says_how_to_train(self, model: Any) -> bool:
        """Whether the user gave a training step."""
        given = self.train_step is not None or self.loss is not None
        own = hasattr(model, "train_step") or lightning_method(model, LIGHTNING_STEPS["train"])
        return bool(given or own or takes_targets(model))

    def says_how_to_validate(self, model: Any) -> bool:
        """Whether the user gave a validation step."""
        given = self.valid_step is not None or self.loss is not None
        if given or hasattr(model, "valid_step") or self.train_step is not None:
            return given or hasattr(model, "valid_step")
        return bool(lightning_method(model, LIGHTNING_STEPS["valid"]) or takes_targets(model))

    def step_for(self, split: StepKind, model: Any) -> Callable[[Any], Any] | None:
        """What is called with a batch of this split, or None if nothing says it; not for Lightning's steps,
        which ask their learner."""
        own = self.train_step if split == "train" else self.valid_step
        if own is not None:
            return partial(own, model)
        if self.loss is not None:
            return partial(supervised, model, self.loss, self.loss_output)
        step: Callable[[Any], Any] | None = getattr(model, f"{split}_step", None)
        if step is None and takes_targets(model):
            return partial(with_its_own_loss, model)
        return step

    def predicts_by_its_step(self, model: Any) -> bool:
        """Whether the output of the validation step is that of the model, also where a batch is no (x, y)."""
        own = self.valid_step is not None or hasattr(model, "valid_step")
        return own or (self.loss is None and self.train_step is None and takes_targets(model))

    @property
    def in_parts(self) -> bool:
        """Whether each of several devices holds only a part of the weights."""
        return bool(self.together == "fsdp")

    @property
    def about_a_run_there(self) -> Literal["keep", "go on", "overwrite"]:
        """What happens to a run in the directory, unless one of its checkpoints is loaded."""
        if self.goes_on:
            return "go on"
        return "overwrite" if self.overwrite else "keep"

    @property
    def keeps_files(self) -> bool:
        """Whether the run writes files to its directory."""
        return self.detached or not self.loggers or self.files_asked or self.application_log is True

    def of_one_learner(self) -> Settings:
        """A copy that does not change with later calls on the builder, or with another `build`."""
        return replace(
            self,
            metrics=[replace(r) for r in self.metrics],
            loggers=list(self.loggers),
            breakpoints=list(self.breakpoints),
            carried=dict(self.carried),
            configs=list(self.configs),
            acts=list(self.acts),
            reshapes=list(self.reshapes),
        )

    @property
    def has_several(self) -> bool:
        """Whether several devices are named."""
        return isinstance(self.devices, (list, tuple)) and len(self.devices) > 1

    @property
    def of_another_rank(self) -> bool:
        """Whether rank 0 has sent these, perhaps after its user has changed them in mid-run."""
        return self.share is not None and self.share.rank > 0

    def of_a_copy(self) -> Settings:
        """A copy for a learner that begins where this one stands: without options that say where to begin."""
        return replace(
            self.of_one_learner(),
            checkpoint=None,
            resume=False,
            at=None,
            takes_back=False,
            overwrite=False,
            goes_on=False,
        )


PRECISIONS: dict[Any, torch.dtype | None] = {
    "fp32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    torch.float32: None,
    torch.bfloat16: torch.bfloat16,
    torch.float16: torch.float16,
}
