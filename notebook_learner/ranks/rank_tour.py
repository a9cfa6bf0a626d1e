"""The other ranks on their way through a set, from rank 0's side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..data.cursor import Cursor
from ..data.rank_share import CannotBeCut
from ..errors import StateError
from ..metric.rows import Rows
from ..run.rank_protocol import Alone
from ..run.replica import Replica
from .rank_processes import Member
from .rank_steps import buffers_of_rank_0
from .reduction import Reducer, Severed


class Walkers(Protocol):
    """The other ranks, as a walk through a set needs them."""

    replica: Replica
    _reducer: Reducer
    _waiting: list[Member]

    def _tell(self, verb: str, *arguments: Any) -> None: ...

    def _await(self) -> None: ...

    def _answers(self) -> list[Any]: ...

    def _feeding(self, cursor: Cursor) -> Callable[[], Any]: ...

    def fault(self, error: BaseException) -> BaseException: ...


class RankTour:
    """Ranks 1 and up on a walk through a set, each with its part of every batch."""

    def __init__(self, fleet: Walkers, what: str, packed: bytes, cursor: Cursor, fed: bool) -> None:
        self.cursor = cursor
        self.fetch: Callable[[], Any] = fleet._feeding(cursor) if fed else cursor.fetch_share
        self._fleet, self._what = fleet, what
        self._packed, self._fed = packed, fed

    def open(self, epoch: int) -> None:
        """Put the other ranks before the first batch, with rank 0's buffers."""
        fleet = self._fleet
        fleet._tell("tour", self._packed, epoch, None if self._fed else self.cursor.start_on_host())
        buffers_of_rank_0(fleet.replica.loop, fleet._reducer)
        fleet._answers()

    def begin(self, count: int) -> None:
        """Have the other ranks take so many batches."""
        self._fleet._tell("batches", count)

    def gather(self, count: int) -> Sequence[Any]:
        """The other ranks' results for these batches."""
        self._fleet._await()
        found = self._fleet._answers()
        taken = [each.steps if isinstance(each, Rows) else len(each) for each in found]
        if wrong := [each for each in taken if each != count]:
            raise StateError(
                f"{self._what}: rank 0 took {count} batches, another one {wrong[0]}: their data differ"
            )
        return found

    def fault(self, error: BaseException) -> BaseException:
        """End the other ranks' wait for this rank; return the first cause. If all ranks are at a boundary,
        they are sound."""
        fleet = self._fleet
        cause = fleet.fault(error) if fleet._waiting or isinstance(error, Severed) else error
        if isinstance(cause, CannotBeCut) and self.cursor.walks_again:
            return Alone(str(cause))
        return cause
