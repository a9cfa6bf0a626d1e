"""Learners without a reference: what they leave is finished, and no thread waits for it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType

import h5py
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Artifacts, Learner, LearnerBuilder
from notebook_learner.learner.finalizer import Parting
from notebook_learner.metric import Loss
from notebook_learner.store import background
from notebook_learner.store.background import hand_over

SOON = 60.0


class Thing:
    """Something that can be held, by itself too, and let go."""

    itself: Thing
    parting: Parting


@pytest.fixture(autouse=True)
def collections_are_short() -> Iterator[None]:
    """A collection looks at what a test made, and not at all that torch brought: 0.3 s each."""
    gc.freeze()
    yield
    gc.unfreeze()


def comes(what: Callable[[], bool]) -> bool:
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        if what():
            return True
        time.sleep(0.005)
    return False


def all_that_went_is_finished() -> bool:
    """They take their turns: once this one is over, so are all before it."""
    last, over = Thing(), threading.Event()
    last.parting = Parting(over.set)
    last.itself = last
    del last

    def finished() -> bool:
        gc.collect()
        return over.is_set()

    return comes(finished)


def test_a_collection_inside_the_hdf5_library_waits_for_nobody(tmp_path: Path) -> None:
    """The library has one lock. A learner that is collected while it is held has a writer that needs it."""
    held = h5py._objects.phil  # the lock; it has no public name
    data = [(torch.randn(4, 3), torch.randn(4, 1))] * 8
    builder = LearnerBuilder(tmp_path).loss(F.mse_loss).renderer("silent")
    learner = builder.build(nn.Linear(3, 1), lambda p: torch.optim.Adam(p, lr=0.01), None, data)
    learner.step(2)
    with held:
        learner.save(wait=False)
        gone = weakref.ref(learner)
        learner._itself = learner
        del learner
        gc.collect()  # waited here for ever before endings had a thread of their own
        assert gone() is None
    assert comes(lambda: len(Artifacts(tmp_path).checkpoints) == 1)


def test_whoever_lets_go_finds_all_ended_and_the_collector_goes_on_at_once() -> None:
    by: list[threading.Thread] = []
    thing = Thing()
    thing.parting = Parting(lambda: by.append(threading.current_thread()))
    del thing
    assert by == [threading.current_thread()]

    cycle = Thing()
    cycle.itself = cycle
    cycle.parting = Parting(lambda: by.append(threading.current_thread()))
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
    first.parting = Parting(lambda: [][0])
    second.parting = Parting(over.set)
    first.itself = first
    del first
    gc.collect()
    assert comes(lambda: told == [IndexError])
    del second
    assert over.wait(SOON)


AT_THE_END = """
import gc, os, sys
from notebook_learner.learner.finalizer import Parting

class Thing: ...
kept, gone = Thing(), Thing()
kept.parting = Parting(lambda: print("kept"))
gone.parting = Parting(lambda: print("gone"))
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
        # Python 3.12 and newer warn of the fork that is meant here.
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", AT_THE_END, how],
        capture_output=True,
        text=True,
        timeout=SOON,
        check=True,
    )
    assert sorted(done.stdout.split()) == ["gone", "kept"] and not done.stderr


DATA = TensorDataset(torch.randn(32, 3), torch.randn(32, 1))


class LearningError(Exception):
    """What the step raises where it was asked to."""


class Model(nn.Linear):
    """Fails when told to."""

    fails = False


def left_after_steps(learner: Learner) -> None:
    learner.step(3)


def left_with_a_checkpoint_on_its_way(learner: Learner) -> None:
    learner.step(3)
    learner.save(wait=False)


def left_after_looking_and_going_back(learner: Learner) -> None:
    learner.step(3)
    learner.inspect()
    learner.rewind(2)


def left_at_the_end(learner: Learner) -> None:
    learner.fit()


def left_with_an_error_of_its_background(learner: Learner) -> None:
    learner.model.fails = True
    learner.start()
    with pytest.raises(LearningError):
        learner.wait()


def left_after_evaluation(learner: Learner) -> None:
    learner.step(3)
    learner.evaluate(DataLoader(DATA, 4), name="test")
    learner.predict(DataLoader(DATA, 4))


LEFT = [
    left_after_steps,
    left_with_a_checkpoint_on_its_way,
    left_after_looking_and_going_back,
    left_at_the_end,
    left_with_an_error_of_its_background,
    left_after_evaluation,
]


def learner_of_its_own_step(directory: Path, workers: int) -> Learner:
    """A step that refers to its learner, as one that is written below the learner's cell may."""
    mine: list[Learner] = []

    def step(model: Model, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if mine[0].model.fails:
            raise LearningError
        return F.mse_loss(model(batch[0]), batch[1])

    builder = LearnerBuilder(directory).num_epochs(2).metrics(Loss()).with_file_checkpointer()
    builder = builder.renderer("silent").train_step(step).valid_step(step)
    loader = DataLoader(DATA, 4, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    mine.append(builder.build(Model(3, 1), lambda p: torch.optim.Adam(p, lr=0.01), None, loader, loader))
    return mine[0]


def some_wait_for_work() -> None:
    """Threads that take what is handed over stay for the next: with these no other one is started."""
    met = threading.Barrier(5)

    def meet() -> None:
        met.wait(SOON)

    for _ in range(4):
        hand_over(meet)
    met.wait(SOON)
    # A thread that has done its work, and does not wait yet, is one for which another is started.
    assert comes(lambda: background._pool._idle_semaphore._value >= 4)


def open_below(directory: Path) -> list[str]:
    """What this process has open there; nothing where the system does not tell."""
    here = Path("/proc/self/fd")
    names = [os.readlink(each) for each in here.iterdir() if each.is_symlink()] if here.is_dir() else []
    return [name for name in names if name.startswith(str(directory))]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("left", LEFT, ids=lambda left: left.__name__)
@pytest.mark.rounds(3)
def test_a_learner_that_its_own_step_refers_to_goes_with_its_files_and_workers(
    tmp_path: Path, left: Callable[[Learner], None], workers: int
) -> None:
    some_wait_for_work()
    children, threads = set(multiprocessing.active_children()), set(threading.enumerate())
    learner = learner_of_its_own_step(tmp_path, workers)
    left(learner)
    gone = weakref.ref(learner)
    del learner

    def collected() -> bool:
        gc.collect()  # a checkpoint that is being written holds all
        return gone() is None

    def over() -> bool:
        gc.collect()  # what finished it all held it once more, and the log was written
        return (
            set(multiprocessing.active_children()) <= children
            and not open_below(tmp_path)
            and all(each.name == "notebook_learner parting" for each in set(threading.enumerate()) - threads)
        )

    assert comes(collected) and all_that_went_is_finished()
    assert comes(over), (
        multiprocessing.active_children(),
        open_below(tmp_path),
        threading.enumerate(),
    )


def test_the_collector_calls_no_python_of_ours() -> None:
    """An interrupt that came there would be printed, as ignored, and lost."""
    files = [call.__code__.co_filename for call in gc.callbacks if isinstance(call, FunctionType)]
    assert not [file for file in files if "notebook_learner" in file]
