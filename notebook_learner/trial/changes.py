"""What can differ when training steps are tried out, and a metric of their loss.

Other ranks take the same steps with the same changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..data.sampling import END
from ..errors import ConfigurationError, a_kind, wrong_arguments
from ..metric import Loss
from ..run.bounds import FAR
from ..run.loop import Loop
from ..step.schedule import Constant
from ..step.update import ClipByNorm


@dataclass(frozen=True)
class Changes:
    """What is different from the run."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """By name: `train_step`, `batch`, `clip_norm`, and options of the optimizer."""
    train_only: bool = False
    """Run no validation, no policy and no last epoch."""
    quiet: bool = False
    """Make no metric of a name that a step logs."""


AS_IT_IS = Changes()


def require_step(said: str, function: Any) -> None:
    """Raise if the function cannot be called as `fn(model, batch)`.

    Raises:
        ConfigurationError: with what to write instead.
    """
    why = wrong_arguments(function, "the model", "the batch") if callable(function) else a_kind(function)
    if why:
        raise ConfigurationError([f"{why}; write def train_step(model, batch)"], f"{said} is no step")


class LossOfStep(Loss):
    """The loss, independent of the learner's own metrics; on several devices, the loss of the whole batch."""

    name = "the loss of a step that is tried"


@contextmanager
def changed(loop: Loop, changes: Changes) -> Iterator[None]:
    """Inside, the run has these changes. The optimizer's options are part of the state, and are put back with
    it. Everything else is put back here."""
    train, update = loop.passes["train"], loop.update
    run = loop.passes, loop.policies, loop.num_epochs, loop.schedule, loop.quiet
    own = train.step.function, train.cursor, update.clips, update.plain
    try:
        with train.metrics.beside(LossOfStep()):
            if changes.train_only:
                _train_only(loop)
            loop.quiet = changes.quiet
            for name, value in changes.values.items():
                _change(loop, name, value)
            yield
    finally:
        loop.passes, loop.policies, loop.num_epochs, loop.schedule, loop.quiet = run
        update.schedule = loop.schedule
        train.step.function, train.cursor, update.clips, update.plain = own


def _train_only(loop: Loop) -> None:
    if loop.split == "valid":
        loop.skip_validation()
    loop.passes = {"train": loop.passes["train"]}
    loop.policies, loop.num_epochs = (), FAR


def _change(loop: Loop, name: str, value: Any) -> None:
    train, update = loop.passes["train"], loop.update
    if name == "train_step":
        train.step.function = partial(value, update.model)
    elif name == "batch":
        same: Any = _SameBatch(train.cursor, value)  # has all that a block needs of a cursor
        train.cursor = same
    elif name == "clip_norm":
        update.clips, update.plain = (ClipByNorm(value),), False
    else:
        _set(loop, name, value)


def _set(loop: Loop, name: str, value: Any) -> None:
    if name == "lr":  # a schedule would overwrite it
        loop.schedule = loop.update.schedule = Constant(loop.update.optimizer, None)
    groups = loop.update.optimizer.param_groups
    values = value if isinstance(value, list) else [value] * len(groups)
    for group, each in zip(groups, values, strict=True):
        live = group[name]
        group[name] = (
            torch.as_tensor(each, dtype=live.dtype, device=live.device) if isinstance(live, Tensor) else each
        )


class _SameBatch:
    """A cursor that walks as usual, and gives the same batch at every place."""

    def __init__(self, cursor: Any, batch: Any) -> None:
        self._cursor, self._batch = cursor, batch

    def fetch(self) -> Any:
        return END if self._cursor.fetch() is END else self._batch

    def fetch_share(self) -> Any:
        return END if self._cursor.fetch() is END else self._cursor.share.of_batch(self._batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)
