"""A run's directory has one learner that writes there, from its first write until a newer one begins.

Building asks for nothing. The first write decides what becomes of a run that lies there already: it is kept
beside, gone on with, or deleted. A learner of this process that wrote there before has what it was given
written down, and is told to go no further; another process that trains there keeps the directory.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ...artifacts.earlier import drop, holds_run, keep_beside, own_files, put_together
from ...errors import BusyError, StoreError
from ...event import Event, FanOut, Notice, Sink
from ...remote.detached import Detached, detached_in
from ...remote.listening import clear_socket, other_process_in
from ...store import files
from ..driver import Driver
from .storing import Storing

What = Literal["keep", "go on", "overwrite"]
"""What becomes of a run that lies in the directory."""
Identity = tuple[int, int]

_entering = threading.RLock()
_tenants: weakref.WeakValueDictionary[Identity, Tenancy] = weakref.WeakValueDictionary()
"""Who writes in a directory, by what the file system knows it by: it moves along with the directory."""


class Tenancy:
    """The right of one learner to write in its directory.

    Args:
        storing: what writes there.
        what: to do about a run that lies there.
        writes: whether training writes there at all; `save()` always does.
        driver: who drives the learner.
        sinks: where its recorders listen.
        close: takes away what else the learner has in the directory: its socket.
        open: brings that again; gives what speaks against it.
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
        self._identity: Identity | None = None
        self._over = ""
        """Why the learner may not go on, once a newer one has begun."""
        self._lent = ""
        """Who goes on in the directory meanwhile, and how to have it back."""
        self._learner: Callable[[], Any] = _nobody

    @property
    def writers(self) -> Sequence[Sink]:
        """Who writes in the directory."""
        return self._storing.writers

    # For the learner ---------------------------------------------------------------------------------

    def look_in(self) -> None:
        """Before a checkpoint is read: who writes there finishes, and what a dead process began is mended.

        Raises:
            BusyError: somebody trains there right now.
            StoreError: a newer learner has begun there.
        """
        self.require_mine()
        if self._inside:
            return
        with _entering, self._free() as before:
            if before is not None:
                before._storing.background.wait()
            put_together(self.directory)

    def enter(self, learner: Any, *, goes_on: bool = False, saves: bool = False) -> list[Notice]:
        """The learner is about to write; what a person should know of what was done about an earlier run.

        Args:
            learner: who asks.
            goes_on: with the run that lies there, as one of its checkpoints was loaded.
            saves: a checkpoint, which is written to the directory whatever else is not.

        Raises:
            BusyError: somebody trains there right now.
            StoreError: a newer learner has begun there; or an earlier run can be neither moved nor deleted.
        """
        self.require_mine()
        if self._inside or not (self._writes or saves):
            return []
        with _entering, self._free() as before:
            told = self._begin(before, "go on" if goes_on else self._what)
            self._inside, self._learner = True, weakref.ref(learner)
            self._identity = _identity_of(self.directory)
            if self._identity is not None:
                _tenants[self._identity] = self
        return [Notice(told)] if told else []

    def lend(self, why: str) -> None:
        """Another process goes on in the directory, and this one writes nothing there any more."""
        self._sinks.let_go(self._storing.writers)
        self._storing.lend()
        self._close()
        self._lent = why

    def take_back(self, learner: Any, stand: Callable[[], Sequence[Event]]) -> None:
        """The other process is over, or never began: the learner writes there again.

        Args:
            learner: whose directory it is.
            stand: puts the learner where the run stands; gives the events that bring the writers there.

        Raises:
            BusyError: somebody else trains there meanwhile.
            StoreError: a newer learner has begun there, or the directory is another one now.
        """
        lent, self._lent = self._lent, ""
        try:
            self.require_mine()
            with _entering, self._free():
                put_together(self.directory)
                events = stand()
                self._sinks.take_in(self._storing.take_back(), events)
                if told := self._open(learner):
                    self._sinks.emit(Notice(told, "warning"))
        except BaseException:
            self._lent = lent
            raise

    def _begin(self, before: Tenancy | None, what: What) -> str:
        if before is not None:
            before._finish()
        told = self._made_room(before, what)
        try:
            files.make_directory(self.directory)
        except OSError as error:
            raise StoreError(
                f"the run's directory {str(self.directory)!r} cannot be made ({error.strerror or error}); "
                "give LearnerBuilder a directory in which you may write"
            ) from error
        self._storing.layout.require_plain()
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
        if what == "overwrite" and any(True for _ in own_files(self.directory)):
            self._storing.forget()
            drop(self.directory)
            told = f"the earlier run in {here} was deleted, as overwrite() asks"
            gone += ", and was told to overwrite this one's files"
        elif holds_run(self.directory):
            self._storing.forget()
            clear_socket(self.directory)
            place = keep_beside(self.directory)
            told = (
                f"{here} held a run, which is now in {str(place)!r}; .resume() on the builder goes on with "
                "the run in its directory instead, .overwrite() deletes it"
            )
            gone += f"; this one's files are in {str(place)!r} now"
        if before is not None:
            before._give_way(gone, place)
        return told

    @contextmanager
    def _free(self) -> Iterator[Tenancy | None]:
        """Nobody trains in the directory meanwhile; the learner of this process that wrote there last."""
        who = other_process_in(self.directory)
        # After it: whoever hands a run over notes to whom before it stops listening.
        if detached := detached_in(self.directory):
            raise BusyError(_held_by(detached, self.directory))
        if who:
            raise BusyError(
                f"{who} has the run in {str(self.directory)!r} open; end it first (`notebook-learner ctl "
                f"{self.directory} status` tells how it stands), or give this learner another directory"
            )
        identity = _identity_of(self.directory)
        before = None if identity is None else _tenants.get(identity)
        if before is None or before is self or before._over:
            yield None
            return
        before._require_still()
        with before._driver.held():  # nobody starts it now
            before._require_still()
            yield before

    # For a newer learner -----------------------------------------------------------------------------

    def _require_still(self) -> None:
        if self._driver.busy:
            raise BusyError(
                f"an earlier learner trains in {str(self.directory)!r} right now, in this process; stop it "
                f"first (stop(), pause() or `notebook-learner ctl {self.directory} stop`), or give this one "
                "another directory"
            )

    def _finish(self) -> None:
        """Write down what is under way, and let go of open files. It may still go on afterwards."""
        self._storing.finish()
        self._close()

    def _give_way(self, why: str, place: Path | None = None) -> None:
        """Never write again."""
        self._over = (
            f"this learner cannot go on here: {why}. learner.fork('another directory') goes on from where it "
            "stands"
        )
        if place is not None and self._storing.settings.files_asked:
            self._over += f", and LearnerBuilder({str(place)!r}) with .resume() from its newest checkpoint"
        self._sinks.let_go(self._storing.writers)
        self._storing.give_way(place)
        learner = self._learner()
        if learner is not None and place is not None:
            learner.moved_to(place)

    def require_mine(self) -> None:
        """Raise where this learner may not go on.

        Also where it was another process, or a person, who put another directory in the place of ours.
        One that has gone is told of by who writes there.
        """
        if self._over:
            raise StoreError(self._over)
        if self._lent:
            raise BusyError(self._lent)
        if not self._inside:
            return
        there = _identity_of(self.directory)
        if there is not None and self._identity not in (None, there):
            raise StoreError(
                f"this learner cannot go on here: its directory was moved, and {str(self.directory)!r} is "
                "another one now. learner.fork('another directory') goes on from where it stands"
            )
        self._identity = there


def _held_by(detached: Detached, directory: Path) -> str:
    return (
        f"the run in {str(directory)!r} goes on in process {detached.pid}, to which it was handed over "
        f"(learner.detach()). `notebook-learner ctl {directory} status` tells how it stands, and "
        f"`notebook-learner ctl {directory} stop` has it save exactly where it stands, and end. So does "
        "learner.take_back() in the kernel that handed it over, and .resume(take_back=True) on the builder "
        "in another one, and both go on from there. Or give this learner another directory"
    )


def _identity_of(directory: Path) -> Identity | None:
    try:
        info = os.stat(directory)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _nobody() -> None:
    return None
