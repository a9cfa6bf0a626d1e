"""Who listens: anything with one `handle(event)`, and the fan-out that reaches them all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

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


@runtime_checkable
class Display(Sink, Protocol):
    """A sink that is more than a listener: a page on which people see the learner, and steer it."""

    def attach(self, learner: Any, /) -> None:
        """Show this learner."""

    def show(self) -> None:
        """A cell begins to train: appear below it."""

    def blocking(self) -> AbstractContextManager[Callable[[], None]]:
        """A cell trains, or waits, meanwhile, and keeps the process from hearing whoever steers. What it
        gives lets them be heard; events do so too."""
        ...

    def bundle(self) -> dict[str, Any]:
        """What a notebook shows where the learner is a cell's last line, by MIME type."""
        ...

    def freeze(self) -> None:
        """Leave only what needs no running process."""
