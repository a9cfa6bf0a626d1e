"""What can differ when training steps are tried out, and a metric of their loss.

Other ranks take the same steps with the same changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..artifacts.tables import Table
from ..data.sampling import END
from ..errors import ConfigurationError, a_kind, names_descriptors, wrong_arguments
from ..event.position import Position
from ..event.values import Floats
from ..metric.base import AnyMetric, own_copy
from ..metric.step_values import LossIfAny
from ..renderer.text import number
from ..run.bounds import FAR
from ..run.loop import Loop
from ..step.clipping import ClipByNorm
from ..step.schedule import Constant

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Changes:
    """What is different from the run."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """By name: `train_step`, `batch`, `clip_norm`, and options of the optimizer."""
    train_only: bool = False
    """Run no validation, no policy and no last epoch."""
    quiet: bool = False
    """Make no metric of a name that a step logs."""
    metrics: Sequence[AnyMetric] = ()
    """Measure these, too, in training and validation."""


AS_IT_IS = Changes()


def require_step(said: str, function: Any) -> None:
    """Raise if the function cannot be called as `fn(model, batch)`.

    Raises:
        ConfigurationError: with what to write instead.
    """
    why = wrong_arguments(function, "the model", "the batch") if callable(function) else a_kind(function)
    if why:
        raise ConfigurationError([f"{why}; write def train_step(model, batch)"], f"{said} is no step")


class LossOfStep(LossIfAny):
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
        with ExitStack() as stack:
            stack.enter_context(train.metrics.beside(LossOfStep()))
            for each in loop.passes.values():
                for metric in changes.metrics:
                    stack.enter_context(each.metrics.beside(own_copy(metric)))
            if changes.train_only:
                _train_only(loop)
            loop.quiet, loop.trying = changes.quiet, True
            for name, value in changes.values.items():
                _change(loop, name, value)
            yield
    finally:
        loop.passes, loop.policies, loop.num_epochs, loop.schedule, loop.quiet = run
        loop.trying = False
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


_MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class Course:
    """What a walk measured: one value for each training step."""

    places: tuple[tuple[int, int], ...]
    """(epoch, step) of every step."""
    values: Mapping[str, Floats]
    """By name: "loss", as the steps returned it, and the training metrics."""


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The same steps twice: as the run would take them, and with a change. Prints as a table.

    `baseline` and `changed` hold the values of every step by name: "loss", and the training metrics.
    """

    start: Position
    """Where both courses began, and where the learner is."""
    changes: Mapping[str, str]
    """What was changed, in words."""
    courses: tuple[Course, Course]
    weights: tuple[str, str] = ("", "")
    """A digest of the weights at each end; empty where each device had only a part of them."""

    @property
    def baseline(self) -> Mapping[str, Floats]:
        """The values of every step as the run would take it."""
        return self.courses[0].values

    @property
    def changed(self) -> Mapping[str, Floats]:
        """The values of every step with the change."""
        return self.courses[1].values

    @property
    def first_difference(self) -> tuple[int, int] | None:
        """The (epoch, step) of the first step with different values; None if no value differs."""
        one, other = self.courses
        steps = min(len(one.places), len(other.places))
        for at in range(steps):
            if any(not _same(one.values[name][at], other.values[name][at]) for name in self._names()):
                return one.places[at]
        return None if len(one.places) == len(other.places) else self._longer[steps]

    def table(self) -> list[dict[str, Any]]:
        """Return a list with one dict for each step: epoch, step, and each value's baseline and change."""
        one, other = self.courses
        rows: list[dict[str, Any]] = []
        for at, (epoch, step) in enumerate(self._longer):
            row: dict[str, Any] = {"epoch": epoch, "step": step}
            for name in self._names():
                row[name], row[f"{name} changed"] = _at(one.values[name], at), _at(other.values[name], at)
            rows.append(row)
        return rows

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        from importlib import import_module

        return import_module("pandas").DataFrame(self.table())

    @names_descriptors
    def plot(self, name: str = "loss") -> Figure:
        """Plot one value of both courses, step by step."""
        if name not in self._names():
            raise KeyError(f"both courses have no {name!r}; they have {', '.join(self._names())}")
        from ..renderer.drawing import LIGHT, lines

        first = self.start.iteration + 1
        curves = [
            (label, np.arange(first, first + len(values)), values)
            for label, values in (("as it is", self.baseline[name]), (self._said, self.changed[name]))
        ]
        return lines(curves, "training step", name, LIGHT)

    @property
    def _longer(self) -> tuple[tuple[int, int], ...]:
        one, other = (course.places for course in self.courses)
        return one if len(one) >= len(other) else other

    @property
    def _said(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in self.changes.items())

    def _names(self) -> list[str]:
        one, other = self.courses
        return [name for name in one.values if name in other.values]

    @property
    def _measured(self) -> list[str]:
        """The names to show: a step that drives itself need not return a loss."""
        one, other = self.courses
        both = {name: np.concatenate([one.values[name], other.values[name]]) for name in self._names()}
        names = [name for name, values in both.items() if not np.isnan(values).all()]
        return [name for name in names if name != "Loss" or "loss" not in names]

    @property
    def _differs(self) -> str:
        where, steps = self.first_difference, len(self._longer)
        if where is not None:
            return f"first difference at epoch {where[0]}, step {where[1]}"
        if self.weights[0] == self.weights[1]:
            return "every bit is the same"
        after = f"after {steps} step{'s' * (steps > 1)}"
        if self._measured:
            return f"the weights differ {after}, and no value does"
        return f"the weights differ {after}; the steps return no loss and log no value"

    def _shown(self) -> Table:
        names = self._measured
        headings = ["epoch", "step", *(part for name in names for part in (name, "changed"))]
        rows = [
            [str(row["epoch"]), str(row["step"])]
            + [number(row[key]) for name in names for key in (name, f"{name} changed")]
            for row in self.table()
        ]
        if len(rows) > _MOST_ROWS:
            rows = [*rows[: _MOST_ROWS - 1], ["…"] * len(headings), rows[-1]]
        title = f"what if {self._said}, from {self.start}: {self._differs}"
        return Table(title, headings, rows, [True] * len(headings))

    def __repr__(self) -> str:
        return self._shown().text()

    def _repr_html_(self) -> str:
        return self._shown().html()


def _same(one: float, other: float) -> bool:
    return bool(one == other) or (one != one and other != other)


def _at(values: Floats, index: int) -> float:
    return float(values[index]) if index < len(values) else float("nan")
