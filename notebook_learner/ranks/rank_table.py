"""`learner.devices`: which process trains on which device, and its condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..run.replica import Replica
    from .rank_processes import Member


@dataclass(frozen=True, slots=True)
class RankInfo:
    """One rank of the table: its process, device, step, memory and speed."""

    rank: int
    host: str
    device: str
    pid: int
    alive: bool
    step: int | None
    """Finished training steps; while the ranks train, the number that all ranks have reported."""
    memory: int | None
    """Bytes of memory that the process uses."""
    device_memory: int | None = None
    """Bytes of tensors on an accelerator."""
    rate: float | None = None
    """Steps a second that it could take alone, in the last block of steps. Together all ranks are as fast as
    the slowest one, and the others wait."""


class RankTable(Sequence[RankInfo]):
    """All ranks of a learner, shown as a table."""

    def __init__(self, infos: Sequence[RankInfo]) -> None:
        self._infos = tuple(infos)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # as a tuple's own: by number or slice
        return self._infos[index]

    def __len__(self) -> int:
        return len(self._infos)

    def __iter__(self) -> Iterator[RankInfo]:
        return iter(self._infos)

    def __repr__(self) -> str:
        head = ("rank", "host", "device", "process", "alive", "step", "steps/s", "memory")
        rows = [head, *(_cells(each) for each in self._infos)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows
        ]
        return "\n".join(line.rstrip() for line in lines)


def _cells(info: RankInfo) -> tuple[str, ...]:
    step = "" if info.step is None else str(info.step)
    memory = "" if info.memory is None else f"{info.memory / 1e6:.0f} MB"
    alive = "yes" if info.alive else "no"
    rate = "" if info.rate is None else f"{info.rate:.3g}"
    return str(info.rank), info.host, info.device, str(info.pid), alive, step, rate, memory


def one_device(replica: Replica) -> RankTable:
    """The table of a learner without other ranks."""
    return RankTable([of_this_process(replica)])


def of_this_process(replica: Replica, rate: float | None = None) -> RankInfo:
    """Rank 0."""
    import os
    import socket

    import psutil
    import torch

    train = replica.loop.passes.get("train")
    device = next(replica.loop.update.model.parameters()).device if train is None else train.step.device
    used = torch.cuda.memory_allocated(device) if device.type == "cuda" else None
    memory = psutil.Process().memory_info().rss
    step = replica.loop.iteration
    return RankInfo(0, socket.gethostname(), str(device), os.getpid(), True, step, memory, used, rate)


def of_member(member: Member, alive: bool, told: Mapping[str, Any], rate: float | None) -> RankInfo:
    """The entry of another rank, from its own answer; here its memory can also be measured from outside."""
    memory = told.get("host") or (_memory_of(member.pid) if alive and member.is_here else None)
    where = (member.rank, member.host, str(member.device), member.pid)
    return RankInfo(*where, alive, told.get("step"), memory, told.get("device"), rate if alive else None)


def _memory_of(pid: int) -> int | None:
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
