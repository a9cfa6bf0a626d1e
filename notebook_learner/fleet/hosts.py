"""Engines on other machines, started over ssh or found in a cluster that is there already."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import torch

from ..cluster import Attached, Cluster, Hosts
from ..errors import StateError
from . import ssh
from .engines import BESIDE, CONTROLLER, ENGINE, START, Engines, end_all_of, engine_pids, family_of, pid_of
from .guard import Guard
from .link import Doors
from .rendezvous import Opened, own_address_towards

LABEL = "NOTEBOOK_LEARNER_HOST"
"""The variable that tells an engine which of the named machines it was started on."""


class OnHosts(Engines):
    """Engines of several machines; some may be of this one."""

    are_here = False

    def __init__(self, where: Cluster) -> None:
        super().__init__()
        self._where = where
        self._cluster: Any = None
        self._ids: list[int] = []
        """Of the engines, by rank from 1 on."""
        self._machines: list[str] = []
        self._guard: Guard | None = None
        self._leaves_it_to_the_guard = False
        self.meeting: Doors | None = None  # type: ignore[assignment]  # until its address is known
        try:
            self._bring()
            self._machines = self._client[self._ids].apply_sync(_machine)
            self.meeting = Doors(self._address, len(self._ids))
            self._opened = Opened(self._address)
            self.place = self._opened.place
        except BaseException:
            self.stop()
            raise

    def _bring(self) -> None:
        """Have the engines here, in the order of ranks, and know how they reach this machine."""
        if isinstance(self._where, Hosts):
            self._start(self._where)
        elif isinstance(self._where, Attached):
            self._find(self._where)

    def invite(self, devices: list[torch.device], threads: int) -> None:
        """Let every engine come to where this process expects it, as its rank."""
        assert self.meeting is not None
        own = _machine()
        beside = Counter([own, *self._machines])
        met = Counter({own: len(self._where.here)})
        stays = isinstance(self._where, Attached)
        each = zip(self._ids, devices, self._machines, strict=True)
        for rank, (engine, device, machine) in enumerate(each, start=1):
            number = None
            if device.type == "cuda":
                number = met[machine] if device.index is None else device.index
            met[machine] += 1
            arguments = (tuple(self.meeting.door(rank)), rank, beside[machine], stays)
            self._begun.append(
                self._client[engine].apply_async(_begin_elsewhere, list(sys.path), number, arguments)
            )

    def end(self, rank: int, pid: int) -> None:
        """End one of them at once: by its nanny, which answers where it does not."""
        with suppress(Exception):
            self._client.send_signal(signal.SIGKILL, targets=self._ids[rank - 1], block=False)

    def are_watched(self) -> bool:
        """Whether the controller lives."""
        return isinstance(self._where, Attached) or super().are_watched()

    def stop(self) -> None:
        """End what was started: the engines leave when they are told, or once they do not hear any more."""
        if self.meeting is not None:
            self.meeting.close()
        super().stop()
        if isinstance(self._where, Attached) or self._cluster is None:
            return
        if not self._begun:  # nobody has told them anything
            ssh.end_all(self._cluster)
        end_all_of(self._cluster, self._helpers)
        if self._guard is not None:
            self._guard.leave() if self._leaves_it_to_the_guard else self._guard.dismiss()

    def _start(self, where: Hosts) -> None:
        options = [*ssh.OPTIONS, *where.options]
        python = where.python or sys.executable
        hosts = [host for host, _ in where.there]
        ssh.require_packages(hosts, python, options)
        self._address = where.address or nearest([ssh.resolved(host, options) for host in hosts])
        self._start_controller()
        wanted = self._start_here(len(where.here) - 1)
        starts = ssh.Starts(import_module("ipyparallel.cluster.launcher"))
        self._cluster.engine_launcher_class = starts.launcher
        for host, devices in where.there:
            self._start_on(host, len(devices), python, options)
            wanted += [host] * len(devices)
        starts.go()
        self._connect()
        self._wait_for(wanted)
        self._assign(wanted)

    def _start_controller(self) -> None:
        ipyparallel = import_module("ipyparallel")
        self._cluster = ipyparallel.Cluster(
            controller_ip=self._address,
            controller_location=self._address,
            controller_args=["--IPController.enable_curve=True", *CONTROLLER],
            log_level=40,
            shutdown_atexit=False,
        )
        self._cluster.start_controller_sync()

    def _start_here(self, count: int) -> list[str]:
        """So many beside this process; gives which machine each of them is known to be of."""
        if count:
            launchers = import_module("ipyparallel.cluster.launcher")
            self._cluster.engine_launcher_class = launchers.LocalEngineSetLauncher
            self._cluster.start_engines_sync(n=count, environment={LABEL: ""}, engine_args=list(BESIDE))
        return [""] * count

    def _connect(self) -> None:
        with _unsaid("Message signing is disabled"):  # CurveZMQ does that
            self._client = self._cluster.connect_client_sync()
        self._helpers = family_of(pid_of(self._cluster))
        self._guard = Guard()
        for each in (
            *self._helpers,
            *(known for pid in engine_pids(self._cluster) for known in family_of(pid)),
        ):
            self._guard.ends(*each)

    def _start_on(self, host: str, count: int, python: str, options: list[str]) -> None:
        self._cluster.start_engines_sync(
            n=count,
            engines={host: count},
            environment={LABEL: host},
            engine_args=list(ENGINE),
            remote_python=python,
            ssh_args=list(options),
            scp_args=list(options),
        )

    def _wait_for(self, wanted: Sequence[str]) -> None:
        until = time.monotonic() + START
        while len(self._client.ids) < len(wanted):
            if time.monotonic() > until:
                raise StateError(
                    f"{len(self._client.ids)} of {len(wanted)} engines on {', '.join(dict.fromkeys(wanted))} "
                    f"have come to {self._address} within {START:.0f} s; give cluster.ssh(..., address=) the "
                    "address by which those machines reach this one, and let the firewall pass it"
                )
            time.sleep(0.1)

    def _assign(self, wanted: Sequence[str], label: Callable[[str], str] | None = None) -> None:
        """Engines come in any order; ranks are in that of the machines."""
        ids = sorted(self._client.ids)
        labels = dict(zip(ids, self._client[ids].apply_sync(label or _label, LABEL), strict=True))
        for host in wanted:
            found = next(each for each in ids if labels[each] == host and each not in self._ids)
            self._ids.append(found)

    def _find(self, where: Attached) -> None:
        ipyparallel = import_module("ipyparallel")
        named = f"cluster.attach({where.name!r})"
        options = {} if where.profile is None else {"profile": where.profile}
        try:
            self._client = ipyparallel.Cluster.from_file(
                cluster_id=where.name, **options
            ).connect_client_sync()
        except (FileNotFoundError, OSError) as error:
            raise StateError(
                f"{named}: there is no such cluster ({error}); `ipcluster list` tells which there are"
            ) from error
        self._ids = sorted(self._client.ids)[: len(where.elsewhere)]
        if len(self._ids) < len(where.elsewhere):
            raise StateError(
                f"{named} has {len(self._ids)} engines, and {len(where.elsewhere)} are asked for"
            )
        self._address = where.address or nearest(self._client[self._ids].apply_sync(_reached_by))


@contextmanager
def _unsaid(said: str) -> Iterator[None]:
    """A warning that is of no use to anybody is not logged meanwhile."""
    log = import_module("traitlets.log").get_logger()

    def passes(record: logging.LogRecord) -> bool:
        return said not in record.getMessage()

    log.addFilter(passes)
    try:
        yield
    finally:
        log.removeFilter(passes)


def nearest(hosts: Sequence[str]) -> str:
    """The address by which these machines reach this one: that by which it reaches them."""
    found = [own_address_towards(host) for host in hosts]
    return next((each for each in found if not each.startswith("127.") and each != "::1"), found[0])


def _machine() -> str:
    """In the engine."""
    import socket

    return socket.gethostname()


def _label(name: str) -> str:
    """In the engine."""
    import os

    return os.environ.get(name, "")


def _reached_by() -> str:
    """In the engine: an address of its machine. What its name stands for may be the machine itself alone."""
    import socket

    import psutil

    all_of_them = [each for card in psutil.net_if_addrs().values() for each in card]
    known = [each.address for each in all_of_them if each.family == socket.AF_INET]
    return next((each for each in known if not each.startswith("127.")), "127.0.0.1")


def _begin_elsewhere(path: list[str], number: int | None, arguments: tuple[object, ...]) -> int:
    """In the engine: see the modules that the notebook sees, as far as they are there, and follow."""
    import os
    import sys

    if number is not None and "NOTEBOOK_LEARNER_SEES" not in os.environ:
        # It sees no other: whatever asks for all devices makes no context on the neighbours'. Once only: an
        # engine that is attached to again keeps its device; and a launcher may have given each its own.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if "," in visible or not visible:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number] if visible else str(number)
        os.environ["NOTEBOOK_LEARNER_SEES"] = str(number)
    sys.path.extend(each for each in path if each not in sys.path and os.path.isdir(each))
    from notebook_learner.fleet.elsewhere import begin

    return begin(*arguments)  # type: ignore[arg-type]  # they come as they were sent
