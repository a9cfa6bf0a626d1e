"""The process that a run was handed over to, as the run's directory tells of it.

A run that goes on without its kernel is steered through its socket as any other. This note says more: that it
was detached, who it is also before it listens (so that the directory is never free between the two
processes), and afterwards how it ended. A number alone would not do: another process may have it by then.
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
"""What the process prints: its renderer's lines, what steps print, and the traceback of what went wrong."""
MODULE = "notebook_learner.worker"
"""What such a process runs: a note that somebody wrote cannot have another one of the user's ended."""
_DRAFT = f".{NOTE}.new"
FILES = (NOTE, LOG, _DRAFT)
_LONGEST = 1 << 16
_SAME = 5.0
"""Seconds by which two processes may tell another one's start differently: they reckon from when the machine
was started, which a clock that is set right moves."""


@dataclass(frozen=True, slots=True)
class Detached:
    """A process that trains without a kernel, or did."""

    pid: int
    since: float
    """When it was started: with its number, nobody else."""
    host: str
    ended: str = ""
    """The status that it ended with; nothing while it lives, or where it was killed."""
    error: str = ""
    """What failed, where something did."""
    num_epochs: int = 0
    """Up to which epoch it trained at its end: that may have been set from elsewhere."""

    def is_alive(self) -> bool:
        """Whether it is there, as far as this machine can tell."""
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
        """Whether it has written down how it ended: then it writes nothing more there."""
        noted = noted_in(directory)
        return noted is not None and (noted.pid, noted.since) == (self.pid, self.since) and noted.ended != ""

    def note_in(self, directory: str | os.PathLike[str]) -> None:
        """Write it down for whoever comes to the directory."""
        note, data = _note(directory), json.dumps(asdict(self)).encode()
        draft = note.with_name(_DRAFT)
        files.unlink(draft)
        durable.write_new(draft, [data], len(data))
        files.rename(draft, note)

    def ends(self, directory: str | os.PathLike[str], status: str, error: str, num_epochs: int) -> None:
        """Write down how it ends."""
        with suppress(OSError):  # the directory may be gone, the disk full; experiment.log tells it as well
            replace(self, ended=status, error=error[: _LONGEST // 8], num_epochs=num_epochs).note_in(
                directory
            )

    def end(self, directory: str | os.PathLike[str], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Have it stop at the next step boundary, save exactly where it stands, and end; waits until it is
        killed, or has noted its end in the directory.

        By SIGTERM, and not through the run's socket: a signal comes to this very process, whoever listens
        there, and also to one that was told `.remote_control(False)`.

        Args:
            directory: of the run.
            meanwhile: done ten times a second; what it raises ends the waiting.
        """
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        while self.is_alive() and not self.has_ended(directory):
            meanwhile()
            time.sleep(0.1)


def _is_over(process: Any) -> bool:
    """Whether nothing of it is left but its exit status. Of one that was killed the first thread is a zombie
    while others are still ending, and till then its files and sockets are open."""
    return bool(process.status() == "zombie" and process.num_threads() <= 1)


def _may_be_one(process: Any) -> bool:
    """Whether it runs what a detached run does. One that was killed gives up its memory, and with that its
    command line, before its files and sockets: without a command line it is still there."""
    import psutil

    try:
        words = process.cmdline()
    except psutil.ZombieProcess:
        return True
    return not words or MODULE in words


def process_of(pid: int) -> Detached:
    """A process of this machine that lives."""
    import psutil

    return Detached(pid, psutil.Process(pid).create_time(), socket.gethostname())


def noted_in(directory: str | os.PathLike[str]) -> Detached | None:
    """What the directory tells of a process that its run was handed over to, alive or not."""
    try:
        with durable.opened(_note(directory)) as file:
            told = json.loads(file.read(0, min(file.size, _LONGEST)))
    except (OSError, ValueError, RecursionError, DamagedError):
        return None
    return _checked(told)


def detached_in(directory: str | os.PathLike[str]) -> Detached | None:
    """The other process that goes on with the run of a directory right now."""
    found = noted_in(directory)
    if found is None or found.pid == os.getpid() or found.ended:
        return None
    return found if found.is_alive() else None


def end_detached(directory: str | os.PathLike[str]) -> None:
    """Have the process that the run of a directory was handed over to save where it stands, and end."""
    found = detached_in(Path(directory))
    if found is not None:
        found.end(directory)


def forget_in(directory: str | os.PathLike[str]) -> None:
    """It never began there."""
    with suppress(OSError):
        files.unlink(_note(directory))


def _note(directory: str | os.PathLike[str]) -> RunPath:
    return RunLayout(directory).directory / NOTE


def _checked(told: Any) -> Detached | None:
    """A note that is ours; the file may come from anywhere."""
    if not isinstance(told, dict):
        return None
    kinds = {"pid": int, "since": float, "host": str, "ended": str, "error": str, "num_epochs": int}
    if {name: type(value) for name, value in told.items()} != kinds or told["pid"] < 2:
        return None
    return Detached(**told)
