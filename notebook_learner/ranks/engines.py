"""The processes of ranks 1 and up: ipyparallel engines, here those on this machine.

ipyparallel starts and ends them, and makes each an IPython kernel of its own, so that `%px` reaches them
while they train. Nothing is asked of its controller during a training.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .channel import Meeting
from .rendezvous import ByFile, Rendezvous

if TYPE_CHECKING:
    from .encrypted_link import Doors

START = 180.0
"""Seconds that engines may take to come: they import torch, on a machine that may be busy."""
_BEAT = 250
"""Milliseconds between two beats of the controller's heart: it takes a new engine in at its second one, and
would be asleep for three seconds between them. An answer costs an engine some 0.1 ms."""
CONTROLLER = (f"--HeartMonitor.period={_BEAT}", f"--HeartMonitor.max_heartmonitor_misses={30_000 // _BEAT}")
ENGINE = (f"--IPEngine.max_heartbeat_misses={175_000 // (_BEAT + 500)}", "--IPEngine.timeout=60")
"""Engine and controller give each other up after as many seconds as without these settings: a machine may be
busy, or sleep. The second one: an engine that begins together with its controller would wait only five
seconds until the controller takes it in."""
_RANK = "notebook_learner.worker.rank:begin"
"""What an engine runs: above this room, and so named here and not imported."""
_SAME = 5.0
"""Seconds by which two processes may tell another one's start differently: they reckon from when the machine
was started, which a clock that is set right moves."""


class Known(NamedTuple):
    """A process, told from a later one that was given its number."""

    pid: int
    since: float


class Engines:
    """Ranks 1 and up as processes, and where they come to and sum: `OnThisMachine`, or `AttachedEngines`."""

    meeting: Meeting | Doors
    place: Rendezvous
    are_here = True
    """Whether they can be seen, and ended, as processes of this machine."""

    def __init__(self) -> None:
        self._client: Any = None
        self._begun: list[Any] = []
        self._helpers: list[Known] = []
        """The controller and what it started: nobody could tell those from strangers once it is dead."""

    def invite(self, devices: list[torch.device], threads: int) -> None:
        """Let every engine come to where this process expects it, as its rank."""
        raise NotImplementedError

    def end(self, rank: int, pid: int) -> None:
        """End one of them at once."""
        import psutil

        with suppress(psutil.Error):
            psutil.Process(pid).kill()

    def failure(self) -> str:
        """Why one of them did not come, where it said so."""
        for each in self._begun:
            if each.ready() and not each.successful():
                return repr(each.exception())
        return ""

    def are_watched(self) -> bool:
        """Whether the controller lives: without it they end by themselves, some minutes later."""
        return bool(self._helpers) and is_alive(self._helpers[0].pid)

    def stop(self) -> None:
        """End all of them, the controller and its helpers included."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()


class OnThisMachine(Engines):
    """So many processes beside this one."""

    def __init__(self, devices: list[torch.device]) -> None:
        super().__init__()
        ipyparallel = import_module("ipyparallel")
        self.meeting = Meeting()
        self.place = ByFile(self.meeting.folder)
        self._cluster: Any = ipyparallel.Cluster(
            controller_ip="127.0.0.1",
            controller_args=list(CONTROLLER),
            log_level=40,
            shutdown_atexit=False,
        )
        try:
            self._cluster.start_controller_sync()  # not start_cluster_sync, which sleeps for a second then
            self._cluster.start_engines_sync(n=len(devices), engine_args=list(ENGINE))
            self._client = self._cluster.connect_client_sync()
            # No bar of its own in the cell: what a learner shows is the panel.
            self._client.wait_for_engines(len(devices), timeout=START, interactive=False)
            self._helpers = family_of(pid_of(self._cluster))
        except BaseException:
            self.stop()
            raise

    def invite(self, devices: list[torch.device], threads: int) -> None:
        """Let every engine come to where this process expects it, as its rank."""
        helpers = [tuple(each) for each in self._helpers]  # plain: it has yet to find our modules
        for index, device in enumerate(devices):
            door = tuple(self.meeting.door(index + 1))
            number = (device.index or 0) if device.type == "cuda" else None
            self._begun.append(
                self._client[index].apply_async(
                    _begin, list(sys.path), number, _RANK, (door, index + 1, threads, helpers)
                )
            )

    def stop(self) -> None:
        """End all of them, the controller and its helpers included."""
        super().stop()
        end_all_of(self._cluster, self._helpers)
        self.meeting.close()


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it has not ended."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def family_of(pid: int | None) -> list[Known]:
    """A process and all that it has started; nothing where it is gone."""
    import psutil

    try:
        first = psutil.Process(pid) if pid is not None else None
        family = [] if first is None else [first, *first.children(recursive=True)]
        return [Known(each.pid, each.create_time()) for each in family]
    except psutil.Error:
        return []


def end_all_of(cluster: Any, helpers: Iterable[Known]) -> None:
    """End what a cluster has started on this machine, and take its file away."""
    engines = [each for pid in engine_pids(cluster) for each in family_of(pid)]
    end_processes([*helpers, *family_of(pid_of(cluster))], at_once=engines)
    with suppress(Exception):
        cluster.remove_cluster_file()


def end_processes(known: Iterable[Known], at_once: Iterable[Known] = ()) -> None:
    """End processes. Not by ipyparallel's own `stop`, which needs an event loop: the end of an interpreter
    has none any more.

    Args:
        known: they may put things right before.
        at_once: they may not. An engine would take twelve seconds, to take leave of a controller that is
            gone as well.
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
    """Those of them that are there."""
    import psutil

    found: list[psutil.Process] = []
    for pid, since in dict.fromkeys(known):
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if abs(process.create_time() - since) < _SAME:
                found.append(process)
    return found


def pid_of(cluster: Any) -> int | None:
    """Of the controller's process."""
    pid = getattr(getattr(cluster, "controller", None), "pid", None)
    return pid if isinstance(pid, int) else None


def engine_pids(cluster: Any) -> list[int]:
    """Of the engines that were started on this machine."""
    sets = getattr(cluster, "engines", {}).values()
    launchers = [each for engine_set in sets for each in getattr(engine_set, "launchers", {}).values()]
    return [pid for pid in (getattr(each, "pid", None) for each in launchers) if isinstance(pid, int)]


def _begin(path: list[str], number: int | None, entry: str, arguments: tuple[Any, ...]) -> int:
    """In the engine: see the modules that the notebook sees, and follow."""
    import os
    import sys
    from importlib import import_module

    if number is not None:
        # It sees no other: whatever asks for all devices makes no context on the neighbours'.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)
    sys.path[:] = path
    module, _, function = entry.partition(":")
    return getattr(import_module(module), function)(*arguments)  # type: ignore[no-any-return]
