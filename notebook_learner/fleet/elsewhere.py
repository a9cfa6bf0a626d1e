"""A rank on another machine, in its own process."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress

from .channel import Channel
from .engines import end_processes, family_of
from .follower import Follower, follow
from .link import Door, come_through

_GRACE = 10.0
"""Seconds that a rank has to leave a step in which it waits for others, once rank 0 is gone."""


def begin(door: tuple[str, bytes, bytes, bytes], rank: int, beside: int, stays: bool) -> int:
    """Follow rank 0 in a thread of this process; gives the process's number.

    Args:
        door: where rank 0 expects it.
        rank: which one it is.
        beside: ranks on this machine, which share its cores.
        stays: whether this process was there before, and is to be there after.
    """
    left = _Left(stays)
    if not stays:
        with suppress(ValueError):  # a launcher may run it in another thread
            # ipyparallel handles it and lets threads go on: a cancelled job would train until it is killed.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        channel = come_through(Door(*door), left.behind)
    except ConnectionError:
        threading.Timer(_GRACE, left.over, (0.0,)).start()  # once this has been told
        raise
    return follow(FollowerElsewhere(channel, rank, left), threads_of_one(beside))


def threads_of_one(beside: int) -> int:
    """For one of so many ranks on this machine. Slurm may have given its job a part of the cores, and each
    rank its own part of those."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    given = int(os.environ.get("SLURM_CPUS_ON_NODE", cores))
    return cores if cores < given else max(1, given // beside)


class FollowerElsewhere(Follower):
    """Rank 1 or higher, on a machine of its own: rank 0 cannot end it, and its files may lie elsewhere."""

    def __init__(self, channel: Channel, rank: int, left: _Left) -> None:
        super().__init__(channel, rank, [])
        self._left = left

    def _see(self, path: list[str], folder: str) -> None:
        sys.path.extend(each for each in path if each not in sys.path and os.path.isdir(each))
        if os.path.isdir(folder):
            os.chdir(folder)

    def _end(self) -> None:
        self.channel.close()
        self._left.over(after=1.0)

    def _vanish(self) -> None:
        self._reducer.sever()
        self._left.over(after=0.0)


class _Left:
    """What becomes of this process when rank 0 has no use for it any more."""

    def __init__(self, stays: bool) -> None:
        self._stays = stays
        self._ended = threading.Event()

    def behind(self) -> None:
        """Rank 0 cannot be reached: nothing of its training is to outlive it."""
        if not self._ended.wait(_GRACE):
            self._exit(1)  # it waits in a sum, which hears of nothing

    def over(self, after: float) -> None:
        """The follower is done."""
        self._ended.set()
        if not self._stays:
            time.sleep(after)  # the last message is on its way
            self._exit(0)

    @staticmethod
    def _exit(code: int) -> None:
        with suppress(Exception):
            end_processes(family_of(os.getpid())[1:])  # its nanny, and a loader's workers
        os._exit(code)
