"""What `strategy("fsdp")` needs from a learner; with it each device has a part of every weight."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...run.settings import PRECISIONS, Settings
from ...step.optimizers import Optimizers

_SAID = 'strategy("fsdp")'
_NUMBER_BY_NUMBER = [
    "SGD",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "RAdam",
    "Adagrad",
    "Adadelta",
    "RMSprop",
    "Rprop",
    "ASGD",
]  # fmt: skip
"""Optimizers of torch that update each number of a weight independently of the others."""


def dividing_mistakes(settings: Settings, model: Any) -> Iterator[str]:
    """What prevents the strategy, as far as known before anything is made."""
    if settings.together not in ("ddp", "fsdp"):
        yield f'strategy({settings.together!r}): choose "ddp" or "fsdp"'
    if not settings.in_parts:
        return
    if settings.share is None:
        yield f"{_SAID} divides the weights among several devices; name them: devices(['cuda:0', 'cuda:1'])"
    if _is_too_old():
        yield (
            f"{_SAID}: torch {torch.__version__} is too old, as its fully_shard always does the sending; "
            'install a newer one, or use strategy("ddp")'
        )
    yield from _options(settings)
    if isinstance(model, nn.Module):
        yield from _weights(model)


def _is_too_old() -> bool:
    try:
        known = import_module("torch.distributed.fsdp").FSDPModule
    except (ImportError, AttributeError):
        return True
    return not hasattr(known, "set_custom_reduce_scatter")


def _options(settings: Settings) -> Iterator[str]:
    if PRECISIONS.get(settings.precision) is torch.float16:
        yield f"{_SAID}: fp16's loss scaling would check each part alone; use precision('bf16')"
    if settings.compile is not None:
        yield f"{_SAID} brings weights together for each layer, and compile() would break that; drop one"
    if settings.graph:
        yield f"{_SAID} and graph(): a recorded step cannot wait for other devices; leave out one of the two"
    if settings.ema_decay is not None:
        yield f'{_SAID}: ema() averages whole weights; leave it out, or use strategy("ddp")'
    for condition, _ in settings.breakpoints:
        if getattr(condition, "needs_whole", False) and not isinstance(condition, type):
            yield (
                f"break_on({condition}): with {_SAID} no device has whole gradients or weights to look at; "
                'use the loss or a metric (LossSpike, MetricIs), or use strategy("ddp")'
            )


def _weights(model: nn.Module) -> Iterator[str]:
    named = list(model.named_parameters())
    scalars = [name for name, p in named if p.ndim == 0]
    if scalars:
        yield f"{_SAID} divides weights by rows, and {', '.join(scalars)} has none; give it one dimension"
    odd = [name for name, p in named if p.ndim and not p.is_contiguous()]
    if odd:
        yield f"{_SAID} needs contiguous weights, and these are not: {', '.join(odd)}; call contiguous()"
    kinds = sorted({str(p.dtype) for _, p in named})
    if len(kinds) > 1:
        yield f"{_SAID} needs weights of one dtype, and the model has {', '.join(kinds)}; convert them to one"
    if any(type(p) is not nn.Parameter for _, p in named):
        yield f"{_SAID}: the model has parameters of a special class; give plain ones, not divided yet"
    if any(getattr(module, "sparse", False) for module in model.modules()):
        yield f"{_SAID} cannot sum sparse gradients; build the embedding with sparse=False"


def optimizer_mistakes(settings: Settings, optimizer: Optimizer) -> Iterator[str]:
    """Why an optimizer cannot be used."""
    if settings.in_parts and isinstance(optimizer, Optimizers):
        yield f'{_SAID} is for one optimizer; give one, or use strategy("ddp")'
        return
    known = [getattr(torch.optim, name) for name in _NUMBER_BY_NUMBER]
    if settings.in_parts and type(optimizer) not in known:
        yield (
            f"{_SAID}: {type(optimizer).__name__} may need whole weights, and each device has only a part of "
            f'them; use one of {", ".join(_NUMBER_BY_NUMBER)}, or strategy("ddp")'
        )
