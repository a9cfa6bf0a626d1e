"""What a panel needs of the learner it shows, beside the verbs of its buttons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..event import Evaluated, Record, Sink
from ..renderer.history_source import StepSource
from ..steering.steered import Inspected, Standing, Steered
from .board import Rank, Saved


class Stop(Protocol):
    """The breakpoint that stopped the learner where it stands."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...


class InspectionReport(Inspected, Protocol):
    """What a step looks like, part by part."""

    @property
    def rank(self) -> int: ...
    def sections(self) -> Sequence[Mapping[str, object]]: ...


class MeasuredSteps(StepSource, Protocol):
    """What was measured so far."""

    def snapshot(self) -> Record: ...
    @property
    def evaluated(self) -> Mapping[str, Evaluated]: ...


class ShownLearner(Steered, Protocol):
    """The facts on a panel."""

    @property
    def history(self) -> MeasuredSteps: ...
    def summary(self) -> Any: ...

    @property
    def hit(self) -> Stop | None: ...
    @property
    def _last_seen(self) -> InspectionReport | None:
        """What `inspect()` last gave, while the learner stands where it was asked."""
        ...

    @property
    def _reach(self) -> Standing:
        """The earliest place that it can be rewound to."""
        ...

    @property
    def _lacks(self) -> str:
        """What it needs before it can train; nothing where it can."""
        ...

    @property
    def _elsewhere(self) -> str:
        """Which process or learner goes on with its run; nothing where it has that itself."""
        ...

    def _ranks(self) -> Sequence[Rank]:
        """The processes that train, seen without waiting for them; empty where there is one device."""
        ...

    def _saved(self) -> tuple[Sequence[Saved], str | None]:
        """The checkpoints on the disk right now, and the label of the best."""
        ...

    def _tell(self, newcomer: Sink) -> None:
        """Send a new display everything that happened before."""
        ...
