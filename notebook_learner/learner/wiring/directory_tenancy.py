"""A run's directory has one learner that writes there, from its first write until its training is over.

The build does not take the directory; the first write does. It decides about an earlier run in the directory:
the run is moved next to it, continued, or deleted. An earlier learner of this process that wrote there writes
its last data, and may then not go on. Another process that trains there keeps the directory.

The writer has the directory locked (`remote/owner.py`). When training is over, the learner releases the lock.
It takes the lock again for later work, if no other process has gone on there since.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

from ...artifacts.earlier_run import (
    Traces,
    drop,
    holds_run,
    keep_beside,
    own_files,
    put_together,
    traces_in,
    went_on_since,
)
from ...errors import BusyError, MovedError, NoDescriptorsError, StoreError, remedy
from ...event import Event, FanOut, Notice, Sink
from ...remote.detached import detached_in, noted_in
from ...remote.owner import (
    DirectoryLock,
    Identity,
    clear_socket,
    locker_of,
    other_owner_in,
    other_process_in,
    owner_in,
    this_process,
    who_has,
    who_trains_here,
)
from ...run.driver import Driver
from ...store import files
from .run_files import Storing

What = Literal["keep", "go on", "overwrite"]
"""What to do about an earlier run in the directory."""

_entering = threading.RLock()
_tenants: weakref.WeakValueDictionary[Identity, Tenancy] = weakref.WeakValueDictionary()
"""The writer of each directory, by the directory's identity in the file system, which a move keeps."""

_IN_A_MOMENT = 1.0
"""Seconds to wait for a locked directory that no living process claims: the lock was just taken or
released."""
_ENDING = 30.0
"""Seconds to wait if the process that had the directory is about to end."""


