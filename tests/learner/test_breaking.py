"""A step is broken off only where no lock is left behind: what was taken in that moment would never be given
back, and a thread would wait for it for ever."""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import os
import queue
import select
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from driver_support import BATCH, TRAIN, Samples, assert_ended_like, assert_stands_like, bench, by_hand
from torch.utils.data import DataLoader, Sampler

from notebook_learner import Paused
from notebook_learner.data.cursor import Cursor
from notebook_learner.run.interrupts import Breaking

SOON = 30.0


class Lock:
    """A lock that keeps the frame of the function that takes it."""

    def __init__(self) -> None:
        self.frames: list[FrameType] = []
        self._lock = threading.RLock()

    def acquire(self, *how: Any) -> bool:
        self.frames.append(sys._getframe(1))
        return self._lock.acquire(*how)

    def release(self) -> None:
        self._lock.release()

    def _is_owned(self) -> bool:
        return self._lock._is_owned()  # type: ignore[attr-defined, no-any-return]  # as a condition asks

    def __enter__(self) -> bool:
        self.frames.append(sys._getframe(1))
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)


def of_a_condition(lock: Lock) -> None:
    with threading.Condition(lock):  # type: ignore[arg-type]  # it has all that a condition calls
        pass


def of_a_queue(lock: Lock) -> None:
    one = queue.Queue[int]()
    one.not_full = one.not_empty = threading.Condition(lock)  # type: ignore[arg-type]
    one.put(1)


def of_logging(lock: Lock) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging, "_lock", lock)
        logging.getLogger("notebook_learner.tests.breaking").handlers.clear()


@pytest.mark.parametrize("take", [of_a_condition, of_a_queue, of_logging])
def test_not_where_a_lock_is_taken(take: Callable[[Lock], None]) -> None:
    lock = Lock()
    take(lock)
    assert lock.frames
    assert not any(Breaking().is_harmless(frame) for frame in lock.frames)


def test_where_the_same_lock_is_still_waited_for_it_is() -> None:
    """No other thread holds the lock: without this, a step that waits for its own lock could not be left."""
    lock, breaking = Lock(), Breaking()
    of_a_condition(lock)
    of_a_condition(lock)
    first, second = lock.frames

    assert not breaking.is_harmless(first)
    assert not breaking.is_harmless(second), "the same place of the code, and another time"
    assert breaking.is_harmless(second)


def test_where_something_else_is_waited_for_it_is() -> None:
    frames: list[FrameType] = []

    class Event(threading.Event):
        def __init__(self) -> None:
            super().__init__()
            self._cond = threading.Condition(Waited())  # type: ignore[arg-type]

    class Waited(Lock):
        def _release_save(self) -> None:
            frames.append(sys._getframe(1))

        def _acquire_restore(self, state: object) -> None: ...

        def _is_owned(self) -> bool:
            return True

    Event().wait(0.001)
    assert [frame.f_code.co_name for frame in frames] == ["wait"]
    assert Breaking().is_harmless(frames[0])


def test_not_while_something_is_cleaned_up() -> None:
    frames: list[FrameType] = []

    class Thing:
        def __del__(self) -> None:
            (lambda: frames.append(sys._getframe()))()

    Thing()
    assert not Breaking().is_harmless(frames[0])


def test_not_while_something_that_went_away_is_forgotten() -> None:
    """What is raised in the callback of a weak reference is printed, and lost."""
    frames: list[FrameType] = []

    class Key:
        def __hash__(self) -> int:
            frames.append(sys._getframe())
            return 1

    class Thing: ...

    known = weakref.WeakValueDictionary[Key, Thing]()
    thing = known[Key()] = Thing()
    frames.clear()
    del thing
    (forgotten,) = frames
    assert forgotten.f_back is not None and forgotten.f_back.f_code.co_name == "remove"
    assert not Breaking().is_harmless(forgotten)


class Collecting:
    """Notes the frames in which Python tells of a garbage collection."""

    def __init__(self) -> None:
        self.frames: list[FrameType] = []

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        self.frames.append(sys._getframe())

    def tell(self, phase: str, info: dict[str, int]) -> None:
        (lambda: self.frames.append(sys._getframe()))()


