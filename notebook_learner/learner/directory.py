"""A Learner's place in its run's directory: it comes in, reads there, and lets others in once it is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ..artifacts import Checkpoints
from ..event import Notice, RunOpened, Status
from ..run.replica import Replica
from .directory_access import Premises

T = TypeVar("T")


class OnPremises:
    """What every Learner has; a class of its own only because a file has one subject."""

    _premises: Premises
    _replica: Replica
    _opened: RunOpened
    _status: Status
    _untold: list[Notice]

    @property
    def checkpoints(self) -> Checkpoints:
        raise NotImplementedError

    def _announce(self) -> None:
        raise NotImplementedError

    def _settle(self) -> None:
        raise NotImplementedError

    @property
    def away(self) -> str:
        """Which other process, or learner, goes on with this run; nothing where this one has it."""
        return self._premises.away

    def look_for_checkpoints(self) -> Checkpoints:
        """As `checkpoints`, before anything was trained; whoever writes there finishes first."""
        try:
            self._premises.look_in()
            return self.checkpoints
        finally:
            self._premises.look_away()
            self._rest()

    def moved_to(self, directory: os.PathLike[str]) -> None:
        """The run's files lie elsewhere now, and it is over: a newer one has its directory."""
        self._opened = replace(self._opened, directory=os.fspath(directory))

    def _restore_checkpoint(self, which: int | str) -> None:
        try:
            self._premises.look_in()
            self._replica.restore_checkpoint(which, self._go_on)
            self._settle()
        finally:
            self._premises.look_away()

    def _go_on(self) -> None:
        self._enter(goes_on=True)
        self._announce()

    def _enter(self, *, goes_on: bool = False, saves: bool = False) -> None:
        """Before anything is written: a run that lies in the directory has to go first, unless this one
        goes on with it; and a learner whose directory is another's by now goes no further."""
        __tracebackhide__ = True
        self._untold += self._premises.enter(self, goes_on=goes_on, saves=saves)

    def _resting(self, work: Callable[[], T]) -> T:
        """Do it; where training is over then, others may go on in the directory."""
        __tracebackhide__ = True
        try:
            return work()
        finally:
            self._rest()

    def _rest(self) -> None:
        if self._status in ("finished", "stopped"):
            self._premises.rest()
