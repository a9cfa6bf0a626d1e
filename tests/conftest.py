"""What holds for every test.

Test files and their helpers have names of their own throughout the tree: folders here are no packages,
so a helper is imported by its bare name, and a second one of that name would silently be the first.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from programs import mark_programs, require_programs

from notebook_learner.run.driver import BACKGROUND, Driver

_LAST_STEP = 60.0  # seconds, on a machine that is busy with other things

# One thread here, and in the processes that tests start. The tensors of tests are tiny, so a second
# thread costs more than it saves; and with a pytest-xdist worker on every core there is none to spare:
# OpenMP's threads then wait for each other (the digits tutorial took 60 s in place of 5).
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"

# A shell starts what it puts into the background (`pytest &` in a script) with interrupts ignored, and so
# would be every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Loaders fork their workers while other threads run. Where coverage is measured, each thread takes its lock
# when it comes to a file for the first time; a worker forked in that moment would wait for it for ever.
_held_by_fork: list[Any] = []


def _take_the_lock_of_coverage() -> None:
    coverage = sys.modules.get("coverage")
    current = None if coverage is None else coverage.Coverage.current()
    lock = getattr(getattr(current, "_collector", None), "data_lock", None)
    if lock is not None:
        lock.acquire()
        _held_by_fork.append(lock)


def _give_it_back() -> None:
    while _held_by_fork:
        _held_by_fork.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_take_the_lock_of_coverage, after_in_parent=_give_it_back, after_in_child=_give_it_back
    )

# No deadline and no slowness check: a test does not fail for the machine's being busy. In CI the same
# examples every time, so that a change is judged by what it changed; at a desk new ones, kept when they
# fail.
UNTIMED = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("desk", UNTIMED)
settings.register_profile("ci", UNTIMED, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "desk")


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """A test that leaves `no_grad` behind fails itself, and not the hundred after it in its process."""
    yield
    on = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert on, "this test left torch's gradients switched off"


_crews: Any = None
with suppress(ModuleNotFoundError):  # a desk may lack the extra `devices`
    _crews = import_module("notebook_learner.ranks.rank_processes")
    _crews.SPARE = 2  # engines take seconds to start, and many tests compare two learners on ranks


def _crews_at_work() -> set[int]:
    return set() if _crews is None else {*map(id, _crews._at_work)}


@pytest.fixture(autouse=True)
def processes_are_released() -> Iterator[None]:
    """The next test uses the processes of this one's learners, which a reference cycle may still hold."""
    before = _crews_at_work()
    yield
    if not before.issuperset(_crews_at_work()):
        gc.collect()


@pytest.fixture(autouse=True)
def trainings_end() -> Iterator[None]:
    """Likewise one that leaves a training behind, which would draw from torch's generator in other tests."""
    yield
    if not any(thread.name == BACKGROUND for thread in threading.enumerate()):
        return
    left = [thing for thing in gc.get_objects() if isinstance(thing, Driver) and thing.busy]
    ended = [driver.leave(_LAST_STEP) for driver in left]
    assert not left, "this test left a training behind" + (", which goes on" if not all(ended) else "")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark of tests/programs.py, and those of the two tiers."""
    config.addinivalue_line("markers", "needs_program(*names): left out where one of these is not installed")
    config.addinivalue_line("markers", "soak: runs by `python -m pytest -m soak` alone (tests/SOAK.md)")
    config.addinivalue_line("markers", "rounds(n): the first n cases run by default, the rest in the soak")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the later cases of a test with `rounds(n)` to the soak."""
    taken: Counter[tuple[Path, str]] = Counter()
    for item in items:
        mark = item.get_closest_marker("rounds")
        if mark is not None:
            test = item.path, getattr(item, "originalname", item.name)
            taken[test] += 1
            if taken[test] > mark.args[0]:
                item.add_marker(pytest.mark.soak)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let `-m needs_program` choose the tests that need one."""
    mark_programs(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what needs a program that this machine lacks."""
    for mark in item.iter_markers("needs_program"):
        require_programs(*mark.args)


@pytest.fixture
def hdf5_tool() -> Callable[..., str]:
    """Run one of the HDF Group's own readers (h5dump, h5ls), which are of a version before our library's."""

    def run(*command: str | Path) -> str:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and not done.stderr, done.stderr
        return done.stdout

    return run
