"""Who turns the loop: this thread, or a background one; never two at once."""

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
from . import interrupt_button as background
from .control import Control, Request
from .interrupt_safety import Breaking

T = TypeVar("T")


class Driver:
    """Runs work on the loop, one piece at a time.

    Who drives, who holds the loop still and what is asked of it change under one lock, the control's,
    so that each of them is decided by the others as they are.
    """

    def __init__(self, control: Control) -> None:
        self.control = control
        self.saves_its_end = False
        """Whether a pause is kept on the disk: then being told to end (SIGTERM) means pausing first."""
        self.process: int | None = None
        """The process that its learner belongs to; None where a child may go on with it."""
        self._over = ""
        """Why nobody drives any more."""
        self._changed = control.changed
        self._thread: threading.Thread | None = None
        self._turn = _Turn(ended=True)
        self._holders: list[threading.Thread] = []
        self._claimants = 0
        """Threads that wait for the holders to be gone, to drive."""

    @property
    def own(self) -> bool:
        """Whether its learner belongs to this process: a child that was forked has it only to look at."""
        return self.process in (None, os.getpid())

    def require_own(self) -> None:
        """Raise in a child that was forked. Nobody drives there, and what is asked would wait for ever."""
        __tracebackhide__ = True
        if not self.own:
            raise BusyError(
                f"this learner belongs to process {self.process}, of which this one ({os.getpid()}) is a "
                "forked child: call its verbs there, or `notebook-learner ctl` from here; what a child needs "
                "of it (model.state_dict(), a position) is taken before the fork"
            )

    @property
    def busy(self) -> bool:
        """Whether somebody drives right now."""
        return self._thread is not None

    @property
    def inside(self) -> bool:
        """Whether this very thread drives: a metric or a step is asking."""
        return self._thread is threading.current_thread()

    @property
    def still(self) -> bool:
        """Whether nothing moves: nobody drives, or the loop is held at a boundary."""
        return self._thread is None or self.control.held

    def belongs_to_this_thread(self) -> None:
        """For good: a rank of a training on several devices does what it is told, and in one thread."""
        self._thread = threading.current_thread()

    def belongs_to_nobody(self) -> None:
        """That is over: whoever ends it waits for nobody."""
        self._thread = None

    def ends(self, why: str) -> bool:
        """Nobody drives from here on, and who asks is told why; False where somebody drives, or holds the
        loop, right now."""
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
            What the work gave, and whether an interrupt came too late for it.
        """
        __tracebackhide__ = True
        self.require_own()
        # Around the claim: none may come between the two.
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
        """Prepare in this thread, then do the work in a background one; `wait()` gives what came of it.

        Args:
            prepare: what it raises is raised here.
            work: what it raises is kept for `wait()`.
            fail: told of the error where all was prepared and no thread could be had.

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
        process_end.remind()  # the interrupts that came meanwhile are forgotten; a signal may be among them
        # Not only a late one: the background thread may have heard it first, and paused.
        return interrupts.seen

    def wait(self, meanwhile: Callable[[], None] = lambda: None) -> Callable[[], Any]:
        """Wait for whoever drives now; then call what it returns for the value of the last background
        work, or its exception. It is None where that work was done in somebody's own thread.

        Args:
            meanwhile: done ten times a second.
        """
        self.require_own()
        turn = self._turn
        if self.inside:
            raise BusyError(
                "wait() was called by the training itself (a step or a metric), whose end it awaits"
            )
        if self._holding and not turn.ended:
            raise BusyError(
                "wait() was called inside `with learner.paused()`, which keeps the training from its end; "
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
        """Pass a request on to whoever drives, and wait until they stand; False if nobody drives.

        The driving thread itself, and one that holds the loop still, cannot wait: they get their
        boundary when they are done.
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
        """The interpreter ends: pause whoever drives; whether they did so in time."""
        if not self.own:
            return False
        with self._changed:
            if self._thread is not None:
                self.control.request("pause")
            return self._changed.wait_for(lambda: self._thread is None, seconds)

    @contextmanager
    def held(self) -> Iterator[None]:
        """The loop stands at a boundary meanwhile, and nobody starts it. May be nested."""
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
        """The end of the process waits for this, where a pause is kept."""
        return process_end.awaited(self.control.interrupt) if self.saves_its_end else nullcontext()

    # The claim ---------------------------------------------------------------------------------------

    def _require_not_over(self) -> None:
        """Under the lock."""
        __tracebackhide__ = True
        if self._over:
            raise BusyError(self._over)

    @property
    def _holding(self) -> bool:
        return threading.current_thread() in self._holders

    @property
    def _others_first(self) -> bool:
        """Whoever holds again and again leaves a step between: without it nothing else would move."""
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
        """Others hold the loop for a moment; a thread that waited for itself would wait for ever."""
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

        # In the context of the cell that runs now, a kernel shows the thread's prints below that cell and
        # not below the latest one (ipykernel 6.29 and 6.31 see to it themselves, older ones do not).
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
        """Wait in pieces: on Windows, or where another thread got the signal, an interrupt is only heard
        between two of them."""
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
    """One time that somebody drives, and what came of it, to be had as often as anybody asks."""

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
        """The value, or the exception with the traceback it came with."""
        if self._error is not None:
            raise self._error.with_traceback(self._trace)
        return self._value


class _Interrupts:
    """Ctrl-C and the kernel's interrupt button ask for a pause at the step boundary; a second one
    while a step hangs raises KeyboardInterrupt there and then."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.late = False
        """Afterwards: whether one came that no boundary was left to answer."""
        self.seen = False
        """Whether one came at all."""
        # Only the main thread gets signals, and only it may say what they do.
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
        finally:  # the handler of before may raise as soon as it is back
            self.late = self.control.forget_interrupts()

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        self.seen = True
        # Where breaking off would do harm, the boundary that follows in a moment is soon enough.
        if self.control.interrupt() and self._breaking.is_harmless(frame):
            # One only, and said here: the loop says it on its way out of the block, which a third interrupt
            # may break off in its turn, and then a fifth the way back to the step.
            self.control.interruptible = False
            raise KeyboardInterrupt
