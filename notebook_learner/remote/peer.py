"""The process at the other end of a Unix-domain socket, from the operating system's kernel."""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass

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
