"""Engines of an ipyparallel cluster, on this machine or on others, for `LearnerBuilder.devices`.

    import ipyparallel

    builder.devices(ipyparallel.Cluster(n=4).start_and_connect_sync())

The user starts the cluster, with any of ipyparallel's launchers. The notebook's own process is rank 0, and
each engine is a further rank. What the ranks send each other is encrypted (CurveZMQ), with keys from the
cluster's controller: start it with `--IPController.enable_curve=True` if others can listen. Gradients are not
encrypted: torch.distributed sends them, so the machines should be in a trusted network.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_CHANNELS = ("control", "task", "mux", "iopub", "notification", "registration", "broadcast")
_COME = 60.0
"""Seconds to wait for each further engine that a Cluster has started."""


class ClusterError(Exception):
    """Why no engine of a cluster can be used; `build` reports it together with all other mistakes."""


@dataclass(frozen=True)
class Attached:
    """The ranks of one learner: this process, and the engines of a running cluster."""

    named: str
    """The name of the cluster in messages."""
    here: str
    """The device of this process."""
    address: str | None
    """The address at which engines reach this process; None for the one at which it reaches them."""
    connection: dict[str, Any] = field(repr=False)
    """The arguments of `ipyparallel.Client`, as in ipcontroller-client.json, with the cluster's key."""
    chosen: tuple[int, ...] | None
    """The ids of the engines that the user chose; None for all."""
    count: int

    @property
    def devices(self) -> list[str]:
        """The devices of all ranks, in order. An engine's CUDA device is decided on its machine."""
        return [self.here, *[self.here.partition(":")[0]] * self.count]


def is_cluster(given: object) -> bool:
    """Whether this names engines of ipyparallel, and not a device of this machine."""
    if not isinstance(given, str):
        return type(given).__module__.partition(".")[0] == "ipyparallel"
    if find_spec("ipyparallel") is None or _is_device(given):
        return False
    return os.path.exists(import_module("ipyparallel").Cluster(cluster_id=given).cluster_file)


def _is_device(given: str) -> bool:
    import torch  # other code loads this module without torch

    try:
        torch.device(given)
    except RuntimeError:
        return False
    return True


def find_engines(given: Any, here: Any, address: str | None) -> Attached:
    """Find the engines that a user names by an ipyparallel Cluster, a Client, its view, or a cluster's id.

    Raises:
        ClusterError: there is no such cluster, or it has no engine.
    """
    named = f"devices({given!r})" if isinstance(given, str) else f"devices({type(given).__name__})"
    if find_spec("cloudpickle") is None:
        raise ClusterError(f"{named}: engines need one more package: pip install 'notebook_learner[devices]'")
    client, chosen, is_own = _client_of(given, named)
    try:
        ids = sorted(client.ids)
        if chosen is not None and (gone := sorted({*chosen} - {*ids})):
            raise ClusterError(f"{named}: engine {gone[0]} is not there; the cluster has {ids}")
        count = len(ids if chosen is None else chosen)
        if not count:
            raise ClusterError(
                f"{named}: the cluster has no engine yet; start some (cluster.start_engines_sync(n=2)), and "
                "wait for them: client.wait_for_engines(2)"
            )
        return Attached(named, _own(here), address, _connection(client), chosen, count)
    finally:
        if is_own:
            client.close()


def _client_of(given: Any, named: str) -> tuple[Any, tuple[int, ...] | None, bool]:
    """A client, the ids that were chosen, and whether the client was made here."""
    ipyparallel = import_module("ipyparallel")
    if isinstance(given, ipyparallel.Client):
        return given, None, False
    if isinstance(given, ipyparallel.DirectView):
        targets = given.targets
        chosen = (targets,) if isinstance(targets, int) else None if targets == "all" else tuple(targets)
        return given.client, chosen, False
    cluster = ipyparallel.Cluster.from_file(cluster_id=given) if isinstance(given, str) else given
    if cluster.controller is None:
        raise ClusterError(f"{named}: the cluster does not run yet; start it: cluster.start_cluster_sync()")
    try:
        client = cluster.connect_client_sync()
    except OSError as error:  # a timeout is an OSError
        raise ClusterError(
            f"{named}: the cluster's controller does not answer ({error}). `ipcluster list` shows what runs; "
            "cluster.start_cluster_sync() starts it again"
        ) from error
    _wait_for_all(client, sum(each.n or 0 for each in cluster.engines.values()), named)
    return client, None, True


def _wait_for_all(client: Any, started: int, named: str) -> None:
    """Wait until every started engine has connected: a learner on the first ones would not mention the
    others."""
    count, since = len(client.ids), time.monotonic()
    while count < started:
        if time.monotonic() > since + _COME:
            raise ClusterError(
                f"{named}: {count} of {started} engines have come, and none in the last {_COME:.0f} s. If "
                f"the others wait in a queue: cluster.connect_client_sync().wait_for_engines({started}); if "
                "they have ended, give the ones that are there: devices(cluster.connect_client_sync())"
            )
        time.sleep(0.1)
        before, count = count, len(client.ids)
        if count > before:
            since = time.monotonic()


def _connection(client: Any) -> dict[str, Any]:
    """The arguments that a client was made with. It keeps an address in place of each port (ipyparallel
    9.2)."""
    found = dict(client._config)
    for channel in _CHANNELS:
        found[channel] = int(str(found[channel]).rpartition(":")[2])
    return found


def __getattr__(name: str) -> Any:
    if name in ("ssh", "slurm", "attach"):
        raise AttributeError(
            f"cluster.{name} is gone: ipyparallel starts engines by ssh, Slurm and more, and devices(...) "
            "takes its Cluster or Client, or a cluster's id; tutorial 9 has the lines for each"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _own(here: Any) -> str:
    if here is not None:
        return str(here)
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"
