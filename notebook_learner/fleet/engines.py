"""The processes of ranks 1 and up: ipyparallel engines on this machine.

ipyparallel starts and ends them, and makes each an IPython kernel of its own, so that `%px` reaches them
while they train. Nothing is asked of its controller during a training.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from .channel import Meeting

_START = 180.0
"""Seconds that engines may take to come: they import torch, on a machine that may be busy."""


class Engines:
    """So many processes beside this one."""

    def __init__(self, devices: list[torch.device]) -> None:
        ipyparallel = import_module("ipyparallel")
        self._cluster: Any = ipyparallel.Cluster(
            n=len(devices), controller_ip="127.0.0.1", log_level=40, shutdown_atexit=False
        )
        self._client: Any = None
        self._begun: list[Any] = []
        try:
            self._cluster.start_cluster_sync()
            self._client = self._cluster.connect_client_sync()
            # No bar of its own in the cell: what a learner shows is the panel.
            self._client.wait_for_engines(len(devices), timeout=_START, interactive=False)
        except BaseException:
            self.stop()
            raise

    def send_to(self, meeting: Meeting, devices: list[torch.device], threads: int) -> None:
        """Let every engine come to where this process expects it, as its rank."""
        controller = _pid_of(self._cluster)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        for index, device in enumerate(devices):
            environment = {}
            if device.type == "cuda":
                # It sees no other: whatever asks for all devices makes no context on the neighbours'.
                there = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
                environment["CUDA_VISIBLE_DEVICES"] = there[device.index or 0]
            self._begun.append(
                self._client[index].apply_async(
                    _begin,
                    list(sys.path),
                    environment,
                    (meeting.address, meeting.key, index + 1, threads, controller),
                )
            )

    def failure(self) -> str:
        """Why one of them did not come, where it said so."""
        for each in self._begun:
            if each.ready() and not each.successful():
                return repr(each.exception())
        return ""

    def stop(self) -> None:
        """End all of them, the controller and its helpers included."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()
        end_processes([pid for pid in (_pid_of(self._cluster), *self._engine_pids()) if pid is not None])
        with suppress(Exception):
            self._cluster.remove_cluster_file()

    def _engine_pids(self) -> list[int]:
        sets = getattr(self._cluster, "engines", {}).values()
        launchers = [each for engine_set in sets for each in getattr(engine_set, "launchers", {}).values()]
        return [pid for pid in (getattr(each, "pid", None) for each in launchers) if isinstance(pid, int)]


def end_processes(pids: list[int], children_of: int | None = None) -> None:
    """End processes, and those that they started. Not by ipyparallel's own `stop`, which needs an event loop:
    the end of an interpreter has none any more."""
    import psutil

    found: list[psutil.Process] = []
    if children_of is not None:  # an engine's nanny, and a loader's workers
        found += psutil.Process(children_of).children(recursive=True)
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    for process in found:
        with suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(found, timeout=3.0)
    for process in left:
        with suppress(psutil.Error):
            process.kill()


def _pid_of(cluster: Any) -> int | None:
    """Of the controller's process, for the engines to end it where this one is gone."""
    pid = getattr(getattr(cluster, "controller", None), "pid", None)
    return pid if isinstance(pid, int) else None


def _begin(path: list[str], environment: dict[str, str], arguments: tuple[Any, ...]) -> int:
    """In the engine: see the modules that the notebook sees, and follow."""
    import os
    import sys

    os.environ.update(environment)
    sys.path[:] = path
    from notebook_learner.fleet.follower import begin

    return begin(*arguments)
