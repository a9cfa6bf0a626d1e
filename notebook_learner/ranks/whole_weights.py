"""Rank 0's side of weights that are in parts: it joins them, and finds out if that is impossible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..breakpoint import Breakpoint
from ..errors import NotebookLearnerError, StateError
from ..event import Notice
from ..run.replica import Replica
from .reduction import Reducer
from .shipping import on_host
from .state_transfer import fingerprint
from .weight_parts import DIVIDED, InParts, Parts


class WeightHolders(Protocol):
    """The ranks that hold the other parts."""

    replica: Replica
    world: int
    dead: Any
    _reducer: Reducer

    def _ask(self, verb: str, *arguments: Any) -> list[Any]:
        """The answer of each other rank."""


class Whole:
    """Joins all weights from rank 0's part and the parts of the other ranks."""

    def __init__(self, others: WeightHolders) -> None:
        self._others = others
        self.parts = Parts(others.replica, 0, others.world)
        self.lost = ""
        """Why the weights are lost; empty if they are not."""

    def require(self, breakpoints: Iterable[Breakpoint]) -> None:
        """Raise if a run cannot begin.

        Raises:
            StateError: the weights are lost, or a breakpoint needs whole weights.
        """
        if self.lost:
            raise StateError(self.lost)
        wrong = [each.name for each in breakpoints if each.on and each.condition.needs_whole]
        if wrong:
            raise StateError(
                f"{', '.join(wrong)} would see only rank 0's part of gradients and weights, which "
                'strategy("fsdp") leaves in parts; switch it off, or use strategy("ddp")'
            )

    def bring(self) -> None:
        """Bring all parts to rank 0.

        Raises:
            StateError: the parts do not fit together.
        """
        if self.parts.divided:
            self.parts.put(self._joined("hand over", self.parts.captured()))

    def complete(self, captured: dict[str, Any]) -> None:
        """Make a captured state whole, which has only this rank's part."""
        if self.lost:
            raise StateError(self.lost)
        if self.parts.divided:
            captured |= self._joined("pieces", {name: on_host(captured[name]) for name in DIVIDED})

    def _joined(self, verb: str, mine: Mapping[str, Any]) -> dict[str, Any]:
        reducer = self._others._reducer
        assert isinstance(reducer, InParts)
        if self._others.dead is not None:
            raise StateError("a rank died with its part")
        told: Sequence[Any] = self._others._ask(verb)
        if any(each[:2] != (reducer.ended, reducer.ended) for each in told) or reducer.begun != reducer.ended:
            raise StateError("some ranks have moved their weights, and others not yet")
        return self.parts.deal.join([mine, *(pieces for _, _, pieces in told)])

    def lose(self) -> None:
        """Go back to the last whole state, because some parts are lost."""
        self.parts.make_whole()
        replica = self._others.replica
        try:
            last = replica._keyframe_for(replica.loop.position)
        except NotebookLearnerError:
            self._has_none()
            return
        replica._fall_back(last)
        where = replica.loop.position
        replica.emit(Notice(f"not all parts of the weights are left; standing at {where}", "warning"))

    def _has_none(self) -> None:
        kept = [info.label for info in self._others.replica.saving.kept() if not info.damage]
        instead = f"restore({kept[-1]!r})" if kept else "restore() a state that was captured or saved before"
        self.lost = (
            "the weights were in parts on several devices, not all parts are left, and no keyframe held "
            f"them: this learner has no weights any more; {instead} puts weights back, and then restart() "
            "starts the other ranks"
        )

    # For the others ----------------------------------------------------------------------------------

    def cut(self, told: Mapping[str, Any], rank: int) -> dict[str, Any]:
        """Cut another rank's part from this rank's state."""
        return self.parts.deal.cut(told, rank, self._others.world)

    def print(self, rank: int) -> int:
        """The fingerprint that another rank should have, with its part of this rank's state."""
        return fingerprint(self._others.replica, lambda tensor, number: self.parts.cut(tensor, number, rank))
