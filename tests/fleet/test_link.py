"""What ranks of several machines speak over: in order, whole, and with no stranger."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import zmq

from notebook_learner.ranks.channel import Doors, EncryptedDoor, Gone, come_through

HERE = "127.0.0.1"


@contextmanager
def met(door_for=lambda doors: doors.door(1)):
    """Both ends of a connection, rank 0's first."""
    doors = Doors(HERE, 1)
    lost = threading.Event()
    guest = come_through(door_for(doors), lost.set)
    guest.send("here I am")
    host = None
    while host is None:
        host = doors.next(1.0)
    assert host.receive() == "here I am"
    try:
        yield host, guest, lost, doors
    finally:
        guest.close()
        doors.close()


def test_messages_come_whole_and_in_order_both_ways():
    sizes = [0, 1, 10_000, 30_000_000, 3]
    with met() as (host, guest, _, _):
        for sender, taker in ((host, guest), (guest, host)):
            for size in sizes:
                sender.send(b"x" * size)
            assert [len(taker.receive()) for _ in sizes] == sizes
        assert not host.waits(0.01)


def test_sending_waits_for_nobody():
    with met() as (host, guest, _, _):
        for each in range(20):
            host.send((each, b"x" * 5_000_000))
            guest.send((each, b"x" * 5_000_000))
        assert [guest.receive()[0] for _ in range(20)] == list(range(20))
        assert [host.receive()[0] for _ in range(20)] == list(range(20))


@pytest.mark.parametrize("which", ["host", "guest"])
def test_the_end_of_one_is_the_end_of_the_other_after_what_was_sent(which):
    with met() as (host, guest, lost, _):
        leaver, stays = (host, guest) if which == "host" else (guest, host)
        leaver.send("last words")
        leaver.close()
        assert stays.receive() == "last words"
        with pytest.raises(Gone):
            stays.receive()
        assert stays.is_over()
        with pytest.raises(Gone):
            stays.send("anybody?")
        assert lost.wait(5.0 if which == "host" else 0.3) == (which == "host")


def strangers(door):
    """One without any key, one that has made itself a key, and one that speaks no such protocol."""
    plain = zmq.Context.instance().socket(zmq.PAIR)
    keyed = zmq.Context.instance().socket(zmq.PAIR)
    keyed.curve_serverkey = door.server
    keyed.curve_publickey, keyed.curve_secretkey = zmq.curve_keypair()
    for each in (plain, keyed):
        each.linger = 0
        each.connect(door.url)
        with suppress(zmq.Again):  # on a busy machine it may have been refused by now
            each.send(b"let me in", zmq.NOBLOCK)
    address, port = door.url.removeprefix("tcp://").rsplit(":", 1)
    raw = socket.create_connection((address, int(port)))
    raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
    return [plain, keyed, raw]


def test_nobody_is_heard_without_the_key_and_nobody_is_kept_out_by_those():
    def after_strangers(doors):
        come.extend(strangers(doors.door(1)))
        time.sleep(0.3)
        return doors.door(1)

    come: list = []
    with met(after_strangers) as (host, guest, _, doors):
        come.extend(strangers(doors.door(1)))
        assert not host.waits(0.5)
        for each in come:
            each.close()
        assert not host.waits(0.5)
        guest.send("still here")
        assert host.receive() == "still here"


class Wire:
    """What lies between two machines, with a stranger who reads along."""

    def __init__(self, port):
        self.seen = bytearray()
        self._listening = socket.create_server((HERE, 0))
        self.port = self._listening.getsockname()[1]
        self._to = port
        self._thread = threading.Thread(target=self._carry)
        self._thread.start()

    def _carry(self):
        one, _ = self._listening.accept()
        with self._listening, one, socket.create_connection((HERE, self._to)) as other:
            ends = {one: other, other: one}
            ready = selectors.DefaultSelector()  # `select` knows no descriptor above 1023
            for each in ends:
                ready.register(each, selectors.EVENT_READ)
            with ready:
                while all(self._passes_on(key.fileobj, ends) for key, _ in ready.select()):
                    pass

    def _passes_on(self, one, ends):
        data = one.recv(1 << 16)
        self.seen += data
        ends[one].sendall(data)
        return bool(data)

    def join(self):
        self._thread.join()


def test_what_is_sent_cannot_be_read_on_the_way():
    wires = []

    def tapped(doors):
        door = doors.door(1)
        wires.append(Wire(int(door.url.rpartition(":")[2])))
        return EncryptedDoor(f"tcp://{HERE}:{wires[0].port}", *door[1:])

    with met(tapped) as (host, guest, _, _):
        host.send(b"weights of a secret model")
        guest.send(b"losses of a secret model")
        assert guest.receive() == b"weights of a secret model"
        assert host.receive() == b"losses of a secret model"
        seen = bytes(wires[0].seen)
        assert len(seen) > 100
        assert b"secret" not in seen
    wires[0].join()


def test_who_cannot_reach_rank_0_says_so_at_once():
    doors = Doors(HERE, 1)
    door = doors.door(1)
    doors.close()
    with socket.create_server((HERE, 0)) as free:
        nobody = free.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=f"cannot reach rank 0 at tcp://{HERE}:{nobody}; give"):
        come_through(EncryptedDoor(f"tcp://{HERE}:{nobody}", *door[1:]), lambda: None)
    assert time.monotonic() - began < 30  # not the minute that a silent machine is waited for


def test_a_guest_of_another_training_is_not_let_in():
    one, other = Doors(HERE, 1), Doors(HERE, 1)
    stolen = EncryptedDoor(one.door(1).url, one.door(1).server, *other.door(1)[2:])
    with pytest.raises(ConnectionError):
        come_through(stolen, lambda: None)
    assert one.next(0.1) is None
    one.close()
    other.close()
