"""Makes, finds and removes the socket of a run, which only the run's owner can use.

Only the process that has the directory (`owner`) makes the socket. The socket is in the user's own folder
below the system's temporary folder (/tmp/notebook_learner-1000, mode 0700). The run's directory holds a plain
file, `control.sock`, that says where. So a directory can be copied while its run trains: a socket has no
contents that `shutil.copytree` or a program that syncs could copy.

The socket's name is the identity of the run's directory in the file system. So a socket is still found after
its directory was moved, and the file in a copy leads nowhere. A person who forges that file can name no other
socket of the reader.

The socket's mode is 0600 before any process can connect. On Linux it is so from the first moment: the mode of
a socket before `bind` becomes its file's mode (net/unix/af_unix.c, unix_bind_bsd). Elsewhere it is set before
`listen`.

A socket's address may have 108 bytes (104 on macOS), a directory's path 4096. So on Linux the address is
/proc/self/fd/<folder>/<name>.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ..errors import enough_descriptors


class Closable(Protocol):
    """A socket, or anything else that can be closed."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

_held: set[Closable] = set()
"""Each change of this set is one call, so a fork finds it consistent without a lock."""


def held(thing: T) -> T:
    """Return a thing, and close it in every child that is forked while it is held."""
    _held.add(thing)
    return thing


def let_go(thing: Closable) -> None:
    """Close a held thing in this process."""
    _held.discard(thing)
    thing.close()


def _in_child() -> None:
    for thing in list(_held):
        thing.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


_XUCRED = struct.Struct("IIh2x16I")  # macOS, FreeBSD: version, user, number of groups, groups


@dataclass(frozen=True, slots=True)
class Peer:
    """A process: its user, and its number if the system reports it (0 otherwise)."""

    uid: int
    pid: int = 0

    @property
    def may_steer(self) -> bool:
        """Whether its user is the one who trains, or root, which no check can keep out."""
        return self.uid in (os.geteuid(), 0)

    def __str__(self) -> str:
        return f"{_name_of(self.uid)} (pid {self.pid})" if self.pid else _name_of(self.uid)


def peer_of(connection: socket.socket) -> Peer | None:
    """The process at the other end of a connection; None if no system call reports it.

    Without such a call only the socket's mode protects it: only its owner can connect.
    """
    if sys.platform == "linux":
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("iII", data)
        return Peer(uid, pid)
    credentials = getattr(socket, "LOCAL_PEERCRED", None)
    if credentials is None:
        return None
    data = connection.getsockopt(0, credentials, _XUCRED.size)
    return Peer(struct.unpack_from("II", data)[1])


def _name_of(uid: int) -> str:
    import pwd  # only Unix has it, and these sockets

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # in a container a user's number may have no name
        return f"user {uid}"


NAME = "control.sock"
OWNER_ONLY = 0o600
WAITING = 16
"""How many connections may wait until the server accepts them."""
_LONGEST_PATH = 100
_LONGEST_NOTE = 1 << 13
_FILES = "/proc/self/fd"


class OccupiedError(Exception):
    """Another file is in the socket's place, and this process may not remove it."""


class UntrustedError(PermissionError):
    """The file leads to a folder into which another user may put sockets."""


