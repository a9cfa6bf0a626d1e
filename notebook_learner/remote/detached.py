"""The process that a run was handed over to, from a note in the run's directory.

A run that goes on without its kernel is steered through its socket like any other. This note says more: that
the run was detached. It names the process even before the process listens, so that the directory is never
free between the two processes. Afterwards it says how the process ended. A process number alone is not
enough: another process may have it later.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import DamagedError
from ..store import durable, files
from ..store.layout import RunLayout
from ..store.run_folder import RunPath

NOTE = "detached.json"
LOG = "detached.log"
"""The file of the process's output: its renderer's lines, output of steps, and the traceback of an error."""
MODULE = "notebook_learner.worker"
"""The module that such a process runs. It is checked, so that a forged note cannot end another process."""
_DRAFT = f".{NOTE}.new"
FILES = (NOTE, LOG, _DRAFT)
_LONGEST = 1 << 16
_SAME = 5.0
"""Seconds by which two processes may disagree about the start time of a third: they compute it from the boot
time of the machine, which changes when the clock is corrected."""


@dataclass(frozen=True, slots=True)
class Detached:
    """A process that trains without a kernel, or that did."""

    pid: int
    since: float
    """When it was started: together, start time and number identify one process."""
    host: str
    ended: str = ""
    """The status with which it ended; None while it lives, or if it was killed."""
    error: str = ""
    """What failed, if something did."""
    num_epochs: int = 0
    """Its number of epochs at its end, which another process may have changed."""

    def is_alive(self) -> bool:
        """Whether the process lives, as far as this machine can see."""
        import psutil

        if self.host != socket.gethostname():
            return False
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.since) >= _SAME or _is_over(process):
                return False
            return _may_be_one(process)
        except psutil.Error:
            return False

    def has_ended(self, directory: str | os.PathLike[str]) -> bool:
        """Whether the process has noted how it ended: after that it writes nothing more there."""
        noted = noted_in(directory)
        return noted is not None and (noted.pid, noted.since) == (self.pid, self.since) and noted.ended != ""

    def note_in(self, directory: str | os.PathLike[str]) -> None:
        """Write the note into the directory, for other processes that use it."""
        note, data = _note(directory), json.dumps(asdict(self)).encode()
        draft = note.with_name(_DRAFT)
        files.unlink(draft)
        durable.write_new(draft, [data], len(data))
        files.rename(draft, note)

    def ends(self, directory: str | os.PathLike[str], status: str, error: str, num_epochs: int) -> None:
        """Note in the directory how the process ends."""
        with suppress(OSError):  # the directory may be gone, the disk full; experiment.log has it too
            replace(self, ended=status, error=error[: _LONGEST // 8], num_epochs=num_epochs).note_in(
                directory
            )

    def end(self, directory: str | os.PathLike[str], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Stop the process at its next step boundary, have it save its exact state, and wait for its end.

        The wait ends when the process is killed, or has noted its end in the directory. This uses SIGTERM and
        not the run's socket: a signal reaches this very process, even if another one listens at the socket,
        and even with `.remote_control(False)`.

        Args:
            directory: the run's directory.
            meanwhile: called ten times a second; an exception from it ends the wait.
        """
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        while self.is_alive() and not self.has_ended(directory):
            meanwhile()
            time.sleep(0.1)


def _is_over(process: Any) -> bool:
    """Whether only the exit status of a process is left. After a kill the first thread is a zombie while
    other threads are still ending; until they have ended, its files and sockets are open."""
    return bool(process.status() == "zombie" and process.num_threads() <= 1)


def _may_be_one(process: Any) -> bool:
    """Whether a process runs the module of a detached run. A killed process loses its memory, and with it its
    command line, before its files and sockets: so without a command line it still counts."""
    import psutil

    try:
        words = process.cmdline()
    except psutil.ZombieProcess:
        return True
    return not words or MODULE in words


def process_of(pid: int) -> Detached:
    """The note for a living process of this machine."""
    import psutil

    return Detached(pid, psutil.Process(pid).create_time(), socket.gethostname())


def noted_in(directory: str | os.PathLike[str]) -> Detached | None:
    """The directory's note about the process that goes on with its run, alive or not; None without a note."""
    try:
        with durable.opened(_note(directory)) as file:
            told = json.loads(file.read(0, min(file.size, _LONGEST)))
    except (OSError, ValueError, RecursionError, DamagedError):
        return None
    return _checked(told)


def detached_in(directory: str | os.PathLike[str]) -> Detached | None:
    """The other process that goes on with the run of a directory right now, or None."""
    found = noted_in(directory)
    if found is None or found.pid == os.getpid() or found.ended:
        return None
    return found if found.is_alive() else None


def end_detached(directory: str | os.PathLike[str]) -> None:
    """Have the process that goes on with the run of a directory save its exact state and end."""
    found = detached_in(Path(directory))
    if found is not None:
        found.end(directory)


def forget_in(directory: str | os.PathLike[str]) -> None:
    """Remove the note: the process never began there."""
    with suppress(OSError):
        files.unlink(_note(directory))


def _note(directory: str | os.PathLike[str]) -> RunPath:
    return RunLayout(directory).directory / NOTE


def _checked(told: Any) -> Detached | None:
    """The note, if every value has the right type: the file may come from anywhere."""
    if not isinstance(told, dict):
        return None
    kinds = {"pid": int, "since": float, "host": str, "ended": str, "error": str, "num_epochs": int}
    if {name: type(value) for name, value in told.items()} != kinds or told["pid"] < 2:
        return None
    return Detached(**told)
