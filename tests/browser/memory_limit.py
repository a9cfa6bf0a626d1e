"""A limit on the memory of one process, as containers and clusters set it: SIGKILL for who takes more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
LOOKS = 0.02  # seconds between two looks of the watchdog


@contextmanager
def memory_limit(pid: int, more: int) -> Iterator[str]:
    """Kill the process once it takes so many bytes more than now; says who kills: "cgroup" or "watchdog".

    A control group of Linux where this user may make one: then the system's own OOM killer does it.
    Elsewhere a thread that looks at the process's memory, as some container managers have.
    """
    group = _control_group(pid, more)
    with _watched(pid, more) if group is None else _left_at_the_end(group):
        yield "watchdog" if group is None else "cgroup"


@contextmanager
def _left_at_the_end(group: Path) -> Iterator[None]:
    try:
        yield
    finally:
        # Whoever is left goes back, because a group with a process in it cannot be removed.
        for left in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (group.parent / "cgroup.procs").write_text(left)
        group.rmdir()


@contextmanager
def _watched(pid: int, more: int) -> Iterator[None]:
    over = threading.Event()
    watchdog = threading.Thread(target=_watch, args=(psutil.Process(pid), more, over), daemon=True)
    watchdog.start()
    try:
        yield
    finally:
        over.set()
        watchdog.join()


def _control_group(pid: int, most: int) -> Path | None:
    """A new group below the one that the process is in, with that process; None if there can be none."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if CGROUPS.is_dir() else ():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        limit = "memory.limit_in_bytes" if controllers else "memory.max"  # the first version, the second
        root = CGROUPS / controllers
        # Inside a container the path is often that of the host, and the mount shows its end only.
        for parent in (root / path.lstrip("/"), root):
            group = parent / f"notebook-learner-{pid}"
            with suppress(OSError):
                group.mkdir()
                try:
                    # Memory from before stays with the group from before: this counts what is new.
                    (group / limit).write_text(str(most))
                    (group / "cgroup.procs").write_text(str(pid))
                except OSError:
                    group.rmdir()
                    raise
                return group
    return None


def _watch(process: psutil.Process, more: int, over: threading.Event) -> None:
    with suppress(psutil.NoSuchProcess):
        most = process.memory_info().rss + more
        while not over.wait(LOOKS):
            if process.memory_info().rss > most:
                process.kill()
