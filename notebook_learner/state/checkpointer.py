"""The interface for checkpoints: an object that keeps the state at the end of an epoch, and returns it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..errors import StateError
from .state import State

Which = int | str
"""An epoch, "latest", "best", or the label of a place inside an epoch, such as "3-117"."""


@runtime_checkable
class Checkpointer(Protocol):
    """Keeps states for later. Given to `LearnerBuilder.with_checkpointer`."""

    def save(self, epoch: int, state: State, /) -> None:
        """Keep the state at the end of epoch `epoch`."""

    def load(self, which: Which, /) -> State:
        """Return a kept state; an error lists the ones there are."""


class MemoryCheckpointer:
    """Keeps every epoch's state in memory, without a file: for a session or a test.

    >>> MemoryCheckpointer().load(3)
    Traceback (most recent call last):
        ...
    notebook_learner.errors.StateError: there is no checkpoint 3; kept are: none
    """

    def __init__(self) -> None:
        self.states: dict[int, State] = {}

    def save(self, epoch: int, state: State, /) -> None:
        self.states[epoch] = state

    def load(self, which: Which, /) -> State:
        if which == "latest" and self.states:
            return self.states[max(self.states)]
        if isinstance(which, int) and which in self.states:
            return self.states[which]
        raise StateError(
            f"there is no checkpoint {which}; kept are: {', '.join(map(str, sorted(self.states))) or 'none'}"
        )