class SocketFolder:
    """An open directory, which stays the same one when it is moved."""

    def __init__(
        self, path: str | os.PathLike[str], descriptor: int | None = None, *, follow: bool = True
    ) -> None:
        self.path = os.path.abspath(path)
        if descriptor is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            try:
                descriptor = os.open(self.path, flags if follow else flags | os.O_NOFOLLOW)
            except OSError as error:
                raise enough_descriptors(error, self.path) from None
        self.descriptor = descriptor
        self.is_open = True

    @property
    def identity(self) -> tuple[int, int]:
        """The directory's identity: two descriptors of one directory have the same."""
        info = os.fstat(self.descriptor)
        return info.st_dev, info.st_ino

    def address_of(self, name: str) -> str:
        """The address of a socket in this directory."""
        if os.path.isdir(_FILES):
            return f"{_FILES}/{self.descriptor}/{name}"
        path = os.path.join(self.path, name)
        shortest = min(path, os.path.relpath(path), key=len)
        if len(os.fsencode(shortest)) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, "the directory's path is too long for a socket")
        return shortest

    def file(self, name: str = NAME) -> os.stat_result | None:
        """The status of the file with this name, or None; a link is not followed."""
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        return None

    def remove_file(self, name: str = NAME) -> None:
        """Remove a file; a missing file or directory is not an error."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def put_in_place(self, name: str, new: str) -> None:
        """Rename a file in this directory, and replace a file that has the new name."""
        os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)


class SocketDoor:
    """A listening socket, and the file in the run's directory that leads to it."""

    def __init__(self, folder: SocketFolder) -> None:
        """Raises OccupiedError, or OSError if the file system allows no files or no sockets."""
        self.folder = folder
        self._process = os.getpid()
        _require_room(folder)
        with ExitStack() as undo:
            self._sockets = held(_own_folder())
            undo.callback(let_go, self._sockets)
            self._name = _name_for(folder)
            self.socket = held(_listening(self._sockets, self._name))
            undo.callback(let_go, self.socket)
            self._made = _identity(self._sockets.file(self._name))
            undo.callback(self._sockets.remove_file, self._name)
            _note(folder, os.path.join(self._sockets.path, self._name))
            undo.pop_all()
        self._file = _identity(folder.file())

    @property
    def stands(self) -> bool:
        """Whether the file and the socket are still where they were made."""
        return self._has_file and self._has_socket

    @property
    def _has_file(self) -> bool:
        return self._file is not None and _identity(self.folder.file()) == self._file

    @property
    def _has_socket(self) -> bool:
        return self._made is not None and _identity(self._sockets.file(self._name)) == self._made

    def remove_file(self) -> None:
        """Remove the file and the socket, but no file that another process made there."""
        if os.getpid() != self._process:  # a child inherits this object, but must not remove the socket
            return
        with suppress(OSError):
            if self._has_file:
                self.folder.remove_file()
        with suppress(OSError):
            if self._has_socket:
                self._sockets.remove_file(self._name)

    def close(self) -> None:
        """Close the descriptors."""
        for each in (self.socket, self._sockets, self.folder):
            let_go(each)


def connected(folder: SocketFolder, seconds: float | None = None) -> socket.socket:
    """A connection to the process that listens for the run of a directory.

    Raises:
        UntrustedError: another user may have put the socket there.
        OSError: no process listens, or this user may not connect.
    """
    until = None if seconds is None else time.monotonic() + seconds
    with _place_of(folder) as (where, name), ExitStack() as undo:
        connection = undo.enter_context(_unix_socket())
        connection.settimeout(seconds)
        while True:
            try:
                connection.connect(where.address_of(name))
            except BlockingIOError:  # with a time limit, Linux does not wait for a place in the queue
                if until is None or time.monotonic() > until:
                    raise
                time.sleep(0.01)
            else:
                undo.pop_all()
                return connection


def trusted_by(folder: SocketFolder) -> set[int]:
    """The users whose answers are trusted for the run of a directory."""
    trusted = {os.geteuid(), 0}
    if os.geteuid() == 0:  # root steers the runs of all users
        trusted.add(os.fstat(folder.descriptor).st_uid)
    return trusted


def is_ours(folder: SocketFolder) -> bool:
    """Whether the file there leads to a socket, or is a socket of an earlier release. It may be of a process
    that was killed, of a learner that has ended, or of the run that was copied."""
    there = folder.file()
    return there is not None and (stat.S_ISSOCK(there.st_mode) or _noted(folder) is not None)


def supported() -> bool:
    """Whether this system and its Python have Unix-domain sockets."""
    family: Any = getattr(socket, "AF_UNIX", None)
    return family is not None and os.name == "posix"


# The socket ------------------------------------------------------------------------------------------


def _unix_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _name_for(folder: SocketFolder) -> str:
    device, inode = folder.identity
    return f"{device:x}-{inode:x}.sock"


