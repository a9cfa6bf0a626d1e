"""The socket's file in the run's directory: made for its owner alone, found again, and taken away.

Only the process that has the directory (`owner`) makes it, in place of one that lies there.

Its mode is 0600 before anybody can connect: on Linux from its first moment, as the mode that a socket has
before `bind` is its file's (net/unix/af_unix.c, unix_bind_bsd); elsewhere before `listen`.

A socket's address may have 108 bytes (104 on macOS), a directory's path 4096. So on Linux the address is
/proc/self/fd/<directory>/control.sock, which also leads to a directory that was moved.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from contextlib import suppress
from typing import Any

from .inherited import held, let_go

NAME = "control.sock"
OWNER_ONLY = 0o600
WAITING = 16
"""Connections that may wait to be taken."""
_LONGEST_PATH = 100
_UNREADY = f".{NAME}.new"
_FILES = "/proc/self/fd"


class OccupiedError(Exception):
    """The socket's place is taken, by what is not ours to remove."""


class Folder:
    """An open directory, wherever it is moved."""

    def __init__(self, path: str | os.PathLike[str], descriptor: int | None = None) -> None:
        self.path = os.path.abspath(path)
        if descriptor is None:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.descriptor = descriptor
        self.is_open = True

    @property
    def identity(self) -> tuple[int, int]:
        """The same for two that are the same directory."""
        info = os.fstat(self.descriptor)
        return info.st_dev, info.st_ino

    @property
    def address(self) -> str:
        """Where its socket is connected to."""
        return self.address_of(NAME)

    def address_of(self, name: str) -> str:
        """Of a socket in it."""
        if os.path.isdir(_FILES):
            return f"{_FILES}/{self.descriptor}/{name}"
        path = os.path.join(self.path, name)
        shortest = min(path, os.path.relpath(path), key=len)
        if len(os.fsencode(shortest)) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, "the directory's path is too long for a socket")
        return shortest

    def file(self, name: str = NAME) -> os.stat_result | None:
        """What has this name there, the socket's by default; a link is not followed."""
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def remove_file(self, name: str = NAME) -> None:
        """Take it away; one that is not there, or a directory that has gone, is no mistake."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def close(self) -> None:
        """Give the descriptor back, once."""
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)


class Door:
    """A listening socket and its file."""

    def __init__(self, folder: Folder) -> None:
        """Raises OccupiedError, or OSError where the file system takes no sockets."""
        self.folder = folder
        self._process = os.getpid()
        _require_room(folder)
        self.socket = held(_listening(folder))
        self._file = _identity(folder.file())

    @property
    def stands(self) -> bool:
        """Whether its file is where it was made."""
        return self._file is not None and _identity(self.folder.file()) == self._file

    def remove_file(self) -> None:
        """Nobody finds the way any more. What lies there and is another's stays."""
        if os.getpid() != self._process:  # a child has inherited this object, but not the door
            return
        with suppress(OSError):
            if self.stands:
                self.folder.remove_file()

    def close(self) -> None:
        """Give the sockets back."""
        let_go(self.socket)
        let_go(self.folder)


def connected(folder: Folder, seconds: float | None = None) -> socket.socket:
    """A connection to the process that listens in a directory."""
    connection = _unix_socket()
    connection.settimeout(seconds)
    until = None if seconds is None else time.monotonic() + seconds
    try:
        while True:
            try:
                connection.connect(folder.address)
            except (
                BlockingIOError
            ):  # with a time limit, Linux does not wait for a place in the listener's row
                if until is None or time.monotonic() > until:
                    raise
                time.sleep(0.01)
            else:
                return connection
    except BaseException:
        connection.close()
        raise


def _unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _listening(folder: Folder) -> socket.socket:
    listener = _unix_socket()
    try:
        with suppress(OSError):  # Linux; elsewhere a socket has no mode, and the file's is put right below
            os.fchmod(listener.fileno(), OWNER_ONLY)
        # Under a name of its own until it listens: who comes between would find that nobody does.
        folder.remove_file(_UNREADY)
        listener.bind(folder.address_of(_UNREADY))
        made = folder.file(_UNREADY)
        if made is not None and stat.S_IMODE(made.st_mode) != OWNER_ONLY:
            os.chmod(_UNREADY, OWNER_ONLY, dir_fd=folder.descriptor)
        listener.listen(WAITING)
        os.rename(_UNREADY, NAME, src_dir_fd=folder.descriptor, dst_dir_fd=folder.descriptor)
    except BaseException:
        listener.close()
        raise
    return listener


def _require_room(folder: Folder) -> None:
    """Raise where something lies there that is not ours to replace. A socket of our user's is: of a process
    that was killed, or of a learner that is over, and has let go of the directory."""
    there = folder.file()
    if there is None:
        return
    if not stat.S_ISSOCK(there.st_mode):
        raise OccupiedError(f"{NAME} is there already and is no socket; remove it")
    if there.st_uid != os.geteuid() and os.geteuid() != 0:
        raise OccupiedError(f"{NAME} belongs to another user")


def _identity(info: os.stat_result | None) -> tuple[int, int] | None:
    return None if info is None else (info.st_dev, info.st_ino)


def supported() -> bool:
    """Whether this system has Unix-domain sockets, and Python knows them."""
    family: Any = getattr(socket, "AF_UNIX", None)
    return family is not None and os.name == "posix"
