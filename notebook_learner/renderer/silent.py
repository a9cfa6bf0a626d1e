"""The renderer that shows nothing."""

from __future__ import annotations

from ..event import Event


class SilentRenderer:
    """Shows nothing: for hyper-parameter searches and tests. Logs and history are kept as always.

    >>> from notebook_learner.event import Notice
    >>> SilentRenderer().handle(Notice("nobody will read this"))
    """

    def handle(self, event: Event, /) -> None:
        """Let the event pass."""

    def __repr__(self) -> str:
        return "SilentRenderer()"
