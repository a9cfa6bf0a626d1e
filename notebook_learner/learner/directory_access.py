"""The protocol by which a learner uses its directory; the learner opens no file itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..event import Event, Notice


class Premises(Protocol):
    """The learner's place in the run's directory."""

    def look_in(self) -> None:
        """Reserve the directory before a checkpoint is read: no other run begins there until `look_away`."""

    def look_away(self) -> None:
        """The checkpoint was read."""

    def stands(self, status: str) -> None:
        """Note the status of the training, for others who want the directory."""

    def rest(self) -> None:
        """Training is over: others may go on in the directory, until this learner needs it again."""

    def wake(self) -> None:
        """Take the directory again, if it is still free, before an event is written."""

    def leave(self) -> None:
        """Leave the directory: the learner was garbage-collected."""

    @property
    def away(self) -> str:
        """Who else goes on with the run; empty if this learner has it."""

    def require_mine(self) -> None:
        """Raise if this learner may not go on: another process does, or the directory belongs to another
        run."""

    def lend(self, why: str) -> int:
        """Lend the directory to another process and return the descriptor that it needs. `why` is the error
        message for a verb that wants to train here meanwhile."""

    def lent(self) -> None:
        """The other process has the directory alone now."""

    def adopt(self, descriptor: int) -> None:
        """Take the directory with the descriptor that another process has lent."""

    def take_back(self, learner: Any, stand: Callable[[], Sequence[Event]], /) -> None:
        """Take the directory back from the other process. `stand` moves the learner to where the run stands,
        and returns the events that bring the writers of the directory there."""

    def enter(self, learner: Any, /, *, goes_on: bool, saves: bool) -> list[Notice]:
        """Take the directory before something is written there; return the notices for the user."""
