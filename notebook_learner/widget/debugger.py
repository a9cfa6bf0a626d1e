"""A learner's breakpoints, its inspection and the earliest step it can go back to, for the panel.

They have no events: a cell or another page may switch a breakpoint at any time. So each message checks
whether any of them has changed since the last one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..renderer.numbers import count
from ..renderer.text import one_line
from ..steering.steered import Switch
from .shown_learner import InspectionReport, ShownLearner, Stop
from .wire import Json

NOTHING: Json = {"breakpoints": [], "inspection": [], "inspected": None, "reach": None}
"""The values for a panel without a learner, which shows a run's files."""


@dataclass
class Debugger:
    """Remembers what was sent, to find out when it has changed."""

    _changes: int = -1
    _hit: Stop | None = None
    _seen: InspectionReport | None = None
    _sections: list[Json] | None = None

    def changed(self, learner: ShownLearner) -> bool:
        """Whether the pages show something that is no longer true."""
        hit, seen = _here(learner)
        changes = learner.breakpoints.changes
        return changes != self._changes or hit is not self._hit or seen is not self._seen

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
        return {
            "breakpoints": [_switch(each, self._hit) for each in breakpoints],
            "inspection": self._sections,
            "inspected": None if seen is None else seen.rank,
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
