"""Saves checkpoints in the background, one at a time, and deletes those that the strategy does not keep."""

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
"""The kind of a checkpoint that was saved twice at one place: one that the user saved stays the user's."""


class Void(Exception):
    """The state to write is not valid any more: it is not written, and the training thread makes it again."""


class Keeper:
    """Owns the checkpoint folder of a run while it trains.

    `save` returns at once; `check` raises, at a step boundary, the errors since then. There is at most one
    write at a time: a second save waits for the first, so the memory of one state is enough.
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
        """Called by `check`, in the thread that trains, with a message for the user."""
        self.announce = announce
        """Called in the same place, for each checkpoint that is on the disk."""
        self._saved: list[CheckpointInfo] = []
        self.ask: Job = lambda: None
        """Called before anything is written or deleted: raises if the folder is not this run's."""
        self.alone = True
        """Whether no other process can write in the folder: only then are pieces deleted."""
        self._known: list[CheckpointInfo] | None = None
        self._notices: list[str] = []
        self._told_what_is_lost = False
        self._again: Job | None = None
        """The save that failed because its directory, space or another thing was missing; it may return."""

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
            about: the other values of the commit file.
            before: called by the writer; it writes what must be on the disk with the checkpoint. Raises Void
                if there is nothing to write.
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
        """Raise the error of a failed write; if it was raised already, try the write again."""
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
        """Wait until all checkpoints are on the disk; raise the error of a failed write."""
        self.background.wait(JOB)
        self.check()

    def close(self) -> None:
        """Wait until the writer has nothing to do any more, including derived files."""
        self.background.wait()
        self.check()

    def open(self) -> list[CheckpointInfo]:
        """The checkpoints in the folder. A save of a killed process is finished or deleted first."""
        if self._known is None:
            if self.alone:
                self._notices += self.folder.repair()
            self._known = list(self.folder.list())
        return self._known

    def forget(self) -> None:
        """Start anew in the folder: its files were moved or deleted, and another run begins."""
        self._known = None

    def give_way(self) -> None:
        """Give up the folder: it belongs to another run from now on, so no failed write is tried again."""
        self._again = None
        self.background.take_failures()

    @property
    def known(self) -> Sequence[CheckpointInfo]:
        """All checkpoints that this process knows, in the order in which they were saved."""
        return self._known or ()

    @property
    def newest(self) -> CheckpointInfo | None:
        """The last checkpoint that was saved, as far as this process knows."""
        return self.known[-1] if self.known else None

    @property
    def best(self) -> KeepBest | None:
        """The rule for "best" here, from the strategy."""
        return best_rule(self.strategy)

    def note(self, text: str) -> None:
        """Show the user a message at the next step boundary; from any thread."""
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
        """Warn once: later checkpoints lose the same."""
        if info.exact or self._told_what_is_lost:
            return
        self._told_what_is_lost = True
        self.note(
            f"checkpoint {info.label}: {self.folder.lost(info) or 'its format is not exact'}. Weights can be "
            "loaded from it, but training cannot go on from it; Hdf5Recorder() keeps every bit"
        )

    def _let_go(self, newest: CheckpointInfo) -> None:
        """Delete what the strategy does not keep. Checkpoints of another run in this folder, those that the
        user saved, and the newest one are never deleted."""
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
            pass  # another process was faster
        except OSError as error:
            self.note(f"checkpoint {info.label} could not be deleted: {error}")
            return
        except DamagedError as error:  # the training has a newer checkpoint and need not stop
            self.note(f"checkpoint {info.label} is not deleted, as it is not what was saved there: {error}")
        self._known = [other for other in self._known if other is not info]


def _was_moved(error: CheckpointError) -> bool:
    return isinstance(error, MovedError) or getattr(error.__cause__, "errno", None) == errno.ESTALE
