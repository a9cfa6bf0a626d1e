"""Engines over ssh are started beside each other, the first of each machine before its others."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from notebook_learner.fleet.ssh import AT_ONCE, Starts

SOON = 30.0


def launchers(start: Any) -> Any:
    """In the place of ipyparallel's: an engine is started by this function of its machine."""

    class Engine:
        def start(self, hostname: str) -> None:
            start(hostname)

    class EngineSet:
        launcher_class: Any = Engine

        def start_on(self, host: str, count: int) -> None:
            for _ in range(count):
                self.launcher_class().start(hostname=host)

    return SimpleNamespace(SSHEngineLauncher=Engine, SSHEngineSetLauncher=EngineSet)


def started_on(starts: Starts, **hosts: int) -> None:
    for host, count in hosts.items():
        starts.launcher().start_on(host, count)


def test_machines_are_started_at_the_same_time_and_so_are_their_engines() -> None:
    first, others = threading.Barrier(3), threading.Barrier(AT_ONCE)
    lock, begun = threading.Lock(), []

    def start(host: str) -> None:
        with lock:
            begun.append(host)
            is_first = begun.count(host) == 1
        if is_first:
            first.wait(SOON)  # passes only where all three machines are begun with
        elif host == "b":
            others.wait(SOON)  # passes only where as many engines of one machine are

    starts = Starts(launchers(start))
    started_on(starts, a=1, b=1 + AT_ONCE, c=2)
    assert begun == [], "nothing before all are known"
    starts.go()
    assert sorted(begun) == ["a", *"b" * (1 + AT_ONCE), "c", "c"]


def test_the_first_engine_of_a_machine_is_there_before_the_next_is_begun() -> None:
    there: list[int] = []
    began: list[int] = []

    def start(host: str) -> None:
        began.append(len(there))
        there.append(len(began))

    starts = Starts(launchers(start))
    started_on(starts, a=3)
    starts.go()
    assert began[0] == 0 and min(began[1:]) >= 1


def test_where_one_cannot_be_started_the_error_comes_and_no_other_is_begun_with() -> None:
    began: list[str] = []

    def start(host: str) -> None:
        began.append(host)
        raise RuntimeError(f"no engine on {host}")

    starts = Starts(launchers(start))
    started_on(starts, a=5)
    with pytest.raises(RuntimeError, match="no engine on a"):
        starts.go()
    assert began == ["a"]
