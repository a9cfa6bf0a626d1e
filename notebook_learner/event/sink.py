"""Who listens: anything with one `handle(event)`, and the fan-out that reaches them all."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .values import Event


@runtime_checkable
class Sink(Protocol):
    """A listener. It is called on the training thread, so it returns quickly.

    A sink takes what it knows and ignores the rest, so that new kinds of events break nobody:

    >>> from notebook_learner.event import SplitEnded
    >>> class Beep:
    ...     def handle(self, event):
    ...         if isinstance(event, SplitEnded):
    ...             print("beep", event.finals["Loss"])
    >>> Beep().handle(SplitEnded(1, "train", 10, {"Loss": 0.5}))
    beep 0.5
    """

    def handle(self, event: Event, /) -> None:
        """Take one event."""
