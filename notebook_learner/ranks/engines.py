"""The processes of ranks 1 and up: ipyparallel engines, here those on this machine.

ipyparallel starts and ends them, and makes each an IPython kernel of its own, so that `%px` reaches them
while they train. During a training the learner sends the controller no requests.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .channel import Meeting
from .rendezvous import ByFile, Rendezvous

if TYPE_CHECKING:
    from .channel import Doors

START = 180.0
"""Seconds in which engines have to start: they import torch, on a machine that may be busy."""
_BEAT = 250
"""Milliseconds between two heartbeats of the controller. It accepts a new engine at the engine's second
heartbeat; the default between two is three seconds. An answer costs an engine some 0.1 ms."""
CONTROLLER = (f"--HeartMonitor.period={_BEAT}", f"--HeartMonitor.max_heartmonitor_misses={30_000 // _BEAT}")
ENGINE = (f"--IPEngine.max_heartbeat_misses={175_000 // (_BEAT + 500)}", "--IPEngine.timeout=60")
"""With these settings, engine and controller still give each other up after the default number of seconds: a
machine may be busy, or sleep. The timeout: an engine that starts together with its controller would wait only
five seconds until the controller accepts it."""
_RANK = "notebook_learner.worker.rank:begin"
"""The code that an engine runs. It is in a higher layer, so it is named here and not imported."""
_SAME = 5.0
"""Seconds by which two processes may disagree about the start time of a third: they compute it from the boot
time of the machine, which changes when the clock is corrected."""


class Known(NamedTuple):
    """A process with its start time, which distinguishes it from a later process with the same number."""

    pid: int
    since: float


class Engines:
    """Ranks 1 and up as processes, and the addresses where they connect and sum.

    A subclass is `OnThisMachine` or `AttachedEngines`.
    """

    meeting: Meeting | Doors
    place: Rendezvous
    are_here = True
    """Whether the engines are processes of this machine, which this process can see and end."""

    def __init__(self) -> None:
        self._client: Any = None
        self._begun: list[Any] = []
        self._helpers: list[Known] = []
        """The controller and its child processes: once it is dead, they could not be recognised any more."""

    def invite(self, devices: list[torch.device], threads: int) -> None:
        """Let every engine connect to this process, as its rank."""
        raise NotImplementedError

    def end(self, rank: int, pid: int) -> None:
        """End one engine at once."""
        import psutil

        with suppress(psutil.Error):
            psutil.Process(pid).kill()

    def failure(self) -> str:
        """Why an engine did not start, if it reported a reason."""
        for each in self._begun:
            if each.ready() and not each.successful():
                return repr(each.exception())
        return ""

    def are_watched(self) -> bool:
        """Whether the controller lives: without it the engines end some minutes later."""
        return bool(self._helpers) and is_alive(self._helpers[0].pid)

    def stop(self) -> None:
        """End all engines, the controller and its helper processes."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()


class OnThisMachine(Engines):
    """Engines on this machine: one process for each device but the first."""

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__()
        ipyparallel = import_module("ipyparallel")
        self.meeting = Meeting()
        self.place = ByFile(self.meeting.folder)
        self._cluster: Any = ipyparallel.Cluster(
            # Its own choice draws from Python's generator: two programs with the same seed that start in the
            # same second would get one name, and each other's engines.
            cluster_id=f"learner-{secrets.token_hex(16)}",
            controller_ip="127.0.0.1",
            controller_args=list(CONTROLLER),
            log_level=40,
            shutdown_atexit=False,
        )
        try:
            self._cluster.start_controller_sync()  # not start_cluster_sync, which sleeps for a second then
            self._cluster.start_engines_sync(n=len(devices), engine_args=list(ENGINE))
            self._client = self._cluster.connect_client_sync()
            # No progress bar of ipyparallel in the cell: the learner shows its panel there.
            self._client.wait_for_engines(len(devices), timeout=START, interactive=False)
            self._helpers = family_of(pid_of(self._cluster))
        except BaseException:
            self.stop()
            raise

    def invite(self, devices: list[torch.device], threads: int) -> None:
        """Let every engine connect to this process, as its rank."""
        helpers = [tuple(each) for each in self._helpers]  # the engine cannot import our modules yet
        for index, device in enumerate(devices):
            door = tuple(self.meeting.door(index + 1))
            number = (device.index or 0) if device.type == "cuda" else None
            self._begun.append(
                self._client[index].apply_async(
                    _begin, list(sys.path), number, _RANK, (door, index + 1, threads, helpers)
                )
            )

    def stop(self) -> None:
        """End all engines, the controller and its helper processes."""
        super().stop()
        end_all_of(self._cluster, self._helpers)
        self.meeting.close()


def is_alive(pid: int) -> bool:
    """Whether a process with this number exists and has not ended."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def family_of(pid: int | None) -> list[Known]:
    """A process and all its descendants; an empty list if it is gone."""
    import psutil

    try:
        first = psutil.Process(pid) if pid is not None else None
        family = [] if first is None else [first, *first.children(recursive=True)]
        return [Known(each.pid, each.create_time()) for each in family]
    except psutil.Error:
        return []


def end_all_of(cluster: Any, helpers: Iterable[Known]) -> None:
    """End the processes that a cluster has started on this machine, and remove its file."""
    engines = [each for pid in engine_pids(cluster) for each in family_of(pid)]
    end_processes([*helpers, *family_of(pid_of(cluster))], at_once=engines)
    with suppress(Exception):
        cluster.remove_cluster_file()


def end_processes(known: Iterable[Known], at_once: Iterable[Known] = ()) -> None:
    """End processes.

    ipyparallel's own `stop` needs an event loop, and at the end of an interpreter there is no loop any more.

    Args:
        known: processes that may clean up before they end.
        at_once: processes that may not. An engine would take twelve seconds to sign off from a controller
            that is gone as well.
    """
    import psutil

    for process in _found(at_once):
        with suppress(psutil.Error):
            process.kill()
    ending = _found(known)
    for process in ending:
        with suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(ending, timeout=3.0)
    for process in left:
        with suppress(psutil.Error):
            process.kill()


def _found(known: Iterable[Known]) -> list[Any]:
    """The processes among them that still exist."""
    import psutil

    found: list[psutil.Process] = []
    for pid, since in dict.fromkeys(known):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if abs(process.create_time() - since) < _SAME:
                found.append(process)
    return found


def pid_of(cluster: Any) -> int | None:
    """The process number of the controller."""
    pid = getattr(getattr(cluster, "controller", None), "pid", None)
    return pid if isinstance(pid, int) else None


def engine_pids(cluster: Any) -> list[int]:
    """The process numbers of the engines that were started on this machine."""
    sets = getattr(cluster, "engines", {}).values()
    launchers = [each for engine_set in sets for each in getattr(engine_set, "launchers", {}).values()]
    return [pid for pid in (getattr(each, "pid", None) for each in launchers) if isinstance(pid, int)]


def _begin(path: list[str], number: int | None, entry: str, arguments: tuple[Any, ...]) -> int:
    """Follow rank 0, in the engine, with the notebook's module path."""
    import os
    import sys
    from importlib import import_module

    if number is not None:
        # The engine sees no other device: code that asks for all devices makes no context on another rank's.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)
    sys.path[:] = path
    module, _, function = entry.partition(":")
    return getattr(import_module(module), function)(*arguments)  # type: ignore[no-any-return]
