"""Rank 0's door: a guest that misbehaves does not keep the others out."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from notebook_learner.ranks import channel
from notebook_learner.ranks.channel import Meeting, RankDoor, come_to

pytestmark = pytest.mark.skipif(os.name == "nt", reason="these guests speak over Unix sockets")


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    meeting = Meeting()
    yield meeting
    meeting.close()


def guest_of(meeting: Meeting) -> socket.socket:
    guest = socket.socket(socket.AF_UNIX)
    guest.settimeout(60)
    guest.connect(meeting.door(1).address)
    return guest


def comes_in(meeting: Meeting) -> bool:
    """Whether a rank that knows the key is let in, and is heard."""
    said: list[Any] = []

    def speak() -> None:
        rank = come_to(meeting.door(1))
        rank.send("here")
        said.append(rank.receive())
        rank.close()

    thread = threading.Thread(target=speak, daemon=True)
    thread.start()
    found = meeting.next(60)
    if found is None:
        return False
    heard = found.receive()
    found.send("welcome")
    thread.join(60)
    found.close()
    return heard == "here" and said == ["welcome"]


def test_a_guest_that_hangs_up_in_the_handshake_does_not_end_the_door(meeting: Meeting) -> None:
    guest_of(meeting).close()
    assert comes_in(meeting)


@pytest.mark.parametrize("said", [b"", b"\0", b"\0\0\0\x14half"], ids=["nothing", "half a length", "half"])
def test_a_silent_guest_blocks_nobody(meeting: Meeting, said: bytes) -> None:
    guests = [guest_of(meeting) for _ in range(20)]
    for guest in guests:
        guest.sendall(said)
    assert comes_in(meeting)
    for guest in guests:
        guest.close()


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff" + b"A" * 5000,  # an endless message
        b"\x7f\xff\xff\xff" + b"A" * 5000,
        b"\0\0\0\x14" + b"B" * 20 + b"\0\0\0\x01C" * 3,
        os.urandom(4096),
    ],
    ids=["length -1", "2 GB", "no digest", "noise"],
)
def test_a_guest_that_talks_nonsense_is_sent_away(meeting: Meeting, said: bytes) -> None:
    guest = guest_of(meeting)
    guest.sendall(said)
    assert comes_in(meeting)
    _until_hung_up(guest)


def test_a_guest_without_the_key_is_sent_away(meeting: Meeting) -> None:
    with pytest.raises((channel.AuthenticationError, EOFError, OSError)):
        come_to(RankDoor(meeting.door(1).address, "0" * 64))
    assert comes_in(meeting)


def test_a_guest_has_a_time_limit_for_the_whole_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_PATIENCE", 0.2)
    meeting = Meeting()
    guest = guest_of(meeting)
    _until_hung_up(guest, now_and_then=b"\0")
    assert comes_in(meeting)
    meeting.close()


def test_a_door_that_may_open_no_file_for_a_moment_stays_open(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = iter([OSError(errno.EMFILE, os.strerror(errno.EMFILE)), OSError(errno.ECONNABORTED, "aborted")])
    inner = meeting._listener._listener  # type: ignore[attr-defined]
    accept = inner.accept

    def short_of_descriptors() -> Any:
        taken = accept()
        for error in fails:
            taken.close()
            raise error
        return taken

    monkeypatch.setattr(inner, "accept", short_of_descriptors)
    for _ in range(3):  # the first may be with the real accept already
        guest_of(meeting).close()
    assert comes_in(meeting)


def test_a_door_that_has_no_thread_left_stays_open(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = threading.Thread.start, threading.Event()

    def no_thread(thread: threading.Thread) -> None:
        if thread.name == channel.GUEST and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    guest = guest_of(meeting)
    _until_hung_up(guest)
    assert refused.is_set()
    assert comes_in(meeting)


def test_a_closed_door_ends_its_threads() -> None:
    before = threads_of_doors()
    meeting = Meeting()
    door = meeting.door(1)
    guests = [guest_of(meeting) for _ in range(3)]
    assert comes_in(meeting)
    meeting.close()
    for guest in guests:
        _until_hung_up(guest)
    until = time.monotonic() + 60
    while threads_of_doors() - before:  # join() would refuse a thread that is about to start
        assert time.monotonic() < until, threading.enumerate()
        time.sleep(0.01)
    with pytest.raises(OSError):
        come_to(door)


def threads_of_doors() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name in ("notebook_learner ranks", channel.GUEST)}


def _until_hung_up(guest: socket.socket, now_and_then: bytes = b"") -> None:
    """Reads until the other end is closed; the socket's own limit fails the test."""
    if now_and_then:
        guest.settimeout(0.05)
    for _ in range(1200):
        try:
            if now_and_then:
                guest.sendall(now_and_then)
            if not guest.recv(1 << 16):
                break
        except (BrokenPipeError, ConnectionResetError):
            break
        except TimeoutError:
            assert now_and_then, "it was never hung up on"
    else:
        pytest.fail("it was never hung up on")
    guest.close()
