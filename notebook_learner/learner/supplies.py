"""What a learner is given to work with: data, and the steps that work on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from ..data.cursor import Cursor
from ..evaluation.prediction import Forward
from ..event import Split
from ..metric.base import AnyMetric
from ..state.state import State
from ..step.step import StepFunction, ValidationStep

Metrics = Iterable[AnyMetric] | None


@runtime_checkable
class OfOneLearner(Protocol):
    """A step that knows its learner, as a cell's does."""

    def of(self, learner: Any, /) -> StepFunction:
        """The same step for another one."""


class Supplies(Protocol):
    """What a learner is given to work with: data, and the steps that work on it."""

    def use(self, learner: Any, split: Split, given: Any, /) -> None:
        """Train or validate on this from here on."""

    def use_step(self, split: Split, function: StepFunction, /) -> None:
        """Train or validate with this from here on."""

    def renew(self) -> None:
        """Look up the model's steps again, after its code has changed."""

    def step_of(self, split: Split, /) -> StepFunction | None:
        """The step of this split that the builder or `use_step` was given."""

    def fork(self, learner: Any, state: State, directory: str | os.PathLike[str], /) -> Any:
        """Make another learner like this one, in this state."""

    def given(self) -> Mapping[Split, Any]:
        """The data of each split, as it was given."""

    @property
    def origin(self) -> Any:
        """What the learner was built from: settings, model, optimizer, scheduler."""

    @property
    def loss(self) -> Callable[..., Any] | None:
        """The loss function of `.loss(...)`, if there is one."""

    def require(self) -> None:
        """Raise if something is missing before training can begin."""

    def cursor_for(self, given: Any, what: str, /, way: Any = ...) -> Cursor:
        """A way through a loader or dataset, for one rank or several."""

    def validation_step(self, what: str, /) -> ValidationStep:
        """The step that measures."""

    def prediction_step(self, forward: Forward | None, /) -> ValidationStep:
        """A step that gives the model's output."""

    def metrics_for(self, given: Metrics, what: str, /) -> list[AnyMetric]:
        """The given metrics, if there are any; by default those of the validation."""
