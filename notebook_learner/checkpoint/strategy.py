"""Strategies that say which checkpoints of ended epochs are kept; they can be combined.

    KeepAny(KeepLast(2), KeepBest("Accuracy", "valid"))     the last two, and the best one
    KeepAny(KeepLast(1), KeepEvery(10))                     the last one, and every tenth
    KeepAll()                                               all of them

A strategy is any object with a method `keep`, so your own is a class of five lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

from ..errors import ConfigurationError
from .info import CheckpointInfo


def _count(n: Any) -> Iterator[str]:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        yield f"n={n!r}: give a whole number from 1"


def _refuse(strategy: object, mistakes: Sequence[str] | Iterator[str]) -> None:
    found = list(mistakes)
    if found:
        raise ConfigurationError(found, f"{type(strategy).__name__} cannot be made")


@runtime_checkable
class Strategy(Protocol):
    """Decides after each epoch which checkpoints are kept. The newest is always kept."""

    def keep(self, checkpoints: Sequence[CheckpointInfo], /) -> set[str]:
        """Return the labels of the checkpoints to keep.

        Args:
            checkpoints: the complete ones of ended epochs that still exist, in order of epoch.
        """


@dataclass(frozen=True)
class KeepLast:
    """Keep the last `n` checkpoints.

    >>> KeepLast(2).keep([CheckpointInfo(str(epoch), epoch, 0, 0) for epoch in (1, 2, 3)]) == {"2", "3"}
    True
    """

    n: int = 1

    def __post_init__(self) -> None:
        _refuse(self, _count(self.n))

    def keep(self, checkpoints: Sequence[CheckpointInfo], /) -> set[str]:
        return {info.label for info in checkpoints[-self.n :]}


@dataclass(frozen=True)
class KeepEvery:
    """Keep the checkpoint of every `n`th epoch.

    >>> KeepEvery(2).keep([CheckpointInfo(str(epoch), epoch, 0, 0) for epoch in (1, 2, 3)])
    {'2'}
    """

    n: int

    def __post_init__(self) -> None:
        _refuse(self, _count(self.n))

    def keep(self, checkpoints: Sequence[CheckpointInfo], /) -> set[str]:
        return {info.label for info in checkpoints if info.epoch % self.n == 0}


@dataclass(frozen=True)
class KeepBest:
    """Keep the `n` best checkpoints by the epoch value of a metric.

    NaN and an epoch without the metric are never best. Of equal values the earliest is best. As long as no
    epoch has a value, the last checkpoint is kept.

    Args:
        metric: its name.
        split: "train" or "valid".
        mode: whether "min" or "max" is best; None: as the metric says of itself, or "min" if it says
            nothing.
        n: how many checkpoints to keep.

    >>> epochs = [CheckpointInfo(str(n + 1), n + 1, 0, 0, metrics={"valid": {"Loss": loss}})
    ...           for n, loss in enumerate([0.5, 0.2, 0.3])]
    >>> KeepBest("Loss").keep(epochs), KeepBest("Loss", mode="max").keep(epochs)
    ({'2'}, {'1'})
    """

    metric: str = "Loss"
    split: str = "valid"
    mode: Literal["min", "max"] | None = None
    n: int = 1

    def __post_init__(self) -> None:
        mistakes = list(_count(self.n))
        if not isinstance(self.metric, str) or not self.metric:
            mistakes.append(f"metric={self.metric!r}: give the name of a metric, such as 'Loss'")
        if self.split not in ("train", "valid"):
            mistakes.append(f"split={self.split!r} is neither 'train' nor 'valid'")
        if self.mode not in (None, "min", "max"):
            mistakes.append(f"mode={self.mode!r} is not 'min', 'max' or None")
        _refuse(self, mistakes)

    def keep(self, checkpoints: Sequence[CheckpointInfo], /) -> set[str]:
        best = _ranked(checkpoints, self)[: self.n] or checkpoints[-1:]
        return {info.label for info in best}

    def resolved(self, higher_is_better: bool | None) -> KeepBest:
        """Return the same rule with a mode: its own, or the one that the metric says of itself.

        >>> KeepBest("Accuracy").resolved(True).mode
        'max'
        """
        if self.mode is not None:
            return self
        return replace(self, mode="max" if higher_is_better else "min")


@dataclass(frozen=True, init=False, repr=False)
class _Several:
    strategies: tuple[Strategy, ...]

    def __init__(self, *strategies: Strategy) -> None:
        object.__setattr__(self, "strategies", strategies)
        mistakes = [
            f"{strategy.__name__} is a class; give an instance, such as KeepLast(2)"
            if isinstance(strategy, type)
            else f"{strategy!r} is not a strategy; give one, such as KeepLast(2), KeepBest('Loss')"
            for strategy in strategies
            if isinstance(strategy, type) or not isinstance(strategy, Strategy)
        ]
        _refuse(self, mistakes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.strategies))})"


class KeepAny(_Several):
    """Keep each checkpoint that at least one of several strategies keeps.

    >>> KeepAny(KeepLast(1), KeepEvery(10))
    KeepAny(KeepLast(n=1), KeepEvery(n=10))
    """

    def __init__(self, *strategies: Strategy) -> None:
        super().__init__(*strategies)
        if not strategies:
            _refuse(self, ["it names no strategy, so it would keep nothing; KeepAll() keeps everything"])

    def keep(self, checkpoints: Sequence[CheckpointInfo], /) -> set[str]:
        """The labels of those to keep."""
        return set().union(*(strategy.keep(checkpoints) for strategy in self.strategies))


class KeepAll(_Several):
    """Keep each checkpoint that all of several strategies keep; without a strategy, keep everything.

    >>> KeepAll().keep([CheckpointInfo("1", 1, 0, 0)])
    {'1'}
    """

    def keep(self, checkpoints: Sequence[CheckpointInfo], /) -> set[str]:
        """The labels of those to keep."""
        kept = {info.label for info in checkpoints}
        return kept.intersection(*(strategy.keep(checkpoints) for strategy in self.strategies))


DEFAULT: Strategy = KeepAny(KeepLast(2), KeepBest("Loss", "valid"))
"""The default strategy."""


def best_of(checkpoints: Sequence[CheckpointInfo], rule: KeepBest) -> CheckpointInfo | None:
    """The best checkpoint by a rule; None if no epoch has a value."""
    return next(iter(_ranked(checkpoints, rule)), None)


def best_rule(strategy: Strategy) -> KeepBest | None:
    """The rule for "best" in a strategy: its first KeepBest.

    >>> best_rule(KeepAny(KeepLast(2), KeepBest("Accuracy"))).metric
    'Accuracy'
    """
    if isinstance(strategy, KeepBest):
        return strategy
    if isinstance(strategy, _Several):
        return next((rule for part in strategy.strategies if (rule := best_rule(part))), None)
    return None


def resolved(strategy: Strategy, higher_is_better: Callable[[str, str], bool | None]) -> Strategy:
    """Return a strategy whose KeepBest rules all have a mode.

    Args:
        strategy: it is not changed.
        higher_is_better: what the metric of a split says of itself, by split and name.

    >>> resolved(KeepAny(KeepBest("Accuracy")), lambda split, name: name == "Accuracy")
    KeepAny(KeepBest(metric='Accuracy', split='valid', mode='max', n=1))
    """
    if isinstance(strategy, KeepBest):
        return strategy.resolved(higher_is_better(strategy.split, strategy.metric))
    if isinstance(strategy, (KeepAny, KeepAll)):
        return type(strategy)(*(resolved(part, higher_is_better) for part in strategy.strategies))
    return strategy


def _ranked(checkpoints: Sequence[CheckpointInfo], rule: KeepBest) -> list[CheckpointInfo]:
    """The epochs with a value, the best first. Sorting is stable, so of equal ones the earliest is first."""
    sign = -1 if rule.mode == "max" else 1
    valued = [
        (sign * value, info)
        for info in checkpoints
        if (value := info.metrics.get(rule.split, {}).get(rule.metric)) is not None and not math.isnan(value)
    ]
    return [info for _, info in sorted(valued, key=lambda pair: pair[0])]
