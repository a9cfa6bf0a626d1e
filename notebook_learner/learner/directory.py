"""A Learner's place in its run's directory: it comes in, reads there, and lets others in once it is over."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TypeVar

from ..artifacts import Checkpoints
from .core import LearnerCore

T = TypeVar("T")


class DirectoryVerbs(LearnerCore):
    """What every Learner has; a class of its own only because a file has one subject."""

    @property
    def checkpoints(self) -> Checkpoints:
        """What is saved in the run's directory, in the order it was saved: shown as a table."""
        self._driver.require_own()
        return Checkpoints(self._replica.saving.checkpoints())

    @property
    def _elsewhere(self) -> str:
        """Which other process, or learner, goes on with this run; nothing where this one has it."""
        return self._premises.away

    def _look_for_checkpoints(self) -> Checkpoints:
        """As `checkpoints`, before anything was trained; whoever writes there finishes first."""
        try:
            self._premises.look_in()
            return self.checkpoints
        finally:
            self._premises.look_away()
            self._rest()

    def _moved_to(self, directory: os.PathLike[str]) -> None:
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
