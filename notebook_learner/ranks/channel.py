"""How ranks communicate: whole messages, in order; encrypted if some are on other machines."""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from time import monotonic
from typing import Any, NamedTuple

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

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


_SILENT = 5000
"""Milliseconds after which rank 0 gives up a rank that does not even answer a ping."""
_SILENT_HEAD = 60_000
"""The same for rank 0: a notebook's machine may be busy, or asleep for a moment."""
_END = b""
"""Says that a side leaves, and answers that. ZeroMQ now and then loses what was sent just before a close, in
spite of a linger: one of 500 last messages on a busy machine. A message is pickled, so it is not empty."""
_COME = 60.0
"""Seconds that a rank tries to reach rank 0."""
_LINGER = 2000
"""Milliseconds in which the other side can take the last messages."""
_HEARD = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)


class EncryptedDoor(NamedTuple):
    """The address where rank 0 expects one rank, and the keys with which they recognise each other."""

    url: str
    server: bytes
    public: bytes
    secret: bytes


class Link:
    """One end of a connection; a Channel uses it like a Connection of multiprocessing."""

    def __init__(
        self, end: zmq.Socket[bytes], url: str | None = None, lost: Callable[[], None] | None = None
    ) -> None:
        """A rank's end connects to an address; `lost` is called if the connection to rank 0 is lost later."""
        self._end, self._tell_lost = end, lost
        self._come: deque[bytes] = deque()
        self._leaving: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._news = threading.Condition()
        self.up = self.over = False
        self._connections: set[int] = set()
        """On rank 0: the rank's connection, and connections that have a moment to prove their key."""
        self._closing = False
        self._until: float | None = None
        """When this side closes at the latest, since it said that it leaves."""
        self._other_left = False
        self._is_guest = url is not None
        self._bell, self._rung = socket.socketpair()
        self._bell.setblocking(False)
        self._monitor = end.get_monitor_socket(_HEARD)
        if url is not None:
            end.connect(url)  # after the monitor is set up: the connection may be refused at once
        self._thread = threading.Thread(target=self._carry, name="notebook_learner link", daemon=True)
        self._thread.start()

    def send_bytes(self, message: bytes) -> None:
        """Queue a message for sending, without waiting."""
        if self.over:
            raise BrokenPipeError("the other end is gone")
        self._leaving.put(message)
        self._ring()

    def recv_bytes(self) -> bytes:
        """Wait for the next message."""
        with self._news:
            self._news.wait_for(lambda: self._come or self.over)
            if not self._come:
                raise EOFError("the other end is gone")
            return self._come.popleft()

    def poll(self, seconds: float) -> bool:
        """Whether a message, or the end of the connection, arrives within so many seconds."""
        with self._news:
            return bool(self._news.wait_for(lambda: self._come or self.over, seconds))

    def close(self) -> None:
        """Close the connection; messages that are queued can still be sent for a moment."""
        self._closing = True
        self._ring()

    def join(self) -> None:
        """Wait until the thread that carries messages has ended."""
        self._thread.join()

    def wait_up(self, seconds: float) -> bool:
        """Whether both ends have proved their keys within so many seconds."""
        with self._news:
            self._news.wait_for(lambda: self.up or self.over, seconds)
            return self.up and not self.over

    def _ring(self) -> None:
        with suppress(OSError):  # it has a signal already, or the other side is closed
            self._bell.send(b"!")

    def _carry(self) -> None:
        poller = zmq.Poller()
        for each in (self._end, self._monitor, self._rung):
            poller.register(each, zmq.POLLIN)
        while not self.over:
            ready = dict(poller.poll(self._rest()))
            if self._rung.fileno() in ready:
                self._rung.recv(4096)
                self._send_all()
            self._take_all()
            if self._monitor in ready:
                self._hear_of_the_other_end()
            if self._closing and not self._leaves():
                break
        self._take_all()
        with self._news:
            self.over = True
            self._news.notify_all()
        self._end.disable_monitor()
        self._monitor.close()
        self._end.close(linger=_LINGER)
        if self._is_guest:
            self._end.context.term()  # this end has its own context, with nothing else in it
        self._bell.close()
        self._rung.close()
        if self._tell_lost is not None and self.up and not self._closing:
            self._tell_lost()

    def _leaves(self) -> bool:
        """At the end of this side: whether the other one may still have to take what was sent."""
        if self._until is None:
            self._until = monotonic() + _LINGER / 1000
            self._leaving.put(_END)
            self._send_all()
        return self.up and not self._other_left and monotonic() < self._until

    def _rest(self) -> int | None:
        """Milliseconds for which this side still waits; None if it does not leave."""
        return None if self._until is None else max(0, int(1000 * (self._until - monotonic())) + 1)

    def _send_all(self) -> None:
        with suppress(queue.Empty):
            while True:
                with suppress(zmq.Again):  # the other end is gone; the monitor reports that in a moment
                    self._end.send(self._leaving.get_nowait(), zmq.NOBLOCK, copy=False)

    def _take_all(self) -> None:
        come = []
        with suppress(zmq.Again):
            while True:
                come.append(self._end.recv(zmq.NOBLOCK))
        if come:
            with self._news:
                self._come.extend(message for message in come if message != _END)
                self._news.notify_all()
        if _END in come and not self._other_left:
            self._other_left = self.over = True
            if self._until is None:
                self._leaving.put(_END)
                self._send_all()

    def _hear_of_the_other_end(self) -> None:
        with suppress(zmq.Again):
            while True:
                told = recv_monitor_message(self._monitor, zmq.NOBLOCK)
                with self._news:
                    match told["event"]:
                        case zmq.EVENT_ACCEPTED:
                            self._connections.add(told["value"])
                        case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                            self.up = True
                        case zmq.EVENT_DISCONNECTED if not self._is_guest:
                            self._connections.discard(told["value"])
                            self.over |= self.up and not self._connections
                        case _:  # the only one failed or was refused; on rank 0 it was another process
                            self.over |= self._is_guest
                    self._news.notify_all()


