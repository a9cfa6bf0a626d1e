"""What a learner asks of whoever knows its directory: it opens no file itself."""

from __future__ import annotations

from typing import Any, Protocol

from ..event import Notice


class Premises(Protocol):
    """The learner's place in the run's directory."""

    def look_in(self) -> None:
        """Before a checkpoint is read there."""

    def enter(self, learner: Any, /, *, goes_on: bool, saves: bool) -> list[Notice]:
        """Before something is written there; what a person should know."""