@pytest.mark.parametrize("as_a", ["method", "object"])
def test_not_while_somebody_is_told_of_a_garbage_collection(as_a: str) -> None:
    """Python prints what is raised there, and goes on."""
    collecting = Collecting()
    callback = collecting.tell if as_a == "method" else collecting
    gc.callbacks.append(callback)
    try:
        gc.collect()
        assert collecting.frames
        assert not any(Breaking().is_harmless(frame) for frame in collecting.frames)
    finally:
        gc.callbacks.remove(callback)


def test_not_while_an_import_forgets_its_lock() -> None:
    """By the callback of a weak reference, once for each module."""
    frames: list[FrameType] = []
    sys.setprofile(
        lambda frame, event, argument: frames.append(frame) if frame.f_code.co_name == "cb" else None
    )
    try:
        importlib.import_module("a_module_that_is_not_there")
    except ModuleNotFoundError:
        pass
    finally:
        sys.setprofile(None)
    assert {frame.f_globals["__name__"] for frame in frames} == {"importlib._bootstrap"}
    assert not any(Breaking().is_harmless(frame) for frame in frames)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows blocks no signals")
def test_not_while_this_thread_keeps_interrupts_away() -> None:
    """Another thread may get the signal; its handler runs in this one all the same."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        assert not Breaking().is_harmless(sys._getframe())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    assert Breaking().is_harmless(sys._getframe())


class AtAFork:
    """Interrupts as this process is about to fork. Python swallows what is raised there.

    Another thread may be given the signal, and may be slow to run: it is waited for, or the interrupt could
    come after all that this test does about interrupts.
    """

    armed = False
    sent = 0

    @classmethod
    def strike(cls) -> None:
        if cls.armed and cls.sent < 2:
            cls.sent += 1
            heard, tells = os.pipe()
            os.set_blocking(tells, False)
            before = signal.set_wakeup_fd(tells)
            os.kill(os.getpid(), signal.SIGINT)  # to whichever thread takes it
            poll = select.poll()  # `select` knows no descriptor above 1023
            poll.register(heard, select.POLLIN)
            poll.poll(SOON * 1000)
            signal.set_wakeup_fd(before)
            os.close(heard)
            os.close(tells)


os.register_at_fork(before=AtAFork.strike)  # for good: Python has no way to take it back


@pytest.fixture
def another_thread() -> Iterator[None]:
    """One that has not blocked the signal, as nearly all have not."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield
    over.set()
    thread.join()


def assert_nobody_holds(lock: Any) -> None:
    """Another thread can have it: the one that left it behind could take it again and again."""

    def take() -> bool:
        taken = lock.acquire(timeout=SOON)
        if taken:
            lock.release()
        return bool(taken)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(take).result()


@pytest.mark.usefixtures("another_thread")
def test_interrupts_while_workers_start_come_to_the_next_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`logging` holds its lock over every fork; broken off there, the next thread that logs would hang."""
    b = bench(tmp_path, workers=2)
    monkeypatch.setattr(AtAFork, "armed", True)
    monkeypatch.setattr(AtAFork, "sent", 0)

    with pytest.raises(Paused):
        b.learner.fit()

    assert AtAFork.sent == 2
    assert_stands_like(b.learner, by_hand(workers=2))
    assert_nobody_holds(logging._lock)  # type: ignore[attr-defined]
    b.learner.fit()
    assert_ended_like(b, by_hand(workers=2))


class Striking(Sampler[int]):
    """Interrupts twice as an index is drawn: this process does that for its workers, amid fetching."""

    def __init__(self) -> None:
        self.left = 0

    def __len__(self) -> int:
        return TRAIN

    def __iter__(self) -> Iterator[int]:
        for index in range(TRAIN):
            self.left -= 1
            if not self.left:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            yield index


def test_a_fetch_broken_off_leaves_no_workers_behind() -> None:
    """The exception's traceback holds the iterator; its workers must not wait for the end of that."""
    sampler = Striking()
    workers = DataLoader(Samples(TRAIN, 1), batch_size=BATCH, num_workers=2, sampler=sampler)
    cursor, held = Cursor(workers), []
    gc.disable()  # what is found by it is found late, and in any thread
    try:
        for _ in range(3):
            cursor.begin(1)
            cursor.fetch()
            sampler.left = 1
            with pytest.raises(KeyboardInterrupt) as error:
                cursor.fetch()
            held.append(error.value)
            assert len(multiprocessing.active_children()) == 2
        cursor.close()
        assert multiprocessing.active_children() == []
    finally:
        gc.enable()
