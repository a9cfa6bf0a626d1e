"""How ranks communicate on one machine: whole messages, in order, between this process and one other.

Messages go over a Unix socket in a folder that only this user can open (on Windows over a pipe), and only to
a process that knows the key. A message is a pickle: both ends are this user's own processes.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from typing import Any, NamedTuple

_PATIENCE = 30.0
"""Seconds in which a guest has to prove that it knows the key. A rank on a busy machine needs one or two."""
GUEST = "notebook_learner guest of ranks"
"""The name of a thread that checks a guest's key."""

Address = Any
"""An address that a Listener takes: a path, or a host and a port."""


class RankDoor(NamedTuple):
    """The address where rank 0 expects ranks of its machine, and the key that they have to know."""

    address: Address
    key: str


class Gone(Exception):
    """The other end has closed the connection or has died."""


class Channel:
    """One end of a connection."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message; plain pickle has to be able to pickle its values."""
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
        """Wait for the next message, and return it still pickled."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise Gone(str(error)) from error

    def waits(self, seconds: float) -> bool:
        """Whether a message, or the end of the connection, arrives within so many seconds."""
        try:
            return self._connection.poll(seconds)
        except (EOFError, OSError):
            return True

    def is_over(self) -> bool:
        """Whether the other end is known to be gone; on one machine only sending or receiving shows it."""
        return bool(getattr(self._connection, "over", False))

    def close(self) -> None:
        """Close the connection; the other end notices."""
        self._connection.close()


class Meeting:
    """Listens for other processes that connect to this one."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="notebook-learner-")  # its mode is 0700
        self.key = secrets.token_hex(32)
        family = "AF_PIPE" if os.name == "nt" else "AF_UNIX"
        place = None if os.name == "nt" else os.path.join(self.folder, "ranks")
        self._listener = Listener(place, family, backlog=64)
        self._come: queue.SimpleQueue[Channel] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._guests: set[_Guest] = set()
        """Guests that have not yet proved that they know the key."""
        threading.Thread(target=self._listen, name="notebook_learner ranks", daemon=True).start()

    def door(self, rank: int) -> RankDoor:
        """The address and the key for a rank; they are the same for all ranks."""
        return RankDoor(self._listener.address, self.key)

    def next(self, seconds: float) -> Channel | None:
        """The next process that connects within so many seconds, or None."""
        try:
            return self._come.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        _wake(self._listener.address)
        self._listener.close()
        for guest in tuple(self._guests):
            guest.hang_up()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _listen(self) -> None:
        """Accept every guest. Another thread waits for what the guest sends."""
        while not self._closed.is_set():
            try:
                guest = _Guest(self._listener.accept())
            except (OSError, EOFError):  # the guest closed at once, or this process has no descriptor left
                self._closed.wait(0.05)
                continue
            try:
                threading.Thread(target=self._let_in, args=(guest,), name=GUEST, daemon=True).start()
            except RuntimeError:  # no thread is left
                guest.connection.close()
                guest.forget()

    def _let_in(self, guest: _Guest) -> None:
        """Let a guest in if it proves in time that it knows the key; otherwise close its connection."""
        self._guests.add(guest)
        limit = threading.Timer(0.0 if self._closed.is_set() else _PATIENCE, guest.hang_up)
        limit.daemon = True
        try:
            limit.start()
            deliver_challenge(guest.connection, self.key.encode())
            answer_challenge(guest.connection, self.key.encode())
        except (AuthenticationError, AssertionError, EOFError, OSError, RuntimeError, ValueError):
            guest.connection.close()
        else:
            self._come.put(Channel(guest.connection))
        finally:
            limit.cancel()
            self._guests.discard(guest)
            guest.forget()


class _Guest:
    """A connection that has not yet proved that it knows the key."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        """Closes when the last reference to it is gone."""
        # A separate descriptor: closing a connection wakes no thread that reads from it, and another file
        # may have its number by then.
        self._end = None if os.name == "nt" else socket.socket(fileno=os.dup(connection.fileno()))

    def hang_up(self) -> None:
        """End the connection for the thread that waits for the guest's messages."""
        with suppress(OSError):  # it is over already
            if self._end is None:
                self.connection.close()
            else:
                self._end.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        """Close the descriptor that `hang_up` uses."""
        if self._end is not None:
            self._end.close()


def _wake(address: Address) -> None:
    """Wake the thread that accepts connections: closing its listener does not wake it."""
    if os.name != "nt":
        with suppress(OSError), socket.socket(socket.AF_UNIX) as passer_by:
            passer_by.setblocking(False)
            passer_by.connect(address)


def come_to(door: RankDoor) -> Channel:
    """Connect to the process that listens there."""
    return Channel(Client(door.address, authkey=door.key.encode()))
