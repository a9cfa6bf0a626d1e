"""What a panel needs of its learner, apart from the commands of its buttons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..event import Evaluated, Record, Sink
from ..renderer.history_source import StepSource
from ..renderer.text import count, one_line
from ..steering.steered import Inspected, Standing, Steered, Switch
from .board import Rank, Saved
from .branch_lines import LeftBranches
from .wire import Json


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


class VerifyReport(Protocol):
    """What `verify()` said."""

    def _asdict(self) -> Mapping[str, object]: ...


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
    def _verified(self) -> VerifyReport | None:
        """What `verify()` said last."""
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

    def _dials(self) -> Sequence[Mapping[str, str]]:
        """The rate, momentum and weight decay of each group of parameters, by their names, as text."""
        ...

    def _device_memory(self) -> int | None:
        """The bytes that the training holds on its device; None on a CPU."""
        ...

    def _saved(self) -> tuple[Sequence[Saved], str | None]:
        """The checkpoints now on the disk, and the label of the best one."""
        ...

    @property
    def _is_compact(self) -> bool:
        """Whether the panel is a strip of 120 pixels."""
        ...

    @property
    def _branch_changes(self) -> int:
        """Grows when the run leaves a branch, goes to one, or takes one again; and with other runs."""
        ...

    def _left(self) -> LeftBranches:
        """The branches that the run has left, and the other runs to draw, without waiting for it."""
        ...

    def _lay_over(self, name: str, shown: bool) -> str:
        """Lay over a run that the page was offered, or take it away; returns a line that says so."""
        ...

    def _tell(self, newcomer: Sink) -> None:
        """Send a new display everything that happened before it was opened."""
        ...


NOTHING: Json = {"breakpoints": [], "inspection": [], "inspected": None, "verified": None, "reach": None}
"""The values for a panel without a learner, which shows a run's files."""


@dataclass
class Debugger:
    """Remembers what was sent, to find out when it has changed."""

    _changes: int = -1
    _hit: Stop | None = None
    _seen: InspectionReport | None = None
    _sections: list[Json] | None = None
    _verified: VerifyReport | None = None

    def changed(self, learner: ShownLearner) -> bool:
        """Whether the pages show something that is no longer true."""
        hit, seen = _here(learner)
        changes = learner.breakpoints.changes
        same = hit is self._hit and seen is self._seen and learner._verified is self._verified
        return changes != self._changes or not same

    def told(self, learner: ShownLearner, trained: int) -> Json:
        """Return all of it, and count it as sent.

        Args:
            learner: the learner that the panel shows.
            trained: training steps of the run up to its present position.
        """
        breakpoints = learner.breakpoints
        self._changes = breakpoints.changes
        self._hit, seen = _here(learner)
        if seen is not self._seen or self._sections is None:
            self._seen, self._sections = seen, _sections(seen)
        verified = self._verified = learner._verified
        return {
            "breakpoints": [_switch(each, self._hit) for each in breakpoints],
            "inspection": self._sections,
            "inspected": None if seen is None else seen.rank,
            "verified": None if verified is None else verified._asdict(),
            "reach": {"from": min(learner._reach.iteration, trained), "to": trained},
        }


def _here(learner: ShownLearner) -> tuple[Stop | None, InspectionReport | None]:
    """The breakpoint hit and the inspection at the present step: neither holds when the learner runs on."""
    return (None, None) if learner.status == "running" else (learner.hit, learner._last_seen)


def _switch(each: Switch, hit: Stop | None) -> Json:
    here = hit is not None and hit.name == each.name
    parts = [one_line(hit.text)] if here and hit is not None and hit.text else []
    if each.hits:
        parts.append(f"hit {'once' if each.hits == 1 else f'{count(each.hits)} times'}")
    if each.once:
        parts.append("once only")
    return {"name": each.name, "text": "; ".join(parts), "on": each.on, "hit": here}


def _sections(seen: InspectionReport | None) -> list[Json]:
    return [] if seen is None else [dict(section) for section in seen.sections()]
