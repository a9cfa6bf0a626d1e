"""How ranks speak: whole messages, in order, between this process and one other.

On this machine only, over a Unix socket in a folder that only this user can open (on Windows over a pipe),
and only with whoever knows the key. A message is a pickle: both ends are this user's own processes.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import shutil
import tempfile
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple

Address = Any
"""A path, or a host and a port: whatever a Listener takes."""


class Door(NamedTuple):
    """Where rank 0 expects others of its machine, and the key by which it knows them."""

    address: Address
    key: str


class Gone(Exception):
    """The other end is not there any more."""


class Channel:
    """One end of a connection."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message whose values plain pickle takes."""
        self.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def send_bytes(self, message: bytes) -> None:
        """Send a message that was pickled already."""
        try:
            with self._sending:
                self._connection.send_bytes(message)
        except (OSError, ValueError) as error:
            raise Gone(str(error)) from error

    def receive(self) -> Any:
        """Wait for the next message."""
        return pickle.loads(self.receive_bytes())

    def receive_bytes(self) -> bytes:
        """The next message as it came."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise Gone(str(error)) from error

    def waits(self, seconds: float) -> bool:
        """Whether a message, or the end, is there within so many seconds."""
        try:
            return self._connection.poll(seconds)
        except (EOFError, OSError):
            return True

    def is_over(self) -> bool:
        """Whether the other end is known to be gone; on this machine only whoever speaks hears of it."""
        return bool(getattr(self._connection, "over", False))

    def close(self) -> None:
        """Let go; the other end hears of it."""
        self._connection.close()


class Meeting:
    """Where other processes come to speak with this one."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="notebook-learner-")  # its mode is 0700
        self.key = secrets.token_hex(32)
        family = "AF_PIPE" if os.name == "nt" else "AF_UNIX"
        place = None if os.name == "nt" else os.path.join(self.folder, "ranks")
        self._listener = Listener(place, family, backlog=64, authkey=self.key.encode())
        self._come: queue.SimpleQueue[Channel] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="notebook_learner ranks", daemon=True).start()

    def door(self, rank: int) -> Door:
        """Where any of them is to come, and what it has to know."""
        return Door(self._listener.address, self.key)

    def next(self, seconds: float) -> Channel | None:
        """Whoever comes within so many seconds."""
        try:
            return self._come.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Nobody is expected any more."""
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _listen(self) -> None:
        while True:
            try:
                self._come.put(Channel(self._listener.accept()))
            except AuthenticationError:
                continue  # somebody without the key
            except (OSError, EOFError):
                return


def come_to(door: Door) -> Channel:
    """Speak with the process that expects others there."""
    return Channel(Client(door.address, authkey=door.key.encode()))