class Doors:
    """Listens for ranks on other machines: one address for each."""

    def __init__(self, address: str, ranks: int) -> None:
        self._context = zmq.Context()
        self._public, self._secret = zmq.curve_keypair()
        self._guest = zmq.curve_keypair()
        self._guard = ThreadAuthenticator(self._context)
        self._guard.start()
        self._guard.configure_curve_callback(credentials_provider=_OnlyGuests(self._guest[0]))
        self._links: list[Link] = []
        self._doors: list[EncryptedDoor] = []
        for _ in range(ranks):
            end = _socket(self._context, _SILENT)
            end.curve_server = True
            end.curve_publickey, end.curve_secretkey = self._public, self._secret
            port = end.bind_to_random_port(f"tcp://{_in_url(address)}")
            self._doors.append(EncryptedDoor(f"tcp://{_in_url(address)}:{port}", self._public, *self._guest))
            self._links.append(Link(end))
        self._awaited = list(self._links)

    def door(self, rank: int) -> EncryptedDoor:
        """The address and the keys for this rank."""
        return self._doors[rank - 1]

    def next(self, seconds: float) -> Channel | None:
        """The next rank that connects within so many seconds, or None."""
        for link in self._awaited:
            if link.poll(seconds / len(self._awaited)):
                self._awaited.remove(link)
                return Channel(link)  # type: ignore[arg-type]  # it has the methods that a Channel uses
        return None

    def close(self) -> None:
        """Stop listening."""
        for link in self._links:
            link.close()
        threading.Thread(target=self._shut, name="notebook_learner doors", daemon=True).start()

    def _shut(self) -> None:
        """Close the rest. It runs in a thread, because it waits for the last messages."""
        for link in self._links:
            link.join()
        self._guard.stop()
        self._context.term()


def come_through(door: EncryptedDoor, lost: Callable[[], None]) -> Channel:
    """Connect to rank 0 on another machine; `lost` is called once rank 0 cannot be reached any more."""
    end = _socket(zmq.Context(), _SILENT_HEAD)
    end.reconnect_ivl = -1  # a rank that lost rank 0 does not reconnect
    end.curve_serverkey = door.server
    end.curve_publickey, end.curve_secretkey = door.public, door.secret
    link = Link(end, door.url, lost)
    if not link.wait_up(_COME):
        link.close()
        raise ConnectionError(
            f"{socket.gethostname()} cannot reach rank 0 at {door.url}; give devices(..., address=) "
            "an address that this machine can reach, and allow the connection in the firewall"
        )
    return Channel(link)  # type: ignore[arg-type]  # it has the methods that a Channel uses


class _OnlyGuests:
    """Checks a connection's key for the authenticator."""

    def __init__(self, key: bytes) -> None:
        from zmq.utils import z85

        self._key = z85.decode(key)

    def callback(self, domain: str, key: bytes) -> bool:
        from zmq.utils import z85

        return z85.decode(key) == self._key


def _socket(context: zmq.Context[Any], silent: int) -> zmq.Socket[bytes]:
    end: Any = context.socket(zmq.PAIR)
    end.ipv6 = True
    end.sndhwm = end.rcvhwm = 0  # a message is never dropped
    end.heartbeat_ivl = silent // 5
    end.heartbeat_timeout = silent
    end.linger = 0
    return end  # type: ignore[no-any-return]


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address
