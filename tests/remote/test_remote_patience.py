"""Neither end of the socket waits for ever for the other, or believes who it must not."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from remote_support import SOON, Brake, in_a_thread, learner_in, socket_of, waits_for

from notebook_learner import RemoteError
from notebook_learner.remote import client, control, server
from notebook_learner.remote.socket_place import NAME, Peer


def connected_to(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(socket_of(directory)))  # waits for a place in the row
    connection.settimeout(SOON)
    return connection


def test_connections_that_say_nothing_keep_no_request_out(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step()
    silent = [connected_to(tmp_path) for _ in range(server.MOST_GUESTS + 4)]
    assert control(tmp_path, "status").ok  # it is a guest, too, until its request is read
    for guest in silent[:5]:
        assert guest.recv(1) == b"", "the oldest are hung up on"
    for guest in silent[5:]:
        guest.setblocking(False)
        with pytest.raises(BlockingIOError):  # it is still heard
            guest.recv(1)
    for guest in silent:
        guest.close()
    del learner


def test_a_request_that_is_answered_makes_room_for_another(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step()
    for _ in range(server.MOST_TALKS + 2):
        assert control(tmp_path, "status").ok
    del learner


def test_a_request_has_to_come_whole_within_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.3)
    learner = learner_in(tmp_path)
    learner.step()
    slow = connected_to(tmp_path)
    slow.settimeout(0.05)
    for _ in range(1200):
        try:
            slow.sendall(b" ")
            if b"\n" in slow.recv(4096):
                break
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            break
    else:
        pytest.fail("it was listened to for a minute")
    slow.close()
    assert control(tmp_path, "status").ok
    del learner


def test_a_slow_request_is_answered_beside_guests_that_drip_bytes_and_come_again(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step()
    slow = connected_to(tmp_path)
    dripping = [connected_to(tmp_path) for _ in range(server.MOST_TALKS)]
    (here,) = [each for each in server._serving.values() if each.directory == tmp_path]
    waits_for(lambda: len(here._unheard) == 1 + len(dripping))
    for letter in b'{"cmd": "status", "args": {}}\n':
        for number, guest in enumerate(dripping):
            try:
                guest.sendall(b" ")
            except OSError:  # hung up on
                guest.close()
                dripping[number] = connected_to(tmp_path)
        slow.sendall(bytes([letter]))
    assert b'"ok": true' in slow.recv(1 << 16)
    assert control(tmp_path, "status").ok
    for guest in (slow, *dripping):
        guest.close()
    del learner


def test_only_so_many_requests_are_carried_out_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_TALKS", 1)
    brake = Brake(at=2)
    learner = learner_in(tmp_path, each_step=brake.step)
    learner.step()
    first = in_a_thread(lambda: control(tmp_path, "step"))
    assert brake.reached.wait(SOON)
    told = control(tmp_path, "status")
    assert not told.ok and told.text == "1 requests are under way already; try again"
    brake.free.set()
    assert first().ok
    del learner


def listening_in(directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.relpath(directory / NAME))
    listener.listen()
    return listener


def test_who_listens_as_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 4321
    monkeypatch.setattr(client, "peer_of", lambda connection: Peer(other, 77))
    with (
        listening_in(tmp_path),
        pytest.raises(RemoteError, match=r"4321 \(pid 77\) listens at control\.sock in .*, and not you"),
    ):
        control(tmp_path, "status")


def test_an_answer_that_trickles_in_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE", 0.3)
    over = threading.Event()
    with listening_in(tmp_path) as listener:

        def trickle() -> None:
            taken, _ = listener.accept()
            with taken:
                while not over.wait(0.02):
                    try:
                        taken.sendall(b" ")
                    except OSError:
                        return

        for words in (("status",), ("step", "3")):
            thread = threading.Thread(target=trickle, daemon=True)
            thread.start()
            with pytest.raises(RemoteError, match=r"gave no answer within 0\.3 s"):
                control(tmp_path, *words)
            thread.join(SOON)
    over.set()
