"""When the next message about training steps goes to the pages."""

from __future__ import annotations

import time
from typing import Literal

INTERVAL = 0.3
"""Seconds between two messages with measured values, at least."""
LONGEST_SILENCE = 0.4
"""Seconds after which the pages hear at least where the run stands. Steps come in blocks of a tenth of a
second, so that is twice a second."""
IDLE_PER_COST, LONGEST_REST = 600, 2.0
"""After a message, nothing that was measured is sent for this many times as long as the message took, but
never longer than these seconds. A message of up to three milliseconds so takes a sixth of a percent of the
time. The kernel's sending thread takes as much again. The next steps are slower too, because the processor's
caches have other contents and a browser on the same machine draws: twice as much. At 250 times as long, three
messages a second took 1.3 percent of steps of 0.8 milliseconds."""


class MessagePace:
    """Says what may be sent now, from what the messages so far have cost.

    >>> pace = MessagePace()
    >>> pace.due()
    'values'
    >>> pace.was_sent(time.monotonic(), values=True)
    >>> pace.due()
    ''
    """

    def __init__(self) -> None:
        self.sent = 0.0
        """When the latest message was sent."""
        self.values_sent = 0.0
        """When the latest one with measured values was sent."""
        self._rest = 0.0

    def due(self) -> Literal["", "place", "values"]:
        """What may be sent now: all that was measured, where the run stands, or nothing."""
        now = time.monotonic()
        if now >= self.values_sent + max(INTERVAL, self._rest):  # also soon after the place: that was cheap
            return "values"
        return "place" if now >= self.sent + LONGEST_SILENCE else ""

    @property
    def wait(self) -> float:
        """Seconds until a message about an event may be sent."""
        return self.sent + INTERVAL - time.monotonic()

    def was_sent(self, began: float, values: bool) -> None:
        """Count a message which was begun then."""
        self.sent = time.monotonic()
        if values:
            self.values_sent = self.sent
            self._rest = min(IDLE_PER_COST * (self.sent - began), LONGEST_REST)