def _own_folder() -> SocketFolder:
    """The folder of this user's sockets. It is not XDG_RUNTIME_DIR: a run goes on when the user logs out."""
    path = os.path.join(tempfile.gettempdir(), f"notebook_learner-{os.geteuid()}")
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = SocketFolder(path, follow=False)
    info = os.fstat(folder.descriptor)
    if info.st_uid != os.geteuid() or _lets_others_in(info):
        folder.close()
        raise OccupiedError(
            f"{path!r}, where its socket would lie, is another user's or lets others in; remove that folder, "
            "or set TMPDIR to one of your own before Python starts"
        )
    return folder


def _lets_others_in(info: os.stat_result) -> bool:
    return stat.S_IMODE(info.st_mode) & 0o077 != 0


def _listening(folder: SocketFolder, name: str) -> socket.socket:
    listener, unready = _unix_socket(), f"{name}.new"
    try:
        with suppress(OSError):  # Linux; elsewhere a socket has no mode, and the file's mode is set below
            os.fchmod(listener.fileno(), OWNER_ONLY)
        # Use a temporary name until it listens: a client that comes earlier would find no listener.
        folder.remove_file(unready)
        listener.bind(folder.address_of(unready))
        made = folder.file(unready)
        if made is not None and stat.S_IMODE(made.st_mode) != OWNER_ONLY:
            os.chmod(unready, OWNER_ONLY, dir_fd=folder.descriptor)
        listener.listen(WAITING)
        folder.put_in_place(unready, name)
    except BaseException:
        listener.close()
        raise
    return listener


# The file that leads to it ---------------------------------------------------------------------------


def _note(folder: SocketFolder, path: str) -> None:
    """Write the file that says where the socket is; other processes see it only complete."""
    draft = f".{NAME}.new"
    folder.remove_file(draft)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(draft, flags, 0o666, dir_fd=folder.descriptor)
    try:
        os.write(descriptor, json.dumps({"socket": path}).encode() + b"\n")
    finally:
        os.close(descriptor)
    folder.put_in_place(draft, NAME)


def _noted(folder: SocketFolder) -> str | None:
    """The path in the file, or None if it is not this package's file. No link is followed, no pipe read."""
    try:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(NAME, flags, dir_fd=folder.descriptor)
    except PermissionError:
        raise
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        told = json.loads(os.read(descriptor, _LONGEST_NOTE))
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    path = told.get("socket") if isinstance(told, dict) and len(told) == 1 else None
    return path if isinstance(path, str) and os.path.isabs(path) and "\0" not in path else None


@contextmanager
def _place_of(folder: SocketFolder) -> Iterator[tuple[SocketFolder, str]]:
    """The folder that holds the socket, and the socket's name there."""
    there = folder.file()
    if there is not None and stat.S_ISSOCK(there.st_mode):  # of an earlier release
        yield folder, NAME
        return
    path = _noted(folder)
    if path is None or os.path.basename(path) != _name_for(folder):
        raise FileNotFoundError(errno.ENOENT, "no socket of this directory is noted there", folder.path)
    sockets = SocketFolder(os.path.dirname(path), follow=False)
    try:
        info = os.fstat(sockets.descriptor)
        if info.st_uid not in trusted_by(folder) or _lets_others_in(info):
            raise UntrustedError(errno.EACCES, "another user may put sockets there", sockets.path)
        yield sockets, os.path.basename(path)
    finally:
        sockets.close()


def _require_room(folder: SocketFolder) -> None:
    """Raise if a file is in the place that this process may not replace."""
    there = folder.file()
    if there is None:
        return
    if not is_ours(folder):
        raise OccupiedError(f"{NAME} is there already and is no socket; remove it")
    if there.st_uid != os.geteuid() and os.geteuid() != 0:
        raise OccupiedError(f"{NAME} belongs to another user")


def _identity(info: os.stat_result | None) -> tuple[int, int] | None:
    return None if info is None else (info.st_dev, info.st_ino)
