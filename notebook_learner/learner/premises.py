"""What a learner asks of whoever knows its directory: it opens no file itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..event import Event, Notice


class Premises(Protocol):
    """The learner's place in the run's directory."""

    def look_in(self) -> None:
        """Before a checkpoint is read there."""

    def require_mine(self) -> None:
        """Raise where this learner may not go on: another process does, or the directory is another's."""

    def lend(self, why: str) -> None:
        """Another process goes on in the directory; `why` is what whoever wants to train here is told."""

    def take_back(self, learner: Any, stand: Callable[[], Sequence[Event]], /) -> None:
        """It does so no more: `stand` puts the learner where the run stands, and gives the events that bring
        what writes in the directory there."""

    def enter(self, learner: Any, /, *, goes_on: bool, saves: bool) -> list[Notice]:
        """Before something is written there; what a person should know."""
