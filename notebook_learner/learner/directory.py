"""The Learner's verbs for its run's directory: it enters, reads there, and leaves when training is over."""

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
        """The checkpoints in the run's directory, in the order they were saved, as a table."""
        self._driver.require_own()
        return Checkpoints(self._replica.saving.checkpoints())

    @property
    def _elsewhere(self) -> str:
        """The other process, or learner, that goes on with this run; empty if this learner has it."""
        return self._premises.away

    def _look_for_checkpoints(self) -> Checkpoints:
        """Like `checkpoints`, before any training; another writer in the directory finishes first."""
        try:
            self._premises.look_in()
            return self.checkpoints
        finally:
            self._premises.look_away()
            self._rest()

    def _moved_to(self, directory: os.PathLike[str]) -> None:
        """End this run, whose files were moved: a newer run has its directory."""
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
