"""Two walks from the same step over the same batches: as it is, and with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import a_kind
from .comparison import Comparison
from .data.sampling import END
from .excursion import excursion
from .loop import Loop
from .replica import Replica
from .step.schedule import Constant
from .step.update import ClipByNorm
from .until import Trained

_OTHERS = ("train_step", "batch", "clip_norm")


def what_if(replica: Replica, steps: int, changes: Mapping[str, Any]) -> Comparison:
    """Take some training steps as the run would, and again with changes; everything is taken back."""
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"what_if(steps={steps!r}): try a whole number of steps, from 1")
    _check(replica.loop, changes)
    loop = replica.loop
    with excursion(replica, what="what_if()") as trip:
        until = Trained(trip.start.position.iteration + steps)
        baseline = trip.walk(until)
        trip.back()
        with _changed(loop, changes):
            other = trip.walk(until)
    said = {name: _said(value) for name, value in changes.items()}
    return Comparison(trip.start.position, said, (baseline, other))


def _check(loop: Loop, changes: Mapping[str, Any]) -> None:
    options = [key for key in loop.update.optimizer.param_groups[0] if key not in ("params", "initial_lr")]
    known = [*_OTHERS, *options]
    if not changes:
        raise ValueError(f"what_if() compares with a change; it can change {', '.join(known)}")
    for name in changes:
        if name not in known:
            raise ValueError(
                f"what_if({name}=...): there is no {name} here; it can change {', '.join(known)}"
            )
    if "train_step" in changes and not callable(changes["train_step"]):
        raise ValueError(f"what_if(train_step={changes['train_step']!r}): give a function fn(model, batch)")
    if "clip_norm" in changes and not changes["clip_norm"] > 0:
        raise ValueError(f"what_if(clip_norm={changes['clip_norm']!r}): give a norm above 0, such as 1.0")


@contextmanager
def _changed(loop: Loop, changes: Mapping[str, Any]) -> Iterator[None]:
    """The run is like this inside. What belongs to the state (the optimizer's groups) is put back by the
    excursion, all else here."""
    train, update = loop.passes["train"], loop.update
    function, cursor, clips, plain = train.step.function, train.cursor, update.clips, update.plain
    try:
        for name, value in changes.items():
            if name == "train_step":
                train.step.function = partial(value, update.model)
            elif name == "batch":
                same: Any = _SameBatch(cursor, value)  # has all that a block asks of a cursor
                train.cursor = same
            elif name == "clip_norm":
                update.clips, update.plain = (ClipByNorm(value),), False
            else:
                _set(loop, name, value)
        yield
    finally:
        train.step.function, train.cursor = function, cursor
        update.clips, update.plain = clips, plain


def _set(loop: Loop, name: str, value: Any) -> None:
    if name == "lr":  # a schedule would write over it
        loop.schedule = loop.update.schedule = Constant(loop.update.optimizer, None)
    groups = loop.update.optimizer.param_groups
    values = value if isinstance(value, list) else [value] * len(groups)
    if len(values) != len(groups):
        raise ValueError(
            f"what_if({name}={value!r}): the optimizer has {len(groups)} groups; give one value, or a list "
            f"of {len(groups)}"
        )
    for group, each in zip(groups, values, strict=True):
        live = group[name]
        group[name] = (
            torch.as_tensor(each, dtype=live.dtype, device=live.device) if isinstance(live, Tensor) else each
        )


class _SameBatch:
    """A cursor that walks as ever, and gives one batch at every place."""

    def __init__(self, cursor: Any, batch: Any) -> None:
        self._cursor, self._batch = cursor, batch

    def fetch(self) -> Any:
        return END if self._cursor.fetch() is END else self._batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def _said(value: Any) -> str:
    if value is None or isinstance(value, (int, float, str)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if callable(value):
        return str(getattr(value, "__name__", "another"))
    if isinstance(value, (list, tuple)):
        said = ", ".join(map(_said, value))
        return f"[{said}]" if isinstance(value, list) else f"({said})"
    return a_kind(value)
