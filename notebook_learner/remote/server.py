"""The server: one thread for a learner, and one more for each request while it lasts.

A learner without references must be freed, together with its socket. So this module has only a weak reference
to it.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path

from ..errors import BusyError, LoggerError
from ..steering.carry_out import Steering
from ..steering.command import Answer, Command, CommandError
from ..steering.steered import Steered
from ..store.run_folder import RunFolder
from .protocol import LONGEST, line_of, read_command
from .socket_place import OccupiedError, SocketDoor, SocketFolder, held, let_go, peer_of, supported

PATIENCE = 5.0
"""Seconds that a client may take to send its request, and to take the answer."""
MOST_TALKS = 16
"""How many requests run at the same time."""
MOST_GUESTS = 128
"""How many connections may not have sent a request yet. If more come, the oldest one is closed."""
_serving: dict[tuple[int, int], RemoteControl] = {}
"""The servers of this process, by directory. The learner that opened a run last is steered: after a cell is
run again, the earlier learner may still be alive, as long as anything refers to it."""


class RemoteControl:
    """Lets other processes of the same user steer the learner that trains in a directory.

    Args:
        directory: the directory for `control.sock`, the file that says where the socket is.
        changed: called if a command changed what a step reads while the learner stands still.
    """

    def __init__(self, directory: str | os.PathLike[str], changed: Callable[[], None] = lambda: None) -> None:
        self.directory = Path(directory)
        self._changed = changed
        self._learner: Callable[[], Steered | None] = _nobody
        self._door: SocketDoor | None = None
        self._identity = (0, 0)
        self._talks: set[socket.socket] = set()
        """Connections whose request is running."""
        self._unheard: dict[socket.socket, None] = {}
        """Connections that have not sent a request yet, the oldest first."""
        self._wakes: socket.socket | None = None

    def __call__(self, learner: Steered) -> str:
        """Serve this learner from now on, for as long as it lives.

        Returns:
            A message for the user if that is impossible, else empty. Training does not depend on it.
        """
        if not supported():  # the client reports this to the user
            return ""
        self._learner = weakref.ref(learner)  # before a request can come
        if self._door is not None and self._door.stands:
            return ""
        try:
            self._open()
        except (OSError, OccupiedError, RuntimeError) as error:  # the last if no thread is left
            self._learner = _nobody
            reason = getattr(error, "strerror", None) or str(error)
            here = repr(str(self.directory))
            return f"no remote control (notebook-learner ctl) in {here}: {reason}; training goes on"
        weakref.finalize(learner, self.close)  # also at the interpreter's end
        return ""

    def _open(self) -> None:
        RunFolder(self.directory).make()
        with ExitStack() as undo:
            folder = held(SocketFolder(self.directory))
            undo.callback(let_go, folder)
            ear, wakes = (held(end) for end in socket.socketpair())
            undo.callback(let_go, ear)
            undo.callback(let_go, wakes)
            self._identity = folder.identity
            before = _serving.get(self._identity)
            if before is not None:
                before.close()
            door = SocketDoor(folder)
            undo.callback(door.close)
            undo.callback(door.remove_file)
            context = copy_context()  # so a step prints below the cell that opened the run
            threading.Thread(
                target=context.run,
                args=(_serve, door, ear, self._talk_in_a_thread),
                name="notebook_learner remote control",
                daemon=True,
            ).start()
            undo.pop_all()
        self._door, self._wakes = door, wakes
        _serving[self._identity] = self

    def close(self) -> None:
        """Remove the socket. Any thread may call this, even the serving one or the garbage collector's. So it
        does not wait: the serving thread closes the descriptors."""
        door, self._door = self._door, None
        if door is None:
            return
        if _serving.get(self._identity) is self:
            del _serving[self._identity]
        self._learner, self._changed = _nobody, _nothing  # the thread may keep no weights until it ends
        door.remove_file()
        if self._wakes is not None:
            let_go(self._wakes)

    # One connection ----------------------------------------------------------------------------------

    def _talk_in_a_thread(self, connection: socket.socket) -> None:
        if len(self._unheard) >= MOST_GUESTS:
            self._hang_up_on_the_oldest()
        self._unheard[connection] = None
        context = copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._talk, connection), name="notebook_learner request", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends, or has no thread left
            self._forget(connection)

    def _hang_up_on_the_oldest(self) -> None:
        """Close the oldest silent connection, so that silent ones keep no real request out."""
        for dawdler in tuple(self._unheard):
            if self._unheard.pop(dawdler, self) is self:
                continue  # it has sent its request meanwhile
            with suppress(OSError):  # it is closed already
                dawdler.shutdown(socket.SHUT_RDWR)
            return

    def _forget(self, connection: socket.socket) -> None:
        self._talks.discard(connection)
        self._unheard.pop(connection, None)
        let_go(connection)

    def _talk(self, connection: socket.socket) -> None:
        try:
            answer, afterwards = self._answer(connection)
            if answer is not None:
                _reply(connection, answer)
            afterwards()
        finally:
            self._forget(connection)

    def _answer(self, connection: socket.socket) -> tuple[Answer | None, Callable[[], None]]:
        """The answer, and a function to call after it was sent."""
        peer = peer_of(connection)
        if peer is not None and not peer.may_steer:
            return Answer(
                False, f"not permitted: this run is steered by its own user, and not by {peer}"
            ), _nothing
        line = _line_from(connection)
        self._unheard.pop(connection, None)
        if line is None:  # a process only checked whether this run is alive
            return None, _nothing
        if len(self._talks) >= MOST_TALKS:
            return Answer(False, f"{MOST_TALKS} requests are under way already; try again"), _nothing
        self._talks.add(connection)
        try:
            command = read_command(line)
        except CommandError as refused:
            return Answer(False, str(refused)), _nothing
        learner = self._learner()
        if learner is None:
            return Answer(False, "the learner was deleted just now"), _nothing
        asker = str(peer or "another process")
        answer = Steering(learner, partial(_note, learner, asker), self._changed).carry_out(command)
        return answer, partial(self._note_question, command, asker)

    def _note_question(self, command: Command, asker: str) -> None:
        """Log a question after its answer. If the learner is gone by then, no log entry is needed."""
        learner = self._learner()
        if learner is not None and command.cmd == "status":
            _note(learner, asker, str(command))


def _note(learner: Steered, asker: str, text: str) -> None:
    # Errors are ignored: a full disk must not keep a user from `stop`, and a run that ends has no log.
    with suppress(LoggerError, BusyError):
        learner.tools.note(f"remote control by {asker}: {text}")


def _nobody() -> None:
    return None


def _nothing() -> None:
    pass


def _serve(door: SocketDoor, ear: socket.socket, talk: Callable[[socket.socket], None]) -> None:
    """Accept connections until the other end of `ear` is closed."""
    with selectors.PollSelector() as poll:  # `select` cannot take a descriptor above 1023
        poll.register(door.socket, selectors.EVENT_READ)
        poll.register(ear, selectors.EVENT_READ)
        while not any(key.fileobj is ear for key, _ in poll.select()):
            connection = _taken(door)
            if connection is not None:
                talk(connection)
    door.close()
    let_go(ear)


def _taken(door: SocketDoor) -> socket.socket | None:
    try:
        connection = held(door.socket.accept()[0])
    except OSError:  # the client is gone, or this process has no descriptor left
        time.sleep(0.05)
        return None
    connection.settimeout(PATIENCE)
    return connection


def _line_from(connection: socket.socket) -> bytes | None:
    """The request, up to the end of its line; None if nothing came. All of it has to come in time."""
    data = b""
    until = time.monotonic() + PATIENCE
    with suppress(OSError):  # the client took too long, or closed the connection
        while b"\n" not in data and len(data) <= LONGEST:
            connection.settimeout(max(until - time.monotonic(), 0.001))
            more = connection.recv(LONGEST)
            if not more:
                break
            data += more
    with suppress(OSError):
        connection.settimeout(PATIENCE)
    line, end, _ = data.partition(b"\n")
    if not data:
        return None
    return line if end and len(line) <= LONGEST else b""


def _reply(connection: socket.socket, answer: Answer) -> None:
    with suppress(OSError):  # the client does not wait any more
        connection.sendall(line_of(answer))
