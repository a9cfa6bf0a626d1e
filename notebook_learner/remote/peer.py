"""Who is at the other end of a Unix-domain socket, as the kernel tells it."""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass

_XUCRED = struct.Struct("IIh2x16I")  # macOS, FreeBSD: version, user, number of groups, groups


@dataclass(frozen=True, slots=True)
class Peer:
    """A process: its user, and its number where the system tells it (0 otherwise)."""

    uid: int
    pid: int = 0

    @property
    def may_steer(self) -> bool:
        """Whether it is the user who trains, or root, whom nobody can keep from it."""
        return self.uid in (os.geteuid(), 0)

    def __str__(self) -> str:
        return f"{_name_of(self.uid)} (pid {self.pid})" if self.pid else _name_of(self.uid)


def peer_of(connection: socket.socket) -> Peer | None:
    """The process that connected (or, for who connected, that listens); None where no system call tells.

    There the file's mode, which lets in its owner alone, is all that guards it.
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
    import pwd  # Unix alone has it, as it has these sockets

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container runs under numbers that no list has
        return f"user {uid}"
