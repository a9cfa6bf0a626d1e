"""All ranks on the way through a set that nothing is trained on, as rank 0 leads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import StateError
from ..learner.data.cursor import Cursor
from ..learner.data.share import CannotBeCut
from ..learner.ranks import Alone, Task
from ..metric.rows import Rows
from .follower import buffers_of_rank_0
from .reduction import Severed

if TYPE_CHECKING:
    from .leader import Fleet


@contextmanager
def touring(fleet: Fleet, task: Task, cursors: Callable[..., Cursor]) -> Iterator[Touring]:
    """Inside, the others go along. Afterwards every rank stands as it did, to the bit: each puts itself back,
    and one that could not is told later what was its own."""
    packed, cursor, fed = fleet.source.packed_task(task, cursors)
    stale, told = fleet._stale, fleet._own
    fleet.enter()
    own: list[Any] = []
    try:
        own = fleet._ask("own")
        yield Touring(fleet, task.what, packed, cursor, fed)
    except Severed as error:
        raise fleet.fault(error) from error
    finally:
        fleet.leave()
        fleet._rows = []
        if stale:  # they were to be told where this rank stands, and still are
            fleet._stale, fleet._own = True, told
        elif fleet._stale and own:
            fleet._own = [{"window": fleet.replica.parts["window"].capture()}, *own]


class Touring:
    """Ranks 1 and up, each with its part of every batch."""

    def __init__(self, fleet: Fleet, what: str, packed: bytes, cursor: Cursor, fed: bool) -> None:
        self.cursor = cursor
        self.fetch: Callable[[], Any] = fleet._feeding(cursor) if fed else cursor.fetch_share
        self._fleet, self._what = fleet, what
        self._packed, self._fed = packed, fed

    def open(self, epoch: int) -> None:
        """They stand before the first batch, with rank 0's buffers."""
        fleet = self._fleet
        fleet._tell("tour", self._packed, epoch, None if self._fed else self.cursor.start_on_host())
        buffers_of_rank_0(fleet.replica.loop, fleet._reducer)
        fleet._answers()

    def begin(self, count: int) -> None:
        """They take so many batches."""
        self._fleet._tell("batches", count)

    def gather(self, count: int) -> Sequence[Any]:
        """What they found in them."""
        self._fleet._await()
        found = self._fleet._answers()
        taken = [each.steps if isinstance(each, Rows) else len(each) for each in found]
        if wrong := [each for each in taken if each != count]:
            raise StateError(
                f"{self._what}: rank 0 took {count} batches, another one {wrong[0]}: their data differ"
            )
        return found

    def fault(self, error: BaseException) -> BaseException:
        """Nobody waits for this rank any more; gives what it all began with. Where all stand at a boundary
        nothing is wrong with them."""
        fleet = self._fleet
        cause = fleet.fault(error) if fleet._waiting or isinstance(error, Severed) else error
        if isinstance(cause, CannotBeCut) and self.cursor.walks_again:
            return Alone(str(cause))
        return cause
