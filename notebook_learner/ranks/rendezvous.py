"""Where ranks find each other to sum: by a file on one machine, by an address where there are several."""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

import torch

dist: Any = import_module("torch.distributed")  # most of what is needed has no types

_PATIENCE = timedelta(days=30)
"""Nobody acts on a clock here: a rank may stand in a debugger. Who died is found out otherwise."""
_SILENT = 5
"""Seconds after which a machine that does not even acknowledge is given up."""


class ByFile(NamedTuple):
    """In a folder that all of them see."""

    folder: str

    def store(self, generation: int, world: int) -> Any:
        """What they find each other by."""
        return dist.FileStore(f"{self.folder}/{generation}", world)

    def own_address(self) -> str:
        """The address of this process for the others."""
        return "127.0.0.1"


class ByAddress(NamedTuple):
    """At a port of rank 0's machine. Who does not know the word finds nothing there."""

    address: str
    port: int
    word: str

    def store(self, generation: int, world: int) -> Any:
        """What they find each other by."""
        store = dist.TCPStore(self.address, self.port, None, False, timedelta(minutes=1))
        return dist.PrefixStore(self.word, store)

    def own_address(self) -> str:
        """The address of this process for the others."""
        return own_address_towards(self.address)


Rendezvous = ByFile | ByAddress


class OpenRendezvous:
    """A port for `ByAddress`, for as long as this is kept."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, 0), family=family)  # there, and on no other interface
        port = listening.getsockname()[1]
        self._store = dist.TCPStore(
            address, port, None, True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        self.place = ByAddress(address, port, secrets.token_hex(16))


def process_group(device: torch.device, place: Rendezvous, generation: int, rank: int, world: int) -> Any:
    """A group of its own, which no other code in the process can see: gloo on the CPU, NCCL on CUDA."""
    store = dist.PrefixStore(str(generation), place.store(generation, world))
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _PATIENCE
        return dist.ProcessGroupNCCL(store, rank, world, options)
    known = _open_sockets() if isinstance(place, ByAddress) else set()
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=place.own_address())]
    options._timeout = _PATIENCE
    group = dist.ProcessGroupGloo(store, rank, world, options)
    if isinstance(place, ByAddress):
        for number in _open_sockets() - known:
            _end_in_silence(number)
    return group


def own_address_towards(address: str) -> str:
    """By which this machine speaks with that one. Nothing is sent."""
    family, kind, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as asked:
        asked.connect(target)
        return str(asked.getsockname()[0])


def _open_sockets() -> set[int]:
    """The descriptors of this process's connections."""
    import psutil

    return {each.fd for each in psutil.Process().net_connections("tcp") if each.raddr}


def _end_in_silence(number: int) -> None:
    """Of a connection that sums go over: the other machine may be gone without a word, and whoever waits for
    its part would wait for ever."""
    with socket.socket(fileno=number) as connection:
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if sys.platform == "linux":
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _SILENT)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _SILENT - 2)
        finally:
            with suppress(OSError):
                connection.detach()  # it is torch's
