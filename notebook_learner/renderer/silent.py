"""The renderer that shows nothing."""

from __future__ import annotations

from ..event import Event


class SilentRenderer:
    """Shows nothing: for hyper-parameter searches and tests. Logs and history are kept as usual.

    >>> from notebook_learner.event import Notice
    >>> SilentRenderer().handle(Notice("this is not shown"))
    """

    def handle(self, event: Event, /) -> None:
        """Ignore the event."""

    def __repr__(self) -> str:
        return "SilentRenderer()"
