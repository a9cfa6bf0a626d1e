"""Machines for tests: a server for ssh on this one, and one behind a cable of its own that can be pulled."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from programs import find_program

SSHD = find_program("sshd")
"""sshd wants to be started by its whole path."""


class Machine:
    """Lets this user in by ssh, with a key made for it."""

    def __init__(self, folder: Path, address: str = "127.0.0.1", inside: tuple[str, ...] = ()) -> None:
        folder.mkdir()
        self.address, self.inside = address, inside
        self.port = _free_port() if address == "127.0.0.1" else 2222
        key = folder / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        shutil.copy(f"{key}.pub", folder / "authorized")
        config = folder / "sshd_config"
        config.write_text(
            f"ListenAddress {address}\nPort {self.port}\nHostKey {key}\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {folder / 'authorized'}\nUsePAM no\nPasswordAuthentication no\n"
            f"AcceptEnv PYTHONPATH\nSubsystem sftp internal-sftp\n"
        )
        if os.getuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # where sshd wants to lock itself up
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._server = subprocess.Popen(
                [*inside, SSHD, "-D", "-e", "-f", config], stderr=log, stdin=subprocess.DEVNULL
            )
        self.name = f"{getpass.getuser()}@{address}:{self.port}"
        known = f"UserKnownHostsFile={folder / 'known'}"
        self.options = ["-i", str(key), "-o", known, "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]
        self.options += ["-o", "IdentitiesOnly=yes", "-o", "SendEnv=PYTHONPATH"]
        self._wait()

    def close(self) -> None:
        self._server.terminate()
        self._server.wait(10)

    def _wait(self) -> None:
        until = time.monotonic() + 20
        asked = ["ssh", *self.options, "-p", str(self.port), self.name.partition(":")[0], "true"]
        while subprocess.run(asked, capture_output=True, stdin=subprocess.DEVNULL).returncode:
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.2)


def may_have_networks() -> bool:
    """Whether this process may make a network of its own."""
    return (
        os.getuid() == 0 and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
    )


class Apart(Machine):
    """A machine with a network, and a name, of its own, at the other end of a cable."""

    def __init__(self, folder: Path) -> None:
        self.space = f"nl{os.getpid()}"
        self._cable = f"nl{os.getpid()}a"
        there = f"nl{os.getpid()}b"
        number = os.getpid() % 250
        self.here = f"10.77.{number}.1"
        address = f"10.77.{number}.2"
        _ip("netns", "add", self.space)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", there)
        _ip("link", "set", there, "netns", self.space)
        _ip("addr", "add", f"{self.here}/24", "dev", self._cable)
        _ip("link", "set", self._cable, "up")
        for each in (("addr", "add", f"{address}/24", "dev", there), ("link", "set", there, "up")):
            _ip("-n", self.space, *each)
        _ip("-n", self.space, "link", "set", "lo", "up")
        named = 'hostname host-b; exec "$@"'
        inside = ("ip", "netns", "exec", self.space, "unshare", "--uts", "sh", "-c", named, "sh")
        super().__init__(folder, address, inside)

    def pull(self) -> None:
        """No packet passes any more; nobody is told."""
        _ip("link", "set", self._cable, "down")

    def plug_in(self) -> None:
        _ip("link", "set", self._cable, "up")

    def pids(self) -> list[int]:
        """What runs there."""
        told = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=True)
        return [int(each) for each in told.stdout.split()]

    def close(self) -> None:
        super().close()
        for pid in self.pids():
            os.kill(pid, 9)
        _ip("link", "del", self._cable)
        _ip("netns", "del", self.space)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


PYTHON = sys.executable
