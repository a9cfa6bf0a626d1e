"""How a run describes itself when it opens: its metrics, and its settings in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from ...event import MetricInfo, RunOpened
from ...metric.base import Metric
from ...run.settings import PRECISIONS, Registered, Settings
from ...step.optimizers import kind_of
from ...step.schedule import Schedule

_PRECISION_NAMES = {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def opening(
    settings: Settings,
    model: nn.Module,
    registered: Iterable[Registered],
    device: torch.device,
    optimizer: Optimizer,
    schedule: Schedule,
) -> RunOpened:
    """Make the event that a run begins with."""
    return RunOpened(
        str(settings.directory),
        type(model).__name__,
        sum(p.numel() for p in model.parameters()),
        settings.num_epochs,
        tuple(_info(each) for each in registered),
        {
            "device": ", ".join(map(str, settings.devices or [device])),
            "precision": _PRECISION_NAMES[PRECISIONS[settings.precision]],
            "optimizer": kind_of(optimizer),
            "learning rate": str(schedule),
            **_options(settings),
        },
    )


def _info(registered: Registered) -> MetricInfo:
    metric = registered.metric
    if isinstance(metric, Metric):
        return MetricInfo(
            metric.name, registered.split, metric.unit, metric.higher_is_better, "numeric", registered.plotted
        )
    return MetricInfo(metric.name, registered.split, kind="text", plotted=False)


def _options(settings: Settings) -> Mapping[str, str]:
    """The settings that differ from the defaults."""
    words = {}
    if settings.share is not None and settings.batch == "per_device":
        words["batch"] = "per device"
    if settings.window > 1:
        words["accumulation"] = f"{settings.window} batches"
    clips = {"norm": settings.clip_norm, "value": settings.clip_value}
    if limits := [f"{name} {limit:g}" for name, limit in clips.items() if limit is not None]:
        words["clipping"] = ", ".join(limits)
    if settings.ema_decay is not None:
        words["average"] = f"EMA {settings.ema_decay:g}"
    if settings.compile is not None:
        words["compiled"] = ", ".join(f"{k}={v}" for k, v in settings.compile.items()) or "yes"
    if settings.graph:
        words["steps"] = "recorded"
    if settings.early_stopping is not None:
        rule = settings.early_stopping
        words["early stopping"] = f"{rule.split} {rule.metric}, patience {rule.patience}"
    if settings.parent:
        words["forked from"] = settings.parent
    if settings.seed is not None:
        words["seed"] = str(settings.seed)
    return words
