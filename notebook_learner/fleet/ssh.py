"""Engines over ssh: what has to be there beforehand, and starting many of them at a time.

Starting one takes five seconds, in some ten connections one after the other. So the machines are asked and
started beside each other, and so are the engines of each, but for its first, which brings the files that
the others need.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from ..errors import StateError

OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
"""It never asks for a password, which nobody would see, and does not wait for a machine that is gone."""
AT_ONCE = 4
"""Engines of one machine that are started at a time. An ssh server as it is installed begins to turn away
connections where ten have not logged in yet."""


class Starts:
    """Engines that are to be started together, once all are known."""

    def __init__(self, launchers: Any) -> None:
        self._given_up = False
        self._waiting: dict[tuple[Any, ...], list[Callable[[], Any]]] = {}
        """By the machine."""
        start, waiting = launchers.SSHEngineLauncher.start, self._waiting

        def later(engine: Any, **where: Any) -> None:
            waiting.setdefault(tuple(where.values()), []).append(lambda: start(engine, **where))

        # Without ipyparallel's own look at each, which keeps a connection open and prints a traceback where
        # that ends. They are known here by what they say.
        own = {"_start_waiting": lambda engine: None, "start": later}
        engine = type("Engine", (launchers.SSHEngineLauncher,), own)
        self.launcher = type("EngineSet", (launchers.SSHEngineSetLauncher,), {"launcher_class": engine})
        """In the place of ipyparallel's launcher of engines: it only notes what is to be started."""

    def go(self) -> None:
        """Start all of them. Where one cannot be, or somebody interrupts, no other one is begun with."""
        try:
            for ended in _beside_each_other(self._start_on, self._waiting.values(), len(self._waiting)):
                ended.result()
        except BaseException:
            self._given_up = True
            raise

    def _start_on(self, starts: Sequence[Callable[[], Any]]) -> None:
        first, *others = starts
        self._one(first)
        for ended in _beside_each_other(self._one, others, AT_ONCE):
            ended.result()

    def _one(self, start: Callable[[], Any]) -> None:
        if not self._given_up:
            start()


def _beside_each_other(do: Callable[[Any], Any], things: Iterable[Any], most: int) -> list[Future[Any]]:
    """Begun with, `most` at a time. Whoever waits for them may be interrupted, and leaves them alone."""
    pool = ThreadPoolExecutor(max(1, most), thread_name_prefix="notebook_learner ssh")
    try:
        return [pool.submit(do, each) for each in things]
    finally:
        pool.shutdown(wait=False)


def end_all(cluster: Any) -> None:
    """End what was started, by ssh, for a moment: a machine may be gone."""
    sets = getattr(cluster, "engines", {}).values()
    found = [each for engine_set in sets for each in getattr(engine_set, "launchers", {}).values()]

    def end(launcher: Any) -> None:
        with suppress(Exception):
            launcher.signal(signal.SIGKILL)

    reached = [each for each in found if hasattr(each, "ssh_cmd")]
    threads = [threading.Thread(target=end, args=(each,), daemon=True) for each in reached]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5.0)


def resolved(host: str, options: Sequence[str]) -> str:
    """What ssh takes a name for: it may be an alias of its configuration."""
    said = subprocess.run(["ssh", *options, "-G", *_target(host)], capture_output=True, text=True)
    names = [line.split(" ", 1)[1] for line in said.stdout.splitlines() if line.startswith("hostname ")]
    return names[0] if names else host.rpartition("@")[2].partition(":")[0]


def _target(host: str) -> list[str]:
    """A machine as ssh's command line names it; "user@name:port" is ipyparallel's way."""
    name, _, port = host.partition(":")
    return ["-p", port, name] if port else [name]


def require_packages(hosts: Sequence[str], python: str, options: Sequence[str]) -> None:
    """What ipyparallel would tell of a machine that lets nobody in, or has not what it takes, says less."""
    asked = _beside_each_other(lambda host: _missing(host, python, options), hosts, len(hosts))
    missed = [each.result() for each in asked]
    if any(missed):
        raise StateError("; ".join(filter(None, missed)))


def _missing(host: str, python: str, options: Sequence[str]) -> str:
    wanted = "import notebook_learner, ipyparallel, cloudpickle"
    command = ["ssh", *options, *_target(host), f"{shlex.quote(python)} -c {shlex.quote(wanted)}"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:  # there is no ssh here
        said = str(error)
    else:
        last = asked.stderr.strip().rpartition("\n")[2] or f"ssh ended with {asked.returncode}"
        said = last if asked.returncode else ""
    if not said:
        return ""
    return (
        f"no engine can be started on {host}: {said}. This has to work without a password: "
        f"{shlex.join(command)}"
    )
