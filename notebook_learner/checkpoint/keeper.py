"""Saves checkpoints in the background, one at a time, and lets go of those nobody wants any more."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import CheckpointError, DamagedError, MovedError, StateError
from ..store.background import Background, Job
from .folder import CheckpointFolder, not_written
from .info import CheckpointInfo, Kind
from .strategy import KeepBest, Strategy, best_rule

JOB = "checkpoint"
_STANDING: tuple[Kind, ...] = ("auto", "epoch", "manual")
"""Which kind a checkpoint is that was saved twice at one place: what a person saved stays theirs."""


class Void(Exception):
    """What was to be written is not what it was meant to be: it is left out, and made again by who trains."""


class Keeper:
    """Owns the checkpoint folder of a run while it trains.

    `save` returns at once; `check` raises, at a step boundary, what went wrong since. One write is in
    flight at most: a second save waits for the first, so memory stays bounded by one state.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        strategy: Strategy,
        background: Background,
        *,
        after: Job = lambda: None,
        tell: Callable[[str], None] = lambda text: None,
        announce: Callable[[CheckpointInfo], None] = lambda info: None,
    ) -> None:
        self.folder = folder
        self.strategy = strategy
        self.background = background
        self.after = after
        """Called by the writer once a checkpoint is on the disk."""
        self.tell = tell
        """Called by `check`, in the thread that trains, with what a person should know."""
        self.announce = announce
        """Called there, too, for each checkpoint that is on the disk."""
        self._saved: list[CheckpointInfo] = []
        self.ask: Job = lambda: None
        """Asked before anything is written or cleared away: raises where the folder is not this run's."""
        self.alone = True
        """Whether no other process can be at work in the folder: only then is it cleared up."""
        self._known: list[CheckpointInfo] | None = None
        self._notices: list[str] = []
        self._told_what_is_lost = False
        self._again: Job | None = None
        """The save that failed for want of space, of its directory, or of whatever else may come back."""

    # From the thread that trains ---------------------------------------------------------------------

    def save(
        self,
        label: str,
        parts: Mapping[str, Any],
        about: Mapping[str, Any],
        before: Job = lambda: None,
    ) -> None:
        """Hand a checkpoint to the writer. Its tensors must not change until it is written.

        Args:
            label: what its files end with.
            parts: what is in each file.
            about: what the commit file tells besides.
            before: called by the writer: what must be on the disk when the checkpoint is. Raises Void where
                there is nothing to write.
        """
        self.ask()
        self.background.wait(JOB)
        self.check()

        def write() -> None:
            self.ask()
            try:
                before()
            except Void:
                return
            except OSError as error:
                raise CheckpointError(not_written(label, self.folder.path, error)) from error
            self._write(label, parts, about)

        self.background.submit(JOB, write)

    def check(self) -> None:
        """Raise what the writer could not do; if that was told already, try it again."""
        while self._saved:
            self.announce(self._saved.pop(0))
        while self._notices:
            self.tell(self._notices.pop(0))
        if self._again is not None:
            self._again()
            self._again = None
        if self.background.failed:
            self._raise_failure()

    def wait(self) -> None:
        """Until no checkpoint is on its way to the disk any more; raises what could not be written."""
        self.background.wait(JOB)
        self.check()

    def close(self) -> None:
        """Until the writer has nothing to do any more, what is derived included."""
        self.background.wait()
        self.check()

    def open(self) -> list[CheckpointInfo]:
        """What is there. A save that a dead process left half done is finished or cleared away first."""
        if self._known is None:
            if self.alone:
                self._notices += self.folder.repair()
            self._known = list(self.folder.list())
        return self._known

    def forget(self) -> None:
        """What is there has been moved or deleted: another run begins in the folder."""
        self._known = None

    def give_way(self) -> None:
        """The folder is another run's from now on: nothing is tried again there."""
        self._again = None
        self.background.take_failures()

    @property
    def known(self) -> Sequence[CheckpointInfo]:
        """All of them, the last one that was saved last, as far as this process knows."""
        return self._known or ()

    @property
    def newest(self) -> CheckpointInfo | None:
        """The last one that was saved, as far as this process knows."""
        return self.known[-1] if self.known else None

    @property
    def best(self) -> KeepBest | None:
        """What "best" means here: as the strategy says."""
        return best_rule(self.strategy)

    def note(self, text: str) -> None:
        """Have a person told at the next boundary; from any thread."""
        self._notices.append(text)

    def _raise_failure(self) -> None:
        for failure in self.background.take_failures():
            error = failure.error
            if isinstance(error, CheckpointError):
                if isinstance(error, MovedError) or isinstance(error.__cause__, OSError):
                    self._again = failure.job
                    self.ask()  # else it is the directory that was moved
                if _was_moved(error):  # and is back where it was
                    failure.job()
                    self._again = None
                    continue
                raise error
            raise CheckpointError(f"a checkpoint could not be written: {error!r}") from error

    # The writer --------------------------------------------------------------------------------------

    def _write(self, label: str, parts: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        known = self.open()
        sequence = 1 + max((info.sequence for info in known), default=0)
        before = next((info.kind for info in known if info.label == label), "auto")
        kind = max(before, about["kind"], key=_STANDING.index)
        info = self.folder.commit(label, parts, {**about, "kind": kind, "sequence": sequence})
        self._known = [other for other in known if other.label != label] + [info]
        self._saved.append(info)
        self._tell_what_is_lost(info)
        self._let_go(info)
        self.after()

    def _tell_what_is_lost(self, info: CheckpointInfo) -> None:
        """Once: later checkpoints lose the same."""
        if info.exact or self._told_what_is_lost:
            return
        self._told_what_is_lost = True
        self.note(
            f"checkpoint {info.label}: {self.folder.lost(info) or 'its format is not exact'}. Weights can be "
            "loaded from it, but training cannot go on from it; Hdf5Recorder() keeps every bit"
        )

    def _let_go(self, newest: CheckpointInfo) -> None:
        """Delete what the strategy does not keep; what another run in this folder left is not ours to
        judge, what a person saved is theirs, and the newest is never deleted."""
        assert self._known is not None
        mine = [info for info in self._known if info.run == newest.run and not info.damage]
        ended = sorted((info for info in mine if info.ends_epoch), key=lambda info: info.epoch)
        wanted = self.strategy.keep(ended)
        for info in mine:
            unwanted = info.kind == "auto" or (info.kind == "epoch" and info.label not in wanted)
            if unwanted and info.label != newest.label:
                self._delete(info)

    def _delete(self, info: CheckpointInfo) -> None:
        assert self._known is not None
        try:
            self.folder.delete(info)
        except StateError:
            pass  # somebody was faster
        except OSError as error:
            self.note(f"checkpoint {info.label} could not be deleted: {error}")
            return
        except DamagedError as error:  # no reason to stop a training that goes on from a newer one
            self.note(f"checkpoint {info.label} is not deleted, as it is not what was saved there: {error}")
        self._known = [other for other in self._known if other is not info]


def _was_moved(error: CheckpointError) -> bool:
    return isinstance(error, MovedError) or getattr(error.__cause__, "errno", None) == errno.ESTALE
