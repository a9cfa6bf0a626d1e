"""What the other ranks had of their own, such as random numbers, when it ended with their processes."""

from __future__ import annotations

from typing import Any

from ..errors import StateError
from ..event import Notice
from ..state.state import State
from .rank_protocol import OWN

LOST = "processes of other devices ended, and with them what each had of its own, such as random numbers"


def lacks_own(state: State) -> bool:
    """Whether it was lost when this state was captured."""
    return bool(OWN in state.parts and not state.parts[OWN]["world"])


def find_lost(replica: Any) -> None:
    """If it is lost, take the steps again that lead to it, from the last state that holds it."""
    ranks, data = replica.ranks, replica.loop.passes.get(replica.loop.split)
    if ranks is None or data is None or not ranks.lost():
        return
    exact, timeline = False, replica.timeline
    kept, timeline.keyframes = timeline.keyframes, [x for x in timeline.keyframes if not lacks_own(x)]
    try:
        if not data.cursor.goes_back:
            raise StateError("the loader can be walked only once")
        report = replica.rewind(replica.loop.position)
        exact, told = report.exact, f"the steps that lead to it were taken again: {report}"
    except StateError as error:
        if not ranks.lost():
            raise
        ranks.begin_anew()
        timeline.keyframes, told = kept, f"they begin anew, so the run goes on to other values: {error}"
    replica.emit(Notice(f"{LOST}; {told}", "info" if exact else "warning"))
