"""What a learner asks of whoever knows its directory: it opens no file itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..event import Event, Notice


class Premises(Protocol):
    """The learner's place in the run's directory."""

    def look_in(self) -> None:
        """Before a checkpoint is read there: nobody else begins there until `look_away`."""

    def look_away(self) -> None:
        """It was read."""

    def stands(self, status: str) -> None:
        """How training stands, for others who want the directory."""

    def rest(self) -> None:
        """Training is over: others may go on in the directory, until something more is wanted here."""

    def wake(self) -> None:
        """Something is about to be told: take the directory again for it, where it is still free."""

    def leave(self) -> None:
        """Nobody holds the learner any more."""

    @property
    def away(self) -> str:
        """Who else goes on with the run; nothing where this learner has it."""

    def require_mine(self) -> None:
        """Raise where this learner may not go on: another process does, or the directory is another's."""

    def lend(self, why: str) -> int:
        """Another process goes on in the directory; `why` is what whoever wants to train here is told. Gives
        the descriptor that it needs for that."""

    def lent(self) -> None:
        """It has the directory alone now."""

    def adopt(self, descriptor: int) -> None:
        """Have the directory with the descriptor that another process has lent."""

    def take_back(self, learner: Any, stand: Callable[[], Sequence[Event]], /) -> None:
        """It does so no more: `stand` puts the learner where the run stands, and gives the events that bring
        what writes in the directory there."""

    def enter(self, learner: Any, /, *, goes_on: bool, saves: bool) -> list[Notice]:
        """Before something is written there; what a person should know."""