class Tenancy:
    """The right of one learner to write in its directory.

    Args:
        storing: the part that writes there.
        what: what to do about an earlier run there.
        writes: whether training writes there at all; `save()` always does.
        driver: the learner's driver.
        sinks: the learner's sinks.
        close: removes the learner's socket from the directory.
        open: makes the socket again; returns why it cannot.
    """

    def __init__(
        self,
        storing: Storing,
        what: What,
        writes: bool,
        driver: Driver,
        sinks: FanOut,
        close: Callable[[], None],
        open: Callable[[Any], str] = lambda learner: "",
    ) -> None:
        self.directory = storing.layout.directory
        self._storing, self._what, self._writes = storing, what, writes
        self._driver, self._sinks, self._close, self._open = driver, sinks, close, open
        self._inside = False
        self._lock: DirectoryLock | None = None
        """The opened directory; it is locked, unless training is over."""
        self._left: Traces | None = None
        """The files there when the lock was released at the end of training."""
        self._over = ""
        """Why the learner may not go on, after a newer one has begun."""
        self._lent = ""
        """Who goes on in the directory meanwhile, and how to take it back."""
        self._status = ""
        self._learner: Callable[[], Any] = _nobody
        storing.ask = self.ask

    @property
    def _place(self) -> Path:
        """The directory that now has this path; the opened one may be another."""
        return Path(os.fspath(self.directory))

    @property
    def writers(self) -> Sequence[Sink]:
        """The sinks that write in the directory."""
        return self._storing.writers

    # For the learner ---------------------------------------------------------------------------------

    def look_in(self) -> None:
        """Reserve the directory before a checkpoint is read; no other run begins there until `look_away`. A
        writer there finishes first, and the unfinished work of a dead process is repaired.

        Raises:
            BusyError: another process, or learner, trains there.
            StoreError: a newer learner has begun there.
        """
        __tracebackhide__ = True
        self.require_mine()
        if self._inside:
            return
        with _entering, ExitStack() as stack:
            before, lock = self._claim(stack)
            if before is None or lock is not before._lock:
                self._lock = lock
            if before is not None:
                before._storing.background.wait()
            put_together(self.directory)

    def look_away(self) -> None:
        """End `look_in`: the checkpoint was read, and its reader has entered, or will not enter."""
        if not self._inside and self._lock is not None and not self._storing.settings.detached:
            self._lock.close()
            self._lock = None

    def enter(self, learner: Any, *, goes_on: bool = False, saves: bool = False) -> list[Notice]:
        """Take the directory for the learner's first write; return notices about an earlier run.

        Args:
            learner: the learner that will write.
            goes_on: whether it goes on with the run there, as one of its checkpoints was loaded.
            saves: whether it writes a checkpoint, which goes to the directory even if nothing else does.

        Raises:
            BusyError: another process, or learner, trains there.
            StoreError: a newer learner has begun there; or an earlier run can be neither moved nor deleted.
        """
        __tracebackhide__ = True
        self.require_mine()
        if self._inside or not (self._writes or saves):
            return []
        told: list[Notice] = []
        with _entering, ExitStack() as stack:
            while True:
                self._make_directory()
                before, lock = self._claim(stack)
                if lock is None:  # a learner without a step has just removed its empty directory
                    continue
                borrowed = before is not None and before._lock is lock
                try:
                    if text := self._begin(before, "go on" if goes_on else self._what):
                        told.append(Notice(text))
                except BaseException:
                    if not borrowed:
                        self._put_away(lock)
                    raise
                if borrowed and before is not None:
                    before._lock = None
                if lock.identity == _identity_of(self.directory):
                    break
                self._put_away(lock)  # the earlier run was moved, together with its directory
            self._inside, self._learner = True, weakref.ref(learner)
            self._have(lock)
        if not lock.works:
            told.append(Notice(_unlocked(self.directory, lock.why), "warning"))
        return told

    def stands(self, status: str) -> None:
        """Note the status of the training, for others who want the directory."""
        self._status = status
        if self._inside and self._lock is not None and self._lock.taken and not (self._lent or self._over):
            self._lock.note(this_process(status))

    def rest(self) -> None:
        """Release the lock: training is over and everything is written, so others may go on in the directory.
        A detached process releases it only when it ends."""
        lock = self._lock
        if not self._inside or lock is None or not lock.taken or self._lent or self._over:
            return
        if self._storing.settings.detached or lock.identity != _identity_of(self.directory):
            return
        self._storing.finish()
        self._sinks.let_go(self._storing.writers)
        try:
            self._left = traces_in(self._place)
        except OSError:  # a later check for other writers is impossible: keep the lock
            return
        lock.forget()
        lock.free()

    def wake(self) -> None:
        """Take the directory again before an event is written, if no other process has it."""
        if self._left is not None and not self._over:
            with suppress(BusyError, StoreError):
                self.require_mine()

    def leave(self) -> None:
        """Leave the directory: the learner was garbage-collected, or its process ends."""
        self._close()
        lock, self._lock = self._lock, None
        if lock is not None:
            if lock.taken:
                lock.forget()
            lock.close()

    def ask(self) -> None:
        """Check that the directory is still the opened one; called at every boundary and before every save.

        Raises:
            MovedError: it was moved; another directory in its place is not written to.
        """
        if not self._inside or self._lock is None:
            return
        there = _identity_of(self.directory)
        if there != self._lock.identity and not self._is_made_anew(there):
            raise MovedError(self._moved(there))

    @property
    def away(self) -> str:
        """Who else goes on with the run, in a few words; empty if this learner has it."""
        if self._over:
            return "a newer learner has the directory of this run"
        if self._lent or self._left is not None:
            if other := other_owner_in(self.directory):
                return f"{other} goes on with this run"
            if detached := detached_in(self.directory):
                return f"process {detached.pid} goes on with this run"
            with suppress(OSError):  # an unreadable directory gives no answer
                if self._left is not None and went_on_since(self._place, self._left):
                    return "another process has gone on with this run"
        return ""

    # Handing over ------------------------------------------------------------------------------------

    def lend(self, why: str) -> int:
        """Lend the directory to another process; this one writes nothing there any more. Return the
        descriptor with which the other process has the directory locked, too."""
        self._sinks.let_go(self._storing.writers)
        self._storing.lend()
        self._close()
        self._lent = why
        assert self._lock is not None, "it has saved there"
        return self._lock.descriptor

    def lent(self) -> None:
        """Release the lock here: the other process trains, and has the directory alone from here on."""
        if self._lock is not None:
            self._lock.leave()
            self._lock = None

    def adopt(self, descriptor: int) -> None:
        """Take the directory from the process that hands it over; it is locked all the time."""
        self._lock = DirectoryLock(self.directory, descriptor)
        self._lock.take()

    def take_back(self, learner: Any, stand: Callable[[], Sequence[Event]]) -> None:
        """Take the directory back, after the other process has ended or never began.

        Args:
            learner: the learner of this directory.
            stand: moves the learner to where the run stands; returns the events that bring the writers there.

        Raises:
            BusyError: another process trains there meanwhile.
            StoreError: a newer learner has begun there, or the directory is another one now.
        """
        lent, self._lent = self._lent, ""
        try:
            with _entering, ExitStack() as stack:
                if self._over:
                    raise StoreError(self._over)
                _, lock = self._claim(stack)
                assert lock is not None, "the other process has saved there"
                self._have(lock)
                put_together(self.directory)
                events = stand()
                self._sinks.take_in(self._storing.take_back(), events)
                if told := self._open(learner):
                    self._sinks.emit(Notice(told, "warning"))
        except BaseException:
            self._lent = lent
            raise

    # Taking the directory ----------------------------------------------------------------------------

    def _claim(self, stack: ExitStack) -> tuple[Tenancy | None, DirectoryLock | None]:
        """Claim the directory for this process. Return the learner of this process that wrote there last,
        which cannot be started until the stack is left, and the lock, which may belong to that learner. Both
        are None if there is no directory."""
        __tracebackhide__ = True
        while True:
            lock = self._opened()
            if lock is None:
                return None, None
            before = _tenants.get(lock.identity)
            if before is self or (before is not None and before._over):
                before = None
            try:
                if before is not None:
                    before._require_still()
                    stack.enter_context(before._driver.held())  # now it cannot be started
                    before._require_still()
                if before is None or before._lock is None or not before._lock.taken:
                    self._lock_or_raise(lock)
            except BaseException:
                if lock is not self._lock:
                    lock.close()
                raise
            if not lock.taken:  # this process has the lock through its earlier learner
                assert before is not None and before._lock is not None
                self._put_away(lock)
                return before, before._lock
            if lock.identity == _identity_of(self.directory):
                return before, lock
            self._put_away(lock)  # it was moved between opening and locking

    def _opened(self) -> DirectoryLock | None:
        if self._lock is not None and self._lock.identity == _identity_of(self.directory):
            return self._lock
        try:
            return DirectoryLock(self.directory)
        except FileNotFoundError:
            return None
        except NoDescriptorsError:  # its message says what to do
            raise
        except OSError as error:
            raise StoreError(
                f"the run's directory {str(self.directory)!r} cannot be opened ({error.strerror or error}); "
                "give LearnerBuilder a directory in which you may read and write"
            ) from error

    def _put_away(self, lock: DirectoryLock) -> None:
        if lock is self._lock:
            self._lock = None
        lock.close()

    def _lock_or_raise(self, lock: DirectoryLock) -> None:
        """Lock the directory; wait for a process that is ending, or is just taking it."""
        __tracebackhide__ = True
        began = time.monotonic()
        while not lock.take():
            owner, detached = owner_in(self.directory), noted_in(self.directory)
            waits = time.monotonic() - began
            ending = detached is not None and detached.ended != "" and detached.is_alive()
            # A learner of this process that is being garbage-collected: its own thread lets the lock go.
            ending |= detached is None and owner is not None and owner.pid == os.getpid()
            if (waits > _ENDING) if ending else (waits > _IN_A_MOMENT or _is_alive(owner)):
                self._refuse(lock)
            time.sleep(0.01)
        self._storing.keeper.alone = lock.works
        if not lock.works and (who := other_process_in(self.directory)):
            lock.free()
            raise BusyError(
                f"{who} has the run in {str(self.directory)!r} open; end it first (`notebook-learner ctl "
                f"{self.directory} status` tells how it stands), or give this learner another directory"
            )

    def _refuse(self, lock: DirectoryLock) -> None:
        __tracebackhide__ = True
        owner = other_owner_in(self.directory) or locker_of(lock.identity)
        over = "" if self._left is None else "the training is over here, and "
        raise BusyError(over + who_has(self.directory, owner, detached_in(self.directory)))

    def _have(self, lock: DirectoryLock) -> None:
        """Make the directory this learner's from now on."""
        if self._lock is not None and self._lock is not lock:
            self._lock.close()
        self._lock, self._left = lock, None
        folder = self.directory.folder
        if folder.identity not in (None, lock.identity):
            folder.let_go()
        folder.hold()
        folder.pinned = True  # later writes go to this directory, or nowhere
        _tenants[lock.identity] = self
        self.stands(self._status)

    def _make_directory(self) -> None:
        try:
            files.make_directory(self.directory)
        except NoDescriptorsError:
            raise
        except OSError as error:
            raise StoreError(
                f"the run's directory {str(self.directory)!r} cannot be made ({error.strerror or error}); "
                "give LearnerBuilder a directory in which you may write"
            ) from error

    def _begin(self, before: Tenancy | None, what: What) -> str:
        if before is not None:
            before._finish()
        try:
            told = self._made_room(before, what)
            self._storing.layout.require_plain()
        except StoreError:  # its message says what to do
            raise
        except OSError as error:
            raise _unreadable(self.directory, error) from error
        return told

    def _made_room(self, before: Tenancy | None, what: What) -> str:
        here = repr(str(self.directory))
        if what == "go on":
            put_together(self.directory)
            if before is not None:
                before._give_way(f"a newer learner has gone on with the run in {here}")
            return ""
        told, gone = "", f"a newer learner has begun in {here}"
        place = None
        if what == "overwrite" and any(True for _ in own_files(self._place)):
            self._storing.forget()
            drop(self.directory)
            told = f"the earlier run in {here} was deleted, as overwrite() asks"
            gone += ", and deleted this one's files, as overwrite() asks"
        elif holds_run(self._place):
            self._storing.forget()
            clear_socket(self.directory)
            place = keep_beside(self.directory)
            self.directory.folder.let_go()
            self._make_directory()
            told = (
                f"{here} held a run, which is now in {str(place)!r}; .resume() on the builder goes on with "
                "the run in its directory instead, .overwrite() deletes it"
            )
            gone += f"; this one's files are in {str(place)!r} now"
        if before is not None:
            before._give_way(gone, place)
        return told

    # For a newer learner -----------------------------------------------------------------------------

    def _require_still(self) -> None:
        __tracebackhide__ = True
        if self._driver.busy:
            raise BusyError(who_trains_here(self.directory))

    def _finish(self) -> None:
        """Write what is pending, and close open files. The learner may still go on afterwards."""
        self._storing.finish()
        self._close()

    def _give_way(self, why: str, place: Path | None = None) -> None:
        """Stop writing here for good."""
        self._over = (
            f"this learner cannot go on here: {why}. learner.fork('another directory') goes on from where it "
            "stands"
        )
        if place is not None and self._storing.settings.files_asked:
            self._over += f", and LearnerBuilder({str(place)!r}) with .resume() from its newest checkpoint"
        self._sinks.let_go(self._storing.writers)
        self._storing.give_way(place)
        if self._lock is not None and self._lock.taken:
            self._lock.forget()
        learner = self._learner()
        if learner is not None and place is not None:
            learner._moved_to(place)

    # Who has it --------------------------------------------------------------------------------------

    def require_mine(self) -> None:
        """Raise if this learner may not go on; a training that was over takes its directory again.

        It raises, too, if another process or a person has put another directory in the place of ours. If the
        directory is gone, the next writer reports it.
        """
        __tracebackhide__ = True
        self._driver.require_own()
        if self._over:
            raise StoreError(self._over)
        if self._lent:
            raise BusyError(self._lent)
        if not self._inside:
            return
        self.ask()
        if self._left is not None:
            self._take_again(self._left)

    def _take_again(self, left: Traces) -> None:
        __tracebackhide__ = True
        lock = self._lock
        assert lock is not None, "what is over still has its directory open"
        with _entering:
            self._lock_or_raise(lock)
            try:
                went_on = went_on_since(self._place, left)
            except OSError as error:
                lock.free()
                raise _unreadable(self.directory, error) from error
            if went_on:
                lock.free()
                here = str(self.directory)
                self._over = (
                    f"this learner cannot go on here: another process has gone on with the run in {here!r} "
                    f"since its training was over here. LearnerBuilder({here!r}) with .resume() goes on from "
                    "the newest checkpoint there, learner.fork('another directory') from where this one "
                    "stands"
                )
                raise StoreError(self._over)
            self._have(lock)
        self._sinks.take_in(self._storing.writers, ())
        if (learner := self._learner()) is not None and (told := self._open(learner)):
            self._sinks.emit(Notice(told, "warning"))

    def _is_made_anew(self, there: Identity | None) -> bool:
        """Whether the directory was deleted, so that a new one of the same name may be made."""
        lock = self._lock
        if lock is None or not lock.deleted:
            return False
        if there is None:
            self.directory.folder.let_go()
            self._make_directory()
        new = DirectoryLock(self.directory)
        if not new.take() or (there is not None and holds_run(self._place)):
            new.close()
            return False
        self._have(new)
        return True

    def _moved(self, there: Identity | None) -> str:
        lock = self._lock
        where = "" if lock is None or lock.deleted else lock.where
        here = str(self.directory)
        now = "is not there any more" if there is None else "is another one now"
        ours = f"; its own is {where!r}" if where else ""
        return (
            f"this learner cannot go on here: its directory was moved, and {here!r} {now}{ours}. Nothing was "
            "written to another run. Move it back and call fit() again, or learner.fork('another directory') "
            "goes on from where it stands"
        )


def _is_alive(owner: Any) -> bool:
    return owner is not None and owner.is_alive()


def _unreadable(directory: Path, error: OSError) -> StoreError:
    return StoreError(
        f"the run's directory {str(directory)!r} cannot be read ({error.strerror or error}). "
        f"{remedy(error)}, and try again"
    )


def _unlocked(directory: Path, why: str) -> str:
    return (
        f"the file system of {str(directory)!r} knows no locks ({why}), so nothing keeps another process "
        "from training there, too: make sure that only one does"
    )


def _identity_of(directory: Path) -> Identity | None:
    try:
        info = os.stat(directory)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _nobody() -> None:
    return None


def _in_child() -> None:
    """Forget the parent's directories in a forked child; a thread that the child lacks may hold the lock."""
    global _entering
    _entering = threading.RLock()
    _tenants.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
