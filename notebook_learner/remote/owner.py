"""Which process has a run's directory: a lock on the directory itself, and a note that names the process.

The lock is the kernel's (`flock`), on the directory's descriptor. It has no file that `git clean` or
`rsync --delete` could remove. It is the same lock through a bind mount, and it ends with the process. A
forked child has the same descriptor for a moment, and closes it before it does anything else. The note is
only for people: it names the process and its notebook, and says how far its training is.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import marimo_runs_an_app
from .detached import Detached
from .socket_place import NAME, Peer, SocketFolder, connected, held, is_ours, let_go, peer_of, supported

_PATIENCE = 1.0
"""Seconds in which a learner has to accept a connection: it does not have to answer."""


def other_process_in(directory: Path) -> str:
    """The other process that listens in a directory, in words; empty if no other process does.

    It cannot find a run with `.remote_control(False)`, or any run on a system without such sockets.
    """
    if not supported():
        return ""
    try:
        folder = SocketFolder(directory)
    except OSError:  # there is no such directory yet
        return ""
    try:
        connection = connected(folder, _PATIENCE)
    except (BlockingIOError, TimeoutError):
        return "another process"
    except PermissionError:
        return "a process of another user"
    except OSError:  # no process listens, or none ever did; a link is not followed
        return ""
    finally:
        folder.close()
    with connection:
        peer = peer_of(connection)
    if peer is not None and peer.pid == os.getpid():
        return ""
    return "another process" if peer is None else f"another process, of {peer},"


def clear_socket(directory: Path) -> None:
    """Remove the socket's file that a killed process left: it belongs to a run that is over."""
    if not supported():
        return
    with suppress(OSError):
        folder = SocketFolder(directory)
        if is_ours(folder):
            folder.remove_file()
        folder.close()


NOTE = "user.notebook_learner.owner"
"""The note's name: an attribute of the directory, not a file. So no tool lists, copies or deletes it, and it
moves with the directory."""
_LONGEST = 1000
"""How many characters of a notebook's path are kept: ext4 has 4 KiB for such notes."""
_SAME = 5.0
"""Seconds by which two processes may disagree about the start time of a third."""

Identity = tuple[int, int]
"""A directory's identity in the file system, even after it was moved: its device and inode."""


