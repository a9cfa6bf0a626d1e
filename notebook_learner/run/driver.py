"""Decides which thread runs the loop: the calling thread or a background thread, and only one at a time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from types import FrameType, TracebackType
from typing import Any, TypeVar

from ..errors import BusyError, names_descriptors
from ..store import process_end
from . import interrupts as background
from .control import Control, Request
from .interrupts import Breaking

T = TypeVar("T")


class Driver:
    """Runs work on the loop, one piece at a time.

    One lock, the control's, guards which thread drives, which threads hold the loop, and the requests to
    it. So each decision sees the others in a consistent state.
    """

    def __init__(self, control: Control) -> None:
        self.control = control
        self.saves_its_end = False
        """Whether a pause is saved on disk. If so, SIGTERM pauses the training before the process ends."""
        self.process: int | None = None
        """The process that the learner belongs to; None if a child may go on with it."""
        self._over = ""
        """Why the learner accepts no more work."""
        self._changed = control.changed
        self._thread: threading.Thread | None = None
        self._turn = _Turn(ended=True)
        self._holders: list[threading.Thread] = []
        self._claimants = 0
        """Threads that want to drive and wait until the loop is released."""

    @property
    def own(self) -> bool:
        """Whether the learner belongs to this process. In a forked child it may only be read."""
        return self.process in (None, os.getpid())

    def require_own(self) -> None:
        """Raise in a forked child. No thread drives there, so a request would wait for ever."""
        __tracebackhide__ = True
        if not self.own:
            raise BusyError(
                f"this learner belongs to process {self.process}, of which this one ({os.getpid()}) is a "
                "forked child: call its verbs there, or `notebook-learner ctl` from here; what a child needs "
                "of it (model.state_dict(), a position) is taken before the fork"
            )

    @property
    def busy(self) -> bool:
        """Whether a thread drives right now."""
        return self._thread is not None

    @property
    def inside(self) -> bool:
        """Whether this thread drives: a metric or a step calls."""
        return self._thread is threading.current_thread()

    @property
    def still(self) -> bool:
        """True while no thread runs steps, or the loop is held at a step boundary."""
        return self._thread is None or self.control.held

    def belongs_to_this_thread(self) -> None:
        """This thread drives for good, as on each rank of a training on several devices: rank 0 decides."""
        self._thread = threading.current_thread()

    def belongs_to_nobody(self) -> None:
        """End `belongs_to_this_thread`. The caller that ends it waits for no other thread."""
        self._thread = None

    def ends(self, why: str) -> bool:
        """Accept no more work, and answer later requests with `why`; False if a thread drives or holds the
        loop right now."""
        with self._changed:
            if self._thread is not None or self._holders or self._claimants:
                return False
            self._over = why
            return True

    # Drive -------------------------------------------------------------------------------------------

    @names_descriptors
    def here(self, work: Callable[[], T]) -> tuple[T, bool]:
        """Do the work in this thread; interrupts ask for a pause.

        Returns:
            The work's value, and whether an interrupt came too late for it.
        """
        __tracebackhide__ = True
        self.require_own()
        # Around the claim, so that no interrupt comes between the two.
        with _Interrupts(self.control) as interrupts, self._awaited():
            self._claim()
            try:
                value = work()
            finally:
                self._let_go()
        return value, interrupts.late

    def behind(
        self,
        prepare: Callable[[], None],
        work: Callable[[], Any],
        fail: Callable[[BaseException], None] = lambda error: None,
    ) -> bool:
        """Prepare in this thread, then do the work in a background thread; `wait()` returns its result.

        Args:
            prepare: an exception of it is raised here.
            work: an exception of it is kept for `wait()`.
            fail: called with the error if the preparation succeeded but no thread could be started.

        Returns:
            Whether an interrupt came meanwhile.
        """
        __tracebackhide__ = True
        self.require_own()
        with _Interrupts(self.control) as interrupts:
            self._claim()
            try:
                prepare()
                self._hand_over(work, fail)
            except BaseException:
                self._let_go()
                raise
        if self._thread is not None:
            background.join_the_cell()
        process_end.remind()  # the interrupts so far were forgotten; one may have been a signal
        # Also an early one: the background thread may have seen it first, and paused.
        return interrupts.seen

    def wait(self, meanwhile: Callable[[], None] = lambda: None) -> Callable[[], Any]:
        """Wait until the present work ends; then return a function that gives the value of the last
        background work, or raises its exception. It gives None if the work was done in the user's own thread.

        Args:
            meanwhile: called ten times a second.
        """
        self.require_own()
        turn = self._turn
        if self.inside:
            raise BusyError(
                "wait() was called by the training (a step or a metric), so it would wait for its own end"
            )
        if self._holding and not turn.ended:
            raise BusyError(
                "wait() was called inside `with learner.paused()`, which keeps the training from ending; "
                "leave that block first"
            )
        while not turn.ended:
            with self._changed:
                self._changed.wait_for(lambda: turn.ended, 0.1)
            meanwhile()  # without the lock, which the training needs at its boundaries
        process_end.rest()
        return turn.result

    # Ask ---------------------------------------------------------------------------------------------

    def ask(self, what: Request) -> bool:
        """Send a request to the thread that drives, and wait until it stops; False if no thread drives.

        The driving thread itself, and a thread that holds the loop, cannot wait: their request is answered
        after they are done.
        """
        self.require_own()
        with self._changed:
            self._require_not_over()
            if self._thread is None:
                return False
            self.control.request(what)
            if not self.inside and not self._holding:
                self._wait_turn(self._turn)
            return True

    def leave(self, seconds: float) -> bool:
        """The interpreter ends: pause the thread that drives. Return whether it paused in time."""
        if not self.own:
            return False
        with self._changed:
            if self._thread is not None:
                self.control.request("pause")
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the loop at a boundary and let no thread start it. Can be nested."""
        self.require_own()
        if self.inside:
            raise BusyError(
                "paused() was entered from the training thread itself (a step or a metric), which cannot "
                "wait for its own next boundary; ask from another cell or thread"
            )
        me = threading.current_thread()
        with self._changed:
            self._wait_for(lambda: bool(self._holders) or not self._others_first)
            self._require_not_over()
            self._holders.append(me)
            self.control.hold()
        try:
            with self._changed:
                self._wait_for(lambda: self.still)
            yield
        finally:
            with self._changed:
                self._holders.remove(me)
                self.control.release()

    def _awaited(self) -> AbstractContextManager[None]:
        """Make the end of the process wait for this work, if a pause is saved."""
        return process_end.awaited(self.control.interrupt) if self.saves_its_end else nullcontext()

    # The claim ---------------------------------------------------------------------------------------

    def _require_not_over(self) -> None:
        """Check it; the caller holds the lock."""
        __tracebackhide__ = True
        if self._over:
            raise BusyError(self._over)

    @property
    def _holding(self) -> bool:
        return threading.current_thread() in self._holders

    @property
    def _others_first(self) -> bool:
        """True if a thread that holds repeatedly must leave a step between. Otherwise no step would run."""
        return self.control.leaving or (self._thread is None and self._claimants > 0)

    def _claim(self) -> None:
        with self._changed:
            self._claimants += 1
            try:
                self._wait_unheld()
            finally:
                self._claimants -= 1
                self._changed.notify_all()
            self._require_not_over()
            if self._thread is not None:
                raise BusyError(_who_drives(self._thread))
            self._thread = threading.current_thread()
            self._turn = _Turn()
            self.control.forget_request()

    def _wait_unheld(self) -> None:
        """Wait while other threads hold the loop. A thread that held it itself would wait for ever."""
        while self._thread is None and self._holders:
            if self._holding:
                raise BusyError(
                    "the learner is held still by `with learner.paused()` in this very thread; leave that "
                    "block first"
                )
            if self.control.interrupted:
                raise KeyboardInterrupt
            self._changed.wait(0.1)  # bounded, as a signal handler cannot notify

    def _hand_over(self, work: Callable[[], Any], fail: Callable[[BaseException], None]) -> None:
        turn = self._turn
        begun = process_end.begin(self.control.interrupt) if self.saves_its_end else None

        def body() -> None:
            try:
                turn.run(work)
            finally:
                background.is_over(self.control)
                self._let_go()
                if begun is not None:
                    process_end.finish(begun)

        # With the context of the running cell, a kernel shows the thread's prints below that cell and not
        # below the latest one (ipykernel 6.29 and 6.31 do this themselves, older ones do not).
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(body,), name=BACKGROUND, daemon=True)
        background.begins(self.control)
        try:
            self._thread.start()
        except RuntimeError as error:
            background.is_over(self.control)
            if begun is not None:
                process_end.finish(begun)
            fail(error)
            raise

    def _let_go(self) -> None:
        with self._changed:
            self._thread = None
            self._turn.ended = True
            self._changed.notify_all()

    def _wait_turn(self, turn: _Turn) -> None:
        with self._changed:
            self._wait_for(lambda: turn.ended)

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait in short pieces. On Windows, or if another thread got the signal, Python handles an interrupt
        only between two waits."""
        while not ready():
            self._changed.wait(0.1)


BACKGROUND = "notebook_learner"
"""The name of the thread that `start()` trains in."""


def _who_drives(thread: threading.Thread) -> str:
    if thread is threading.current_thread():
        return "training is already under way in this very thread; a step or metric cannot start it again"
    where = "in the background (start())" if thread.name == BACKGROUND else f"in thread {thread.name!r}"
    return f"training is already under way {where}; call learner.pause() first, or learner.wait() for its end"


class _Turn:
    """One piece of work and its result, which can be read any number of times."""

    def __init__(self, ended: bool = False) -> None:
        self.ended = ended
        self._value: Any = None
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None

    def run(self, work: Callable[[], Any]) -> None:
        """Do the work and keep its value or its exception."""
        try:
            self._value = work()
        except BaseException as error:
            self._error, self._trace = error, error.__traceback__

    def result(self) -> Any:
        """The value, or the exception with its traceback."""
        if self._error is not None:
            raise self._error.with_traceback(self._trace)
        return self._value


class _Interrupts:
    """Makes Ctrl-C and the kernel's interrupt button ask for a pause at the step boundary. A second one
    raises KeyboardInterrupt at once if a step hangs."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.late = False
        """After the work: whether an interrupt came for which no boundary was left."""
        self.seen = False
        """Whether an interrupt came at all."""
        # Only the main thread receives signals, and only it may set their handlers.
        self._mine = threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._breaking = Breaking()

    def __enter__(self) -> _Interrupts:
        if self._mine:
            self._before = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *error: object) -> None:
        if not self._mine:
            return
        try:
            signal.signal(signal.SIGINT, self._before)
        finally:  # the restored handler may raise at once
            self.late = self.control.forget_interrupts()

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        self.seen = True
        # If raising here would do harm, the next boundary comes soon enough.
        if self.control.interrupt() and self._breaking.is_harmless(frame):
            # Allow only one, and set this here. The loop sets it when it leaves the block, but a third
            # interrupt may prevent that, and a fifth one may then stop the way back to the step.
            self.control.interruptible = False
            raise KeyboardInterrupt
