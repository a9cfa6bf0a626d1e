"""The requests to the loop: from any thread, and answered only at step boundaries."""

from __future__ import annotations

import threading
from typing import Literal

Request = Literal["pause", "stop"]


class Control:
    """Requests to the loop.

    `wanted` is a plain attribute that the loop reads once per step (30 ns, no lock). All other work happens
    at a boundary and may take a lock.

    >>> control = Control()
    >>> control.request("pause")
    >>> control.take(), control.take()
    ('pause', None)
    """

    def __init__(self) -> None:
        self.wanted = False
        self.interruptible = False
        """True while user code runs and a second interrupt may raise; False between steps."""
        self.changed = threading.Condition()
        """Guards requests and holds, here and in the driver, and announces their changes."""
        self._request: Request | None = None
        self._interrupted = False
        self._holds = 0
        self._held = False
        self._waits = False

    # From any thread -----------------------------------------------------------------------------

    def request(self, what: Request) -> None:
        """Ask for a pause or a stop at the next boundary; a stop replaces a pause."""
        with self.changed:
            if self._request != "stop":
                self._request = what
            self._refresh()

    def hold(self) -> None:
        """Ask the loop to wait at its next boundary until each hold has had its `release()`."""
        with self.changed:
            self._holds += 1
            self._refresh()

    def release(self) -> None:
        """End one hold."""
        with self.changed:
            self._holds -= 1
            self._held = self._held and self._holds > 0
            self._refresh()

    @property
    def leaving(self) -> bool:
        """Whether the loop was released and will go on now: the next hold is for its next boundary."""
        return self._waits and not self._holds

    @property
    def held(self) -> bool:
        """Whether the loop stands at a boundary, and stays there until the holds are released."""
        return self._held

    # From the signal handler: it may run while its own thread holds the lock, so it takes no lock -----

    def interrupt(self) -> bool:
        """Note an interrupt; True if it is the second one, which should break off user code."""
        again = self._interrupted and self.interruptible
        self._interrupted = True
        self.wanted = True
        return again

    # From the loop, at a boundary -----------------------------------------------------------------

    def take(self) -> Request | None:
        """Wait until all holds are released, then return and forget the pending request, if there is one."""
        if not self.wanted:
            return None
        with self.changed:
            self._wait_released()
            interrupted = self._interrupted
            request = self._request or ("pause" if interrupted else None)
            self._request = None
            if interrupted:  # one that arrives right now is kept for the next boundary
                self._interrupted = False
            self._refresh()
            return request

    def take_at_once(self) -> Request | None:
        """Like `take`, but ignores holds: during a replay the learner has no state that a user may see."""
        if not self.wanted:
            return None
        with self.changed:
            interrupted = self._interrupted
            request = self._request or ("pause" if interrupted else None)
            self._request = None
            if interrupted:
                self._interrupted = False
            self._refresh()
            return request

    def take_interrupt(self) -> Request | None:
        """Like `take`, but only for interrupts: a replay passes boundaries at which the record does not
        match, and no user may look there."""
        return "pause" if self._interrupted and self.forget_interrupts() else None

    # From the driver, when nothing runs -----------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt waits for a boundary."""
        return self._interrupted

    def forget_interrupts(self) -> bool:
        """Forget interrupts, so that the next run gets none; True if one came too late for any boundary."""
        with self.changed:
            late, self._interrupted = self._interrupted, False
            self._refresh()
            return late

    def forget_request(self) -> None:
        """A run begins: forget requests to an earlier run that ended without answering them."""
        with self.changed:
            self._request = None
            self._refresh()

    def clear(self) -> None:
        """Forget requests and interrupts; holds stay."""
        with self.changed:
            self._request = None
            self._interrupted = False
            self._refresh()

    def _wait_released(self) -> None:
        self._waits = True
        while self._holds and not self._interrupted:
            self._held = True
            self.changed.notify_all()
            # The wait is bounded, so that a signal handler's `interrupt()`, which cannot notify, is seen.
            self.changed.wait(0.1)
        self._waits = False
        # An interrupt ends the run here, at the same boundary. A thread that holds it may go on looking.
        self._held = self._holds > 0

    def _refresh(self) -> None:
        self.wanted = bool(self._request or self._holds)
        if self._interrupted:  # read after the write: a signal may come between the two
            self.wanted = True
        self.changed.notify_all()
