"""`learner.split_batch(n)`: batches in parts, where a whole one needs too much memory."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..data.batch_parts import rows_of
from ..errors import StateError
from ..event import Notice
from ..run.loop import Loop
from .core import LearnerCore

_TOLD: WeakSet[nn.Module] = WeakSet()
"""The models whose user has been told of their BatchNorm."""


def split_batch(learner: LearnerCore, parts: Any) -> None:
    """Take each batch in so many parts from the next one on, and note it as a change by hand."""
    __tracebackhide__ = True
    if not isinstance(parts, int) or isinstance(parts, bool) or parts < 1:
        raise ValueError(f"split_batch({parts!r:.60}): give a whole number of parts, such as 2; 1 is whole")
    with learner._changing():
        loop = learner._replica.loop
        if parts > 1:
            _require_divisible(loop, parts)
            if told := _of_batch_norm(loop, parts):
                tell = learner._emit if learner._announced else learner._untold.append
                tell(Notice(told, "warning"))
        loop.update.divide(parts)
        learner._edited(note := f"split_batch({parts})")
        if learner._announced and not loop.iteration:  # an error in the first step led here
            learner._stand_anew()
            learner._mark("edited", note)


def _require_divisible(loop: Loop, parts: int) -> None:
    if loop.ranks is not None:
        raise StateError(
            f"split_batch({parts}) is for one device; on several, each takes its part of a batch: give a "
            "smaller batch size, and grads_accumulation(n) in the builder"
        )
    if loop.update.drives:
        raise StateError(
            f"split_batch({parts}): the step calls optimizer.step() itself, so it has to take the batch in "
            "parts itself: (loss * len(x_i) / len(x)).backward() for each, then optimizer.step(); or leave "
            "backward() and optimizer.step() to the learner and return the loss"
        )
    if loop.batch is not None:
        rows_of(loop.batch, parts)


def _of_batch_norm(loop: Loop, parts: int) -> str:
    """What the user should know of layers that measure a batch; empty if there are none, or it was told."""
    model = loop.update.model
    names = [name for name, each in model.named_modules() if isinstance(each, _BatchNorm)]
    if not names or model in _TOLD:
        return ""
    _TOLD.add(model)
    return (
        f"split_batch({parts}): BatchNorm ({', '.join(names[:3])}{', ...' if names[3:] else ''}) takes the "
        "mean and variance of each part, so this is not the training of whole batches, and a part of one "
        "sample is an error there; all else is the same mean"
    )
