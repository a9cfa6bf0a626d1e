"""Clusters for tests: engines on this machine, and engines behind a cable of their own that can be pulled."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ipyparallel


class Engines:
    """A cluster as a user starts it; its engines may be started in several networks."""

    def __init__(self, name: str, address: str = "127.0.0.1") -> None:
        self.cluster: Any = ipyparallel.Cluster(
            cluster_id=f"{name}{os.getpid()}",
            controller_ip=address,
            controller_location=address,
            controller_args=["--HeartMonitor.period=250", "--HeartMonitor.max_heartmonitor_misses=120"],
            log_level=40,
        )
        self.cluster.start_controller_sync()
        self.client = self.cluster.connect_client_sync()
        self._programs: list[subprocess.Popen[bytes]] = []

    def start(self, count: int, inside: tuple[str, ...] = ()) -> list[int]:
        """So many more engines, in the network that a command leads into; gives their ids."""
        there = set(self.client.ids)
        folder = Path(self.cluster.profile_dir) / "security"
        file = folder / f"ipcontroller-{self.cluster.cluster_id}-engine.json"
        command = [*inside, sys.executable, "-m", "ipyparallel.engine", f"--file={file}", "--log-level=40"]
        for _ in range(count):
            self._programs.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        until = time.monotonic() + 120
        while len(come := set(self.client.ids) - there) < count:
            assert time.monotonic() < until, f"{len(come)} of {count} engines have come"
            time.sleep(0.1)
        return sorted(come)

    def close(self) -> None:
        self.client.close()
        for each in self._programs:
            each.kill()
            each.wait(10)
        self.cluster.stop_controller_sync()


def may_have_networks() -> bool:
    """Whether this process may make a network of its own."""
    return (
        os.getuid() == 0 and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0
    )


class Apart:
    """A network, and a machine's name, of its own, at the other end of a cable."""

    def __init__(self) -> None:
        self.space = f"nl{os.getpid()}"
        self._cable = f"nl{os.getpid()}a"
        there = f"nl{os.getpid()}b"
        number = os.getpid() % 250
        self.here = f"10.77.{number}.1"
        _ip("netns", "add", self.space)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", there)
        _ip("link", "set", there, "netns", self.space)
        _ip("addr", "add", f"{self.here}/24", "dev", self._cable)
        _ip("link", "set", self._cable, "up")
        _ip("-n", self.space, "addr", "add", f"10.77.{number}.2/24", "dev", there)
        _ip("-n", self.space, "link", "set", there, "up")
        _ip("-n", self.space, "link", "set", "lo", "up")
        named = 'hostname host-b; exec "$@"'
        self.inside = ("ip", "netns", "exec", self.space, "unshare", "--uts", "sh", "-c", named, "sh")

    def pull(self) -> None:
        """No packet passes any more, and no side gets an error."""
        _ip("link", "set", self._cable, "down")

    def plug_in(self) -> None:
        _ip("link", "set", self._cable, "up")

    def pids(self) -> list[int]:
        """What runs there."""
        told = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=True)
        return [int(each) for each in told.stdout.split()]

    def close(self) -> None:
        for pid in self.pids():
            os.kill(pid, 9)
        _ip("link", "del", self._cable)
        _ip("netns", "del", self.space)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
