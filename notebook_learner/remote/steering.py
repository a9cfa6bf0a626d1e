"""What control from elsewhere needs of a learner: a learner is one, and knows nothing of sockets."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..event import Record, Status


class Place(Protocol):
    """Where training stands; printed it is a line for people."""

    @property
    def epoch(self) -> int: ...
    @property
    def split(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def iteration(self) -> int: ...
    @property
    def total(self) -> int | None: ...


class Measured(Protocol):
    """What was measured so far."""

    def snapshot(self) -> Record:
        """All of it, as it is now."""
        ...


class Notes(Protocol):
    """Where a line about the run is written."""

    def note(self, text: str) -> None:
        """Write a line into the run's application log."""
        ...


class Steering(Protocol):
    """The verbs and facts behind the commands."""

    @property
    def status(self) -> Status: ...
    @property
    def position(self) -> Place: ...
    @property
    def history(self) -> Measured: ...
    @property
    def optimizer(self) -> Any: ...
    @property
    def num_epochs(self) -> int: ...
    @num_epochs.setter
    def num_epochs(self, number: int) -> None: ...

    scheduler: Any
    """None or a number where the learning rate stays as it is."""

    def start(self) -> None: ...
    def pause(self) -> None: ...
    def stop(self) -> None: ...
    def step(self, n: int = 1) -> Any: ...
    def save(self) -> str: ...

    def paused(self) -> AbstractContextManager[Any]:
        """Stand at a step boundary meanwhile."""
        ...

    @property
    def tools(self) -> Notes: ...
