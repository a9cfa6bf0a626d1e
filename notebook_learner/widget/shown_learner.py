"""What a panel needs of its learner, apart from the commands of its buttons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..event import Evaluated, Record, Sink
from ..renderer.history_source import StepSource
from ..steering.steered import Inspected, Standing, Steered
from .board import Rank, Saved


class Stop(Protocol):
    """The breakpoint that stopped the learner at its present step."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...


class InspectionReport(Inspected, Protocol):
    """The report of an inspected step, in sections."""

    @property
    def rank(self) -> int: ...
    def sections(self) -> Sequence[Mapping[str, object]]: ...


class MeasuredSteps(StepSource, Protocol):
    """What was measured so far."""

    def snapshot(self) -> Record: ...
    @property
    def evaluated(self) -> Mapping[str, Evaluated]: ...


class ShownLearner(Steered, Protocol):
    """A learner with the facts that a panel shows."""

    @property
    def history(self) -> MeasuredSteps: ...
    def summary(self) -> Any: ...

    @property
    def hit(self) -> Stop | None: ...
    @property
    def _last_seen(self) -> InspectionReport | None:
        """The last result of `inspect()`, while the learner is still at the inspected step."""
        ...

    @property
    def _reach(self) -> Standing:
        """The earliest position that the learner can be rewound to."""
        ...

    @property
    def _lacks(self) -> str:
        """What the learner needs before it can train; "" if it can train."""
        ...

    @property
    def _elsewhere(self) -> str:
        """Which other process or learner continues its run; "" if it has the run itself."""
        ...

    def _ranks(self) -> Sequence[Rank]:
        """The training processes, without waiting for them; empty for a single device."""
        ...

    def _saved(self) -> tuple[Sequence[Saved], str | None]:
        """The checkpoints now on the disk, and the label of the best one."""
        ...

    def _tell(self, newcomer: Sink) -> None:
        """Send a new display everything that happened before it was opened."""
        ...