class DirectoryLock:
    """An open descriptor of a run's directory, with a lock that one process at a time can have.

    While it is open, no other directory gets its inode, so the identity can be trusted.

    >>> import tempfile
    >>> directory = tempfile.TemporaryDirectory()
    >>> mine, other = DirectoryLock(directory.name), DirectoryLock(directory.name)
    >>> mine.take(), other.take()
    (True, False)
    >>> mine.free()
    >>> other.take()
    True
    >>> mine.close(), other.close(), directory.cleanup()
    (None, None, None)
    """

    def __init__(self, path: str | os.PathLike[str], descriptor: int | None = None) -> None:
        self._folder = held(SocketFolder(path) if descriptor is None else SocketFolder(path, descriptor))
        self.identity: Identity = self._folder.identity
        self.taken = False
        self.works = True
        """False if the file system or the operating system has no locks."""
        self.why = ""
        """The system's error in that case."""

    def take(self) -> bool:
        """Take the directory for this process; False if another process has it. Without locks the directory
        is taken too, and `works` is False."""
        self.taken = self.taken or self._locked()
        return self.taken

    def _locked(self) -> bool:
        try:
            import fcntl

            fcntl.flock(self._folder.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except (ImportError, OSError) as error:  # Windows; ENOLCK, EOPNOTSUPP, EINVAL, ENOSYS
            self.works, self.why = False, getattr(error, "strerror", None) or str(error)
        return True

    @property
    def descriptor(self) -> int:
        """The descriptor. Another process that gets it has the lock too."""
        return self._folder.descriptor

    @property
    def deleted(self) -> bool:
        """Whether the directory was deleted."""
        return os.fstat(self._folder.descriptor).st_nlink == 0

    @property
    def where(self) -> str:
        """The directory's current path; empty if the system does not say it."""
        with suppress(OSError):
            return os.readlink(f"/proc/self/fd/{self._folder.descriptor}")
        return ""

    def free(self) -> None:
        """Free the lock. To close the descriptor is not enough, because a child may still hold a copy."""
        if self.taken and self.works:
            import fcntl

            with suppress(OSError):  # the file system has lost its locks
                fcntl.flock(self._folder.descriptor, fcntl.LOCK_UN)
        self.taken = False

    def close(self) -> None:
        """Free the lock, and close the descriptor."""
        if self._folder.is_open:
            self.free()
        let_go(self._folder)

    def leave(self) -> None:
        """Close the descriptor but keep the lock: from now on only the process that got a copy has it."""
        self.taken = False
        let_go(self._folder)

    # The note ----------------------------------------------------------------------------------------

    def note(self, owner: Owner) -> None:
        """Write the owner's note, if the file system keeps such notes."""
        with suppress(OSError, AttributeError):
            os.setxattr(self._folder.descriptor, NOTE, json.dumps(asdict(owner)).encode())

    def forget(self) -> None:
        """Remove the note: no process has the directory."""
        with suppress(OSError, AttributeError):
            os.removexattr(self._folder.descriptor, NOTE)


@contextmanager
def alone_in(directory: str | os.PathLike[str]) -> Iterator[bool]:
    """Whether no training has a directory; inside this context no training can begin there."""
    lock = DirectoryLock(directory)
    try:
        yield lock.take()
    finally:
        lock.close()


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that has a directory, from its note; a stranger may have written any part of it."""

    pid: int
    since: float
    """When it was started: together, start time and number identify one process."""
    host: str
    notebook: str = ""
    """The notebook whose kernel it is, if that is known."""
    status: str = ""
    """How far its training is."""

    def is_alive(self) -> bool:
        """Whether the process lives and is not about to end. A process on another machine counts as alive."""
        import psutil

        if self.host != socket.gethostname():
            return True
        try:
            process = psutil.Process(self.pid)
            # A killed process loses its memory, and with it its command line, before its files.
            return abs(process.create_time() - self.since) < _SAME and bool(process.cmdline())
        except psutil.Error:
            return False

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" on {self.host!r}"
        return f"process {self.pid}{where}{f' (notebook {self.notebook!r})' if self.notebook else ''}"


def this_process(status: str = "") -> Owner:
    """The owner's note for this process."""
    return Owner(os.getpid(), _since(os.getpid()), socket.gethostname(), _notebook(), status)


@cache
def _since(pid: int) -> float:
    import psutil

    return psutil.Process(pid).create_time()


def owner_in(directory: str | os.PathLike[str]) -> Owner | None:
    """The owner in a directory's note, alive or not; None without a note."""
    try:
        told = json.loads(os.getxattr(directory, NOTE))
    except (OSError, AttributeError, ValueError, RecursionError):
        return None
    return _checked(told)


def other_owner_in(directory: str | os.PathLike[str]) -> Owner | None:
    """Another process that has a directory right now, from its note, or None."""
    found = owner_in(directory)
    return found if found is not None and found.pid != os.getpid() and found.is_alive() else None


def locker_of(identity: Identity) -> Owner | None:
    """The process that has locked a directory that has no note, from Linux's list of locks."""
    import psutil

    device, inode = identity
    file = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            (pid,) = {int(line.split()[4]) for line in locks if " FLOCK " in line and line.split()[5] == file}
        process = psutil.Process(pid)
        notebook = process.environ().get("JPY_SESSION_NAME", "")
        return Owner(pid, process.create_time(), socket.gethostname(), notebook)
    except (OSError, ValueError, IndexError, psutil.Error):
        return None


def who_has(directory: str | os.PathLike[str], owner: Owner | None, detached: Detached | None) -> str:
    """The message why no other run may begin in a directory, and what to do."""
    here = repr(os.fspath(directory))
    if detached is not None:
        return _goes_on_in(detached, directory, here)
    who = "another process" if owner is None else f"another process, of {_peer(owner)},"
    stands = f"; it is {owner.status}" if owner is not None and owner.status else ""
    where = ""
    if owner is not None and owner.host != socket.gethostname():
        where = f" on the machine {owner.host!r}"
    if owner is not None and owner.notebook:
        where += f", in the notebook {owner.notebook!r}"
        end = "In that notebook press Stop or run learner.stop(), or restart its kernel"
    else:
        end = f"End it: learner.stop() there{_from_a_shell(directory, owner)}"
    return (
        f"{who} has the run in {here} open{where}{stands}. {end}; then repeat here what you did. Or give "
        "this learner another directory"
    )


def who_trains_here(directory: str | os.PathLike[str]) -> str:
    """The message why no other run may begin in the directory of a learner of this process that trains."""
    here, ctl = repr(os.fspath(directory)), f"`notebook-learner ctl {os.fspath(directory)}"
    if marimo_runs_an_app():
        return (
            f"the page of another visitor, or this page before it was loaded again, trains in {here} right "
            f"now. Artifacts({here}) in a cell shows it, and {ctl} pause` in a terminal pauses it. Then load "
            "this page again: with .resume() on the builder the run goes on here, and without it a new one "
            "begins. Or give each visitor another directory"
        )
    return (
        f"an earlier learner trains in {here} right now, in this process; stop it first (stop(), pause() or "
        f"{ctl} stop`), or give this one another directory"
    )


def _from_a_shell(directory: str | os.PathLike[str], owner: Owner | None) -> str:
    """How to end the run from a terminal; ctl needs the file that leads to the socket."""
    if os.path.lexists(os.path.join(directory, NAME)):
        return f", or `notebook-learner ctl {os.fspath(directory)} stop`"
    if owner is not None and owner.host == socket.gethostname():
        return f", or `kill {owner.pid}`, which ends that process"
    return ""


def _goes_on_in(detached: Detached, directory: str | os.PathLike[str], here: str) -> str:
    directory = os.fspath(directory)
    return (
        f"the run in {here} goes on in process {detached.pid}, to which it was handed over "
        f"(learner.detach()). `notebook-learner ctl {directory} status` tells how it stands, and "
        f"`notebook-learner ctl {directory} stop` has it save exactly where it stands, and end. So does "
        "learner.take_back() in the kernel that handed it over, and .resume(take_back=True) on the builder "
        "in another one, and both go on from there. Or give this learner another directory"
    )


def _peer(owner: Owner) -> Peer:
    try:
        return Peer(os.stat(f"/proc/{owner.pid}").st_uid, owner.pid)
    except OSError:
        return Peer(os.geteuid(), owner.pid)


def _notebook() -> str:
    """The notebook whose kernel this is, if Jupyter's server or VS Code has set it."""
    if told := os.environ.get("JPY_SESSION_NAME", ""):
        return told[-_LONGEST:]
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    names = getattr(shell, "user_ns", {})
    return str(names.get("__vsc_ipynb_file__") or names.get("__session__") or "")[-_LONGEST:]


def _checked(told: Any) -> Owner | None:
    """The note, if every value has the right type: the directory may come from anywhere."""
    if not isinstance(told, dict):
        return None
    kinds = {"pid": int, "since": float, "host": str, "notebook": str, "status": str}
    if {name: type(value) for name, value in told.items()} != kinds or told["pid"] < 2:
        return None
    return Owner(**told)
