"""The interface of a listener: any object with a method `handle(event)`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from .values import Event


@runtime_checkable
class Sink(Protocol):
    """A listener. The training thread calls it, so it must return quickly.

    A sink handles the events it knows and ignores all others, so a new kind of event breaks no sink:

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


@runtime_checkable
class Display(Sink, Protocol):
    """A sink that also shows a page, on which users see and control the learner."""

    def attach(self, learner: Any, /) -> None:
        """Show this learner."""

    def show(self) -> None:
        """Appear below the cell that starts to train."""

    def blocking(self) -> AbstractContextManager[Callable[[], None]]:
        """Wrap the time in which a cell trains or waits, so the process receives no messages from the page.
        Calling the value it yields lets these messages in; every event does so too."""
        ...

    def bundle(self) -> dict[str, Any]:
        """The MIME bundle that a notebook shows if the learner is the last line of a cell."""
        ...

    def freeze(self) -> None:
        """Keep only what works without a running process."""
