"""The client: sends one request to the learner that trains in a directory."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from ..errors import RemoteError
from ..steering.command import Answer, Command, CommandError, typed
from .protocol import line_of, read_answer
from .socket_place import NAME, SocketFolder, UntrustedError, connected, peer_of, supported, trusted_by

PATIENCE = 10.0
"""Seconds that an answer to a question may take, from the first byte sent to the last byte received. For a
command that acts there is no limit until its answer begins: it may take a step, or an hour."""
_LONGEST_ANSWER = 1 << 20


def control(directory: str | os.PathLike[str], *words: str) -> Answer:
    """Steer the learner that trains in a directory, from another process of the same user.

    The words are those of `notebook-learner ctl`: "status", "pause", "resume", "stop", "save", "step_epoch",
    "step" or "rewind" and a number, "restore" and a label, "set" and name=value (lr, lr[1] for one parameter
    group, momentum, weight_decay, num_epochs), and so on.

    >>> import torch
    >>> from notebook_learner import LearnerBuilder
    >>> from notebook_learner.remote import control
    >>> model = torch.nn.Linear(2, 1)
    >>> learner = (
    ...     LearnerBuilder("runs/steered")
    ...     .loss(torch.nn.functional.mse_loss)
    ...     .renderer("silent")
    ...     .build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ... )
    >>> _ = learner.fit([(torch.ones(4, 2), torch.ones(4, 1))] * 5)
    >>> control("runs/steered", "set", "num_epochs=3")
    trains up to epoch 3
    >>> control("runs/steered", "step", "2").ok, learner.position.step
    (True, 2)

    Returns:
        The run's answer. It prints as one line, and is true if the run carried out the command.

    Raises:
        RemoteError: no run is alive there, or it belongs to another user.
        ValueError: there is no such command.
    """
    return ask(directory, typed(words))


def ask(directory: str | os.PathLike[str], command: Command) -> Answer:
    """Send a command that is already built, like `control`."""
    if not supported():
        raise RemoteError(
            "a run is steered from elsewhere over a Unix-domain socket, which Python does not have on this "
            "system; use the learner itself, or its panel"
        )
    folder = _folder(Path(directory))
    try:
        with _connection(folder, directory) as connection:
            _require_trusted(connection, folder, directory)
            return _exchange(connection, command, directory)
    finally:
        folder.close()


def is_there(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory has the file that leads to a learner's socket, even if the learner has ended."""
    return os.path.lexists(os.path.join(directory, NAME))


def _folder(directory: Path) -> SocketFolder:
    try:
        return SocketFolder(directory)
    except FileNotFoundError:
        raise RemoteError(f"there is no directory {str(directory)!r}; give the one a run writes to") from None
    except NotADirectoryError:
        raise RemoteError(f"{str(directory)!r} is a file; give the directory that a run writes to") from None
    except PermissionError:
        raise RemoteError(_not_permitted(directory)) from None


def _connection(folder: SocketFolder, directory: str | os.PathLike[str]) -> socket.socket:
    where = repr(os.fspath(directory))
    try:
        return connected(folder, PATIENCE)
    except (FileNotFoundError, ConnectionRefusedError):
        raise RemoteError(
            f"no run is alive in {where}: a learner can be steered from its first step until it is deleted; "
            "`notebook-learner show` shows the results of a run that is over"
        ) from None
    except UntrustedError as error:
        who = f"{NAME} in {where} leads to {error.filename!r}, where another user may listen"
        raise RemoteError(_untrusted(who)) from None
    except PermissionError:
        raise RemoteError(_not_permitted(directory)) from None
    except (BlockingIOError, TimeoutError):
        raise RemoteError(f"the run in {where} takes no more requests right now; try again") from None
    except OSError as error:
        raise RemoteError(f"the run in {where} cannot be reached: {error.strerror or error}") from None


def _require_trusted(
    connection: socket.socket, folder: SocketFolder, directory: str | os.PathLike[str]
) -> None:
    """Refuse to ask another user's process: others may put a socket into a directory that they can write."""
    peer = peer_of(connection)
    if peer is not None and peer.uid not in trusted_by(folder):
        where = repr(os.fspath(directory))
        raise RemoteError(_untrusted(f"{peer} listens at {NAME} in {where}, and not you"))


def _exchange(connection: socket.socket, command: Command, directory: str | os.PathLike[str]) -> Answer:
    until = time.monotonic() + PATIENCE
    connection.settimeout(PATIENCE)
    data = b""
    with suppress(BrokenPipeError):  # the run closed the connection; its answer can still be read
        connection.sendall(line_of(command))
    try:
        while b"\n" not in data and len(data) < _LONGEST_ANSWER:
            if command.cmd != "status" and not data:
                connection.settimeout(None)
            else:
                connection.settimeout(max(until - time.monotonic(), 0.001))
            more = connection.recv(1 << 16)
            if not more:
                break
            if command.cmd != "status" and not data:
                until = time.monotonic() + PATIENCE
            data += more
        return read_answer(data.partition(b"\n")[0])
    except TimeoutError:
        reason = f"gave no answer within {PATIENCE:g} s; its process may be stopped"
    except (ConnectionError, CommandError):
        reason = "ended before it answered"
    raise RemoteError(f"the run in {os.fspath(directory)!r} {reason}")


def _not_permitted(directory: str | os.PathLike[str]) -> str:
    return (
        f"not permitted: the run in {os.fspath(directory)!r} belongs to another user; only that user may "
        "steer it"
    )


def _untrusted(why: str) -> str:
    return (
        f"{why}: no request was sent, since the answer would not be the run's. Remove the file, and let no "
        "other user write there (chmod go-w)"
    )
