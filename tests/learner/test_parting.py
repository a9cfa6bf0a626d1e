"""Learners that nobody holds any more: what they leave is finished, and nobody waits for it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from notebook_learner import Artifacts, LearnerBuilder
from notebook_learner.learner.parting import when_gone

SOON = 60.0


class Thing:
    """Something that can be held, by itself too, and let go."""

    itself: Thing


def comes(what: Callable[[], bool]) -> bool:
    until = time.monotonic() + SOON
    while not what() and time.monotonic() < until:
        time.sleep(0.005)
    return what()


def test_a_collection_inside_the_hdf5_library_waits_for_nobody(tmp_path: Path) -> None:
    """The library has one lock. Whoever is collected while it is held has a writer that needs it."""
    held = h5py._objects.phil  # the lock; it has no public name
    data = [(torch.randn(4, 3), torch.randn(4, 1))] * 8
    builder = LearnerBuilder(tmp_path).loss(F.mse_loss).renderer("silent")
    learner = builder.build(nn.Linear(3, 1), lambda p: torch.optim.Adam(p, lr=0.01), None, data)
    learner.step(2)
    with held:
        learner.save(wait=False)
        gone = weakref.ref(learner)
        learner.itself = learner
        del learner
        gc.collect()  # waited here for ever before endings had a thread of their own
        assert gone() is None
    assert comes(lambda: len(Artifacts(tmp_path).checkpoints) == 1)


def test_whoever_lets_go_finds_all_ended_and_the_collector_goes_on_at_once() -> None:
    by: list[threading.Thread] = []
    thing = Thing()
    when_gone(thing, lambda: by.append(threading.current_thread()))
    del thing
    assert by == [threading.current_thread()]

    cycle = Thing()
    cycle.itself = cycle
    when_gone(cycle, lambda: by.append(threading.current_thread()))
    del cycle
    gc.collect()
    assert comes(lambda: len(by) == 2)
    assert by[1] is not threading.current_thread()


def test_an_ending_that_fails_is_told_of_and_keeps_no_other_from_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[type[BaseException] | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: told.append(given.exc_type))
    over = threading.Event()
    first, second = Thing(), Thing()
    when_gone(first, lambda: [][0])
    when_gone(second, over.set)
    first.itself = first
    del first
    gc.collect()
    assert comes(lambda: told == [IndexError])
    del second
    assert over.wait(SOON)


AT_THE_END = """
import gc, os, sys
from notebook_learner.learner.parting import when_gone

class Thing: ...
kept, gone = Thing(), Thing()
when_gone(kept, lambda: print("kept"))
when_gone(gone, lambda: print("gone"))
gone.itself = gone
del gone
gc.collect()
if "fork" in sys.argv and os.fork() == 0:
    sys.exit()
if "fork" in sys.argv:
    os.wait()
"""


@pytest.mark.parametrize(
    "how",
    [
        "alone",
        pytest.param("fork", marks=pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")),
    ],
)
def test_the_interpreter_ends_after_all_endings_each_once(how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, how], capture_output=True, text=True, timeout=SOON, check=True
    )
    assert sorted(done.stdout.split()) == ["gone", "kept"] and not done.stderr
