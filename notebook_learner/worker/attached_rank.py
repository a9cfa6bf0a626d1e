"""A rank in an engine of the user's cluster, which may be on another machine."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from ..ranks.channel import Channel, EncryptedDoor, come_through
from ..ranks.engines import end_processes, family_of
from .rank import Follower, follow

_GRACE = 10.0
"""Seconds that a rank has to leave a step in which it waits for others, after rank 0 is gone."""


def begin(door: tuple[str, bytes, bytes, bytes], rank: int, beside: int) -> int:
    """Follow rank 0 in a thread of this process; return the process's number.

    Args:
        door: where this rank connects to rank 0.
        rank: the number of this rank.
        beside: the number of ranks on this machine, which share its cores.
    """
    for earlier in _EARLIER:
        earlier.over()  # it may hang in a sum of a lost training, and must not end this process
    left = _Left()
    _EARLIER[:] = [left]
    try:
        channel = come_through(EncryptedDoor(*door), left.behind)
    except ConnectionError:
        left.over()
        raise
    return follow(FollowerElsewhere(channel, rank, left), threads_of_one(beside))


def threads_of_one(beside: int) -> int:
    """Count the threads for one of several ranks on this machine. Slurm may have given the job a part of the
    cores, and each rank its own part of those."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    given = int(os.environ.get("SLURM_CPUS_ON_NODE", cores))
    return cores if cores < given else max(1, given // beside)


class FollowerElsewhere(Follower):
    """Rank 1 or higher, on a machine of its own: rank 0 cannot end it, and its files may be in another
    place."""

    def __init__(self, channel: Channel, rank: int, left: _Left) -> None:
        super().__init__(channel, rank, [])
        self._left = left

    def _see(self, path: list[str], folder: str) -> None:
        sys.path.extend(each for each in path if each not in sys.path and os.path.isdir(each))
        if os.path.isdir(folder):
            os.chdir(folder)

    def _end(self) -> None:
        self.channel.close()
        self._left.over()

    def _vanish(self) -> None:
        self._reducer.sever()
        self._left.over()


class _Left:
    """What happens to this process when rank 0 does not need it any more: it belongs to the user, and lives
    on."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def behind(self) -> None:
        """End all that belongs to the training, when rank 0 cannot be reached."""
        if self._ended.wait(_GRACE):
            return
        # The rank waits in a sum and does not see that rank 0 is gone.
        with suppress(Exception):
            end_processes(family_of(os.getpid())[1:])  # its nanny, and a loader's workers
        os._exit(1)

    def over(self) -> None:
        """The follower is done."""
        self._ended.set()


_EARLIER: list[_Left] = []
"""The rank that this process was before, for another training."""
