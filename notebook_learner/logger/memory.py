"""Burn's in-memory logger: for tests, for sweeps, and for runs that must not write files."""

from __future__ import annotations

from typing import Any

from ..event.values import Event
from .history import History


class InMemoryMetricLogger:
    """Keeps every event, and a `History` of its own.

    >>> from notebook_learner.event import Notice, SplitEnded, SplitStarted
    >>> logger = InMemoryMetricLogger()
    >>> for event in (SplitStarted(1, "valid", 0, 1), SplitEnded(1, "valid", 0, {"Loss": 0.5})):
    ...     logger.handle(event)
    >>> logger.history.final("Loss", "valid"), len(logger.events)
    (0.5, 2)
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.history = History()

    def handle(self, event: Event, /) -> None:
        """Take one event."""
        self.events.append(event)
        self.history.handle(event)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it starts empty: there it gets everything that was measured, like any logger."""
        return InMemoryMetricLogger, ()

    def __repr__(self) -> str:
        return f"InMemoryMetricLogger({len(self.events)} events, {self.history!r})"
