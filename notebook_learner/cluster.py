"""Other machines for `LearnerBuilder.devices`: reached by ssh, given by Slurm, or of a cluster that runs.

    from notebook_learner import cluster

    builder.devices(cluster.ssh({"gpu-b": 4, "gpu-c": 4}, here=["cuda:0", "cuda:1"]))
    builder.devices(cluster.slurm(nodes=2, devices=8, options=["--partition=gpu", "--time=08:00:00"]))
    builder.devices(cluster.attach("night", devices=8))

The notebook's own process is rank 0. Every host needs the packages that this one has, in the same versions.
What the ranks tell each other is encrypted (CurveZMQ). Gradients are not: they go as torch.distributed sends
them, so the hosts should be in a network that is trusted.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Attached", "Hosts", "SlurmJob", "attach", "slurm", "ssh"]

_Devices = int | str | Sequence[str]
_SAID = {
    "-N --nodes": "nodes= says that",
    "-n --ntasks --ntasks-per-node -a --array": "devices= says that: there is a task for each",
    "-W --wait --wrap": "the learner says what the job runs, and waits for it",
    "--requeue": "a job that begins again has nobody to come to; learner.restart() asks for a new one",
    "--export": "engines are told by their environment where to come",
    "-M --clusters": "a job of another cluster can be neither seen nor cancelled from here",
}
"""Options of sbatch with which the job would be another one than the learner waits for."""


@dataclass(frozen=True)
class Cluster:
    """Where the ranks are."""

    here: tuple[str, ...]
    """Of this machine: the first one is trained on by this process."""
    address: str | None
    """Of this machine, as the others reach it; None for the one by which it reaches them."""

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The devices of other machines."""
        raise NotImplementedError

    @property
    def devices(self) -> list[str]:
        """Of all ranks, in their order."""
        return [*self.here, *self.elsewhere]

    def machines(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """What each other machine is called, as far as they are told apart, and its devices."""
        raise NotImplementedError

    def mistakes(self) -> Iterator[str]:
        """What is wrong with it, as far as can be told without asking anybody."""
        if not self.here:
            yield "cluster: here=[] leaves nothing for this process, which is rank 0; give a device, or None"
        if not self.elsewhere:
            yield from self._nobody_elsewhere()

    def _nobody_elsewhere(self) -> Iterator[str]:
        yield f"cluster: {self!r} has no other machine; devices([...]) is for this one alone"


@dataclass(frozen=True)
class Hosts(Cluster):
    """Machines that engines are started on by ssh."""

    there: tuple[tuple[str, tuple[str, ...]], ...]
    python: str | None
    options: tuple[str, ...]

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The devices of other machines."""
        return tuple(device for _, devices in self.there for device in devices)

    def machines(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each by its name."""
        return ((f"cluster.ssh, {host}", devices) for host, devices in self.there)


@dataclass(frozen=True)
class Attached(Cluster):
    """Engines of an ipyparallel cluster that somebody has started."""

    name: str
    profile: str | None
    engines: tuple[str, ...]

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The devices of other machines."""
        return self.engines

    def machines(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each engine by itself: which is whose is not known yet."""
        return ((f"cluster.attach, {device}", (device,)) for device in self.engines)


@dataclass(frozen=True)
class SlurmJob(Cluster):
    """Nodes that are asked of Slurm, for as long as a learner needs them."""

    nodes: int
    each: tuple[str, ...]
    """The devices of every node."""
    python: str | None
    options: tuple[str, ...]

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The devices of other machines."""
        return self.each * self.nodes if _is_count(self.nodes) else ()

    def machines(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """One for all: they are alike."""
        yield "cluster.slurm, each node", self.each or ("cpu",)

    def mistakes(self) -> Iterator[str]:
        """What is wrong with it, as far as can be told without asking Slurm."""
        yield from super().mistakes()
        for option in self.options:
            name = option.partition("=")[0] if option.startswith("--") else option[:2]
            yield from (
                f"cluster.slurm(options=...): leave {name} out; {why}"
                for names, why in _SAID.items()
                if name in names.split()
            )
        if self.options and not self.options[0].startswith("-"):
            yield (
                f"cluster.slurm(options=...): sbatch would take {self.options[0]!r} for the job itself; give "
                'its options, such as ["--partition=gpu", "--time=08:00:00"]'
            )
        if shutil.which("sbatch") is None:
            yield (
                "cluster.slurm: there is no sbatch here; run the kernel where Slurm's commands are (a login "
                "node, or a job of its own), or use cluster.ssh"
            )

    def _nobody_elsewhere(self) -> Iterator[str]:
        if not _is_count(self.nodes):
            yield f"cluster.slurm(nodes={self.nodes!r}): give how many nodes, 1 or more"
        if not self.each:
            yield "cluster.slurm(devices=...): give the devices of each node, such as 4 or ['cuda:0']"


def ssh(
    hosts: Mapping[str, _Devices],
    *,
    here: str | Sequence[str] | None = None,
    address: str | None = None,
    python: str | None = None,
    options: Sequence[str] = (),
) -> Hosts:
    """Machines that one can reach by `ssh` without a password.

    Args:
        hosts: which devices of which machine ("name", "user@name" or "name:port"), as in {"gpu-b": 4} or
            {"gpu-b": ["cuda:0", "cuda:2"]}. So many means that many of the kind of `here`.
        here: the devices of this machine; by default its first CUDA device, else the CPU.
        address: where the others reach this machine, if it has several addresses.
        python: the interpreter there; by default the path of this one.
        options: more arguments for ssh, such as ["-i", "key"].

    Example:
        >>> from notebook_learner import cluster
        >>> cluster.ssh({"b": 2, "c": ["cpu"]}, here="cpu").devices
        ['cpu', 'cpu', 'cpu', 'cpu']
    """
    own = _own(here)
    there = tuple((host, _listed(devices, own)) for host, devices in hosts.items())
    return Hosts(own, address, there, python, tuple(options))


def slurm(
    *,
    nodes: int = 1,
    devices: _Devices,
    options: Sequence[str] = (),
    here: str | Sequence[str] | None = None,
    address: str | None = None,
    python: str | None = None,
) -> SlurmJob:
    """Nodes that Slurm gives: the first verb that trains asks for a job, and the job is cancelled when the
    learner is gone, however that comes about. As long as the job is in the queue the verb waits, and tells
    now and then for what; an interrupt, or `pause()`, ends the waiting and cancels the job.

    This kernel is rank 0 and no part of the job: it may run on a login node, or in a job of its own.

    Args:
        nodes: how many.
        devices: which devices of each node, as in 8 or ["cuda:0", "cuda:2"]. So many means that many of the
            kind of `here`. For CUDA devices the job asks for as many (`--gpus-per-node`) unless `options`
            does; "--gres=none" is for a cluster that does not count its GPUs.
        options: more arguments for sbatch, such as ["--partition=gpu", "--time=08:00:00"].
        here: the devices of this machine; by default its first CUDA device, else the CPU.
        address: where the nodes reach this machine, if it has several addresses.
        python: the interpreter there; by default the path of this one.

    Example:
        >>> from notebook_learner import cluster
        >>> cluster.slurm(nodes=2, devices=2, here="cpu", options=["--time=08:00:00"]).devices
        ['cpu', 'cpu', 'cpu', 'cpu', 'cpu']
    """
    own = _own(here)
    options = (options,) if isinstance(options, str) else tuple(options)
    return SlurmJob(own, address, nodes, _listed(devices, own), python, options)


def attach(
    name: str = "",
    *,
    devices: _Devices,
    here: str | Sequence[str] | None = None,
    address: str | None = None,
    profile: str | None = None,
) -> Attached:
    """Engines that run already: of `ipcluster start`, by whichever way that starts them (MPI, Slurm, PBS,
    Kubernetes ...). They are left running when the learner is gone.

    Args:
        name: the cluster's id; "" for the only one without.
        devices: which devices the engines train on, in the order of their ids; a number means that many
            engines, each with one of the kind of `here`: the first engine of a machine has its first.
        here: the devices of this machine; by default its first CUDA device, else the CPU.
        address: where the others reach this machine, if it has several addresses.
        profile: the IPython profile that the cluster was started with.

    Example:
        >>> from notebook_learner import cluster
        >>> cluster.attach("night", devices=2, here="cpu").devices
        ['cpu', 'cpu', 'cpu']
    """
    own = _own(here)
    if isinstance(devices, int):  # which is which machine's shows once they are asked
        devices = [own[0].partition(":")[0] if own else "cpu"] * devices
    return Attached(own, address, name, profile, _listed(devices, own))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _own(here: str | Sequence[str] | None) -> tuple[str, ...]:
    if here is not None:
        return (here,) if isinstance(here, str) else tuple(here)
    import torch  # only whoever leaves it open waits for that

    return ("cuda:0",) if torch.cuda.is_available() else ("cpu",)


def _listed(devices: _Devices, own: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(devices, str):
        return (devices,)
    if isinstance(devices, int):
        cuda = bool(own) and own[0].startswith("cuda")
        return tuple(f"cuda:{number}" if cuda else "cpu" for number in range(devices))
    return tuple(devices)
