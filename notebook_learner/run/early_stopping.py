"""Stop when a metric has not improved for a number of epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ..event import Split
from ..event.values import Finals, Source, epoch_value


class EarlyStopping:
    """Watches the epoch values of one metric.

    An epoch improves when it beats the best by more than `min_delta`; NaN never does. After
    `patience` epochs in a row without improvement (the first `warmup` epochs do not count),
    training is finished.

    >>> watch = EarlyStopping("Loss", patience=2)
    >>> [watch.observe(value) for value in (0.9, 0.5, 0.6, 0.7)]
    [False, False, False, True]
    """

    def __init__(
        self,
        metric: str,
        *,
        patience: int,
        split: Split = "valid",
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
        warmup: int = 0,
        returns: bool = False,
    ) -> None:
        self.metric = metric
        self.split = split
        self.patience = patience
        self.mode = mode
        self.min_delta = min_delta
        self.warmup = warmup
        self.returns = returns
        """Whether training goes back to the best epoch when it ends by this rule."""
        self.best: float | None = None
        self.best_epoch = 0
        self.seen = 0
        self.waited = 0
        self.stopped = False

    def observe(self, value: float) -> bool:
        """Take an epoch's value; True when training should end."""
        self.seen += 1
        if self._improves(value):
            self.best = value
            self.waited = 0
        elif self.seen > self.warmup:
            self.waited += 1
        self.stopped = self.waited >= self.patience
        return self.stopped

    @property
    def goes_by(self) -> Source:
        """The split and the metric that it watches."""
        return self.split, self.metric

    def after_epoch(self, epoch: int, finals: Finals) -> bool:
        """Answer the loop's question at the end of an epoch."""
        best = self.best
        ends = self.observe(epoch_value(str(self), self.goes_by, finals))
        if self.best != best:
            self.best_epoch = epoch
        return ends

    def again(self) -> None:
        """The user continues the training: wait for the whole patience again."""
        self.stopped = False
        self.waited = 0

    def _improves(self, value: float) -> bool:
        if math.isnan(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta

    def __str__(self) -> str:
        return f"early_stopping({self.metric!r})"

    def capture(self) -> dict[str, Any]:
        """The memory of past epochs, as a part of the state."""
        names = ("best", "best_epoch", "seen", "waited", "stopped")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.best = state["best"]
        self.best_epoch = state.get("best_epoch", 0)  # an earlier version kept none
        self.seen = state["seen"]
        self.waited = state["waited"]
        self.stopped = state["stopped"]


def why_ended(policies: Iterable[object], finals: Finals) -> str:
    """Why training ended before its last epoch, in a few words."""
    for rule in policies:
        if isinstance(rule, EarlyStopping) and math.isnan(finals.get(rule.goes_by, 0.0)):
            return (
                f"early stopping, as the {rule.split} {rule.metric} is nan; break_on(NonFinite()) on the "
                "builder stops at the step where that begins"
            )
    return "early stopping"
