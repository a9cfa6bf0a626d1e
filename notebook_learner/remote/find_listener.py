"""Finds the process that listens in a directory, before a run begins on a file system without locks."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from .peer import peer_of
from .socket_place import SocketFolder, connected, is_ours, supported

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
