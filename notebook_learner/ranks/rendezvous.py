"""Where ranks meet to sum: through a file on one machine, through an address on several machines."""

from __future__ import annotations

import secrets
import socket
import sys
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

import torch

dist: Any = import_module("torch.distributed")  # torch has no types for most of it

_PATIENCE = timedelta(days=30)
"""The timeout of a sum. It is long because a rank may stop in a debugger; other code finds dead ranks."""
_SILENT = 5
"""Seconds after which a rank gives up a machine that does not acknowledge its packets."""


class ByFile(NamedTuple):
    """A meeting place in a folder that all ranks see."""

    folder: str

    def store(self, generation: int, world: int) -> Any:
        """The torch store through which the ranks find each other."""
        return dist.FileStore(f"{self.folder}/{generation}", world)

    def own_address(self) -> str:
        """The address of this process for the other ranks."""
        return "127.0.0.1"


class ByAddress(NamedTuple):
    """A meeting place at a port of rank 0's machine. A process needs the secret word to find anything."""

    address: str
    port: int
    word: str

    def store(self, generation: int, world: int) -> Any:
        """The torch store through which the ranks find each other."""
        store = dist.TCPStore(self.address, self.port, None, False, timedelta(minutes=1))
        return dist.PrefixStore(self.word, store)

    def own_address(self) -> str:
        """The address of this process for the other ranks."""
        return own_address_towards(self.address)


Rendezvous = ByFile | ByAddress


class OpenRendezvous:
    """An open port for `ByAddress`, for as long as this object lives."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listening = socket.create_server((address, 0), family=family)  # on this interface only
        port = listening.getsockname()[1]
        self._store = dist.TCPStore(
            address, port, None, True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        self.place = ByAddress(address, port, secrets.token_hex(16))


def process_group(device: torch.device, place: Rendezvous, generation: int, rank: int, world: int) -> Any:
    """A separate group that no other code in the process can see: gloo on the CPU, NCCL on CUDA."""
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
    """This machine's address on the route to that one. No packet is sent."""
    family, kind, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as asked:
        asked.connect(target)
        return str(asked.getsockname()[0])


def _open_sockets() -> set[int]:
    """The descriptors of this process's connections."""
    import psutil

    return {each.fd for each in psutil.Process().net_connections("tcp") if each.raddr}


def _end_in_silence(number: int) -> None:
    """Have a connection for sums end when the other machine is silent: it may be gone without a sign, and
    this rank would wait for its part for ever."""
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
                connection.detach()  # torch owns it
