"""What a LearnerBuilder was told, as plain values: read by the checks and by the assembly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from ..checkpoint.recorder import Recorder
from ..checkpoint.strategy import Strategy
from ..cluster import Attached
from ..data.rank_share import Share
from ..event import Sink, Split
from ..metric import Loss
from ..metric.base import AnyMetric, Metric, TextMetric
from ..state.checkpointer import Checkpointer, Which
from ..step.schedule import When
from ..step.step import StepFunction
from .early_stopping import EarlyStopping


@dataclass
class Registered:
    """A metric of one split."""

    metric: AnyMetric
    split: Split
    plotted: bool


@dataclass
class EarlyStoppingRule:
    """What `.early_stopping` was told; the direction may come from the metric."""

    metric: str
    patience: int
    split: Split
    mode: str | None
    min_delta: float
    warmup: int

    def watch(self, higher_is_better: bool | None) -> EarlyStopping:
        """The running rule."""
        mode = self.mode or ("max" if higher_is_better else "min")
        return EarlyStopping(
            self.metric,
            patience=self.patience,
            split=self.split,
            mode="max" if mode == "max" else "min",
            min_delta=self.min_delta,
            warmup=self.warmup,
        )


@dataclass
class Settings:
    """All options with their defaults."""

    directory: Any
    metrics: list[Registered] = field(default_factory=list)
    metrics_given: bool = False
    loggers: list[Sink] = field(default_factory=list)
    renderer: Any = "auto"
    application_log: Any = True
    remote_control: bool = True
    batch_size: int | None = None
    window: int = 1
    num_epochs: int = 1
    devices: Any = None
    here: Any = None
    """With engines of a cluster: the device of this process."""
    address: str | None = None
    """With engines of a cluster: where they reach this process."""
    cluster: Attached | None = None
    """Whose engines the other ranks are, where this process does not start them."""
    batch: Any = "global"
    """Whether a loader's batch is that of all devices or, "per_device", of each."""
    together: Any = "ddp"
    """How several devices train together."""
    share: Share | None = None
    """With several devices: which part of each batch is this process's."""
    checkpointer: Checkpointer | None = None
    checkpoint: Which | None = None
    resume: bool = False
    takes_back: bool = False
    """Whether a process that goes on with the run is asked to stop first."""
    overwrite: bool = False
    detached: bool = False
    """Whether this is that process: the directory is all that it shares with whoever takes the run back."""
    goes_on: bool = False
    """Whether a checkpointer of the user's own gave a state to go on from."""
    files_asked: bool = False
    recorder: Recorder | None = None
    strategy: Strategy | None = None
    autosave: tuple[Any, bool] | None = None
    early_stopping: EarlyStoppingRule | None = None
    precision: Any = "fp32"
    clips: bool = False
    clip_norm: float | None = None
    clip_value: float | None = None
    compile: dict[str, Any] | None = None
    graph: bool = False
    """Whether training steps are recorded and played."""
    ema_decay: float | None = None
    ema_validates: bool = True
    seed: int | None = None
    keyframe_every: int | None = None
    keyframe_memory: int | None = None
    parent: str = ""
    """Where a forked run comes from, in words."""
    breakpoints: list[tuple[Any, bool]] = field(default_factory=list)
    loss: Callable[..., Any] | None = None
    loss_output: Any = None
    train_step: StepFunction | None = None
    valid_step: StepFunction | None = None
    scheduler_when: When | None = None
    scheduler_metric: Any = None

    def registered(self) -> list[Registered]:
        """The metrics asked for; the loss on both splits where nobody said anything."""
        if self.metrics_given:
            return self.metrics
        return [Registered(Loss(), "train", True), Registered(Loss(), "valid", True)]

    def metrics_of(self, split: str) -> dict[str, AnyMetric]:
        """A split's metrics by name; what is no metric at all has its own complaint."""
        found = [r.metric for r in self.registered() if r.split == split]
        return {m.name: m for m in found if isinstance(m, (Metric, TextMetric)) and hasattr(m, "name")}

    def says_how_to_train(self, model: Any) -> bool:
        """Whether training has a step."""
        return self.train_step is not None or self.loss is not None or hasattr(model, "train_step")

    def says_how_to_validate(self, model: Any) -> bool:
        """Whether validation has a step."""
        return self.valid_step is not None or self.loss is not None or hasattr(model, "valid_step")

    @property
    def in_parts(self) -> bool:
        """Whether each of several devices has but a part of the weights."""
        return bool(self.together == "fsdp")

    @property
    def about_a_run_there(self) -> Literal["keep", "go on", "overwrite"]:
        """What becomes of a run that the directory holds, unless one of its checkpoints is loaded."""
        if self.goes_on:
            return "go on"
        return "overwrite" if self.overwrite else "keep"

    @property
    def keeps_files(self) -> bool:
        """Whether the run writes anything to its directory."""
        return self.detached or not self.loggers or self.files_asked or self.application_log is True

    def of_one_learner(self) -> Settings:
        """A copy that later calls on the builder, or another `build`, leave alone."""
        return replace(
            self,
            metrics=[replace(r) for r in self.metrics],
            loggers=list(self.loggers),
            breakpoints=list(self.breakpoints),
        )

    def of_a_copy(self) -> Settings:
        """The same for a learner that begins where this one stands: without what says where to begin."""
        return replace(
            self.of_one_learner(),
            checkpoint=None,
            resume=False,
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
