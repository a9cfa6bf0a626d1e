"""One thread that writes files while training goes on, and its failed jobs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from . import process_end

_ENOUGH = 10_000
"""Work waits for other work (a checkpoint for a copy), so work always gets a thread. Otherwise all could wait
for ever."""


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_ENOUGH, "notebook_learner worker")


_pool = _threads()


def hand_over(work: Callable[[], None]) -> Future[None]:
    """Let an idle thread or a new one do the work. The interpreter waits for the work before it ends. If the
    interpreter is ending already, or no thread can be started, the caller does the work. The result raises
    the error of the work.

    >>> done = []
    >>> hand_over(lambda: done.append("copied")).result()
    >>> done
    ['copied']
    """
    done, once = Future[None](), Lock()

    def do() -> None:
        if not once.acquire(blocking=False):
            return
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    try:
        _pool.submit(do)
    except RuntimeError:  # no thread was started, but the work is in the queue for any thread
        do()
    return done


def _renew() -> None:
    """Forget the threads: they do not run in a forked process."""
    global _pool
    _pool = _threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


Job = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that raised."""

    name: str
    job: Job
    error: BaseException


class Background:
    """Runs jobs one after the other in a thread of its own.

    Of several waiting jobs with one name only the latest runs: each is a newer version of the same file.
    The thread ends with its last job, so an idle learner has no thread. The interpreter waits for the
    jobs before it ends, and so does a process that gets SIGTERM.

    >>> done = []
    >>> background = Background()
    >>> background.submit("index", lambda: done.append("written"))
    >>> background.wait()
    >>> done
    ['written']
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, Job] = {}
        self._running: str | None = None
        self._failures: list[Failure] = []
        self._alive = False
        self._begun: process_end.Stand = _nothing

    def submit(self, name: str, job: Job) -> None:
        """Run this job as soon as the current one has ended."""
        with self._changed:
            self._waiting[name] = job
            if self._alive:
                return
            self._begun = process_end.begin(_nothing)
            self._alive = True
        hand_over(self._work)

    def busy(self, name: str) -> bool:
        """Whether a job of this name waits or runs."""
        with self._changed:
            return name in self._waiting or self._running == name

    def wait(self, name: str | None = None) -> None:
        """Wait until the jobs of this name have ended; without a name, until all jobs have."""
        with self._changed:
            # In pieces: if a signal does not wake a lock, an interrupt comes only between two pieces.
            while self._alive if name is None else (name in self._waiting or self._running == name):
                self._changed.wait(0.1)

    @property
    def failed(self) -> bool:
        """Whether a job has failed since the last `take_failures`. Costs one attribute and no lock."""
        return bool(self._failures)

    def take_failures(self) -> list[Failure]:
        """Return the failed jobs: their owner reports them and submits them again."""
        with self._changed:
            failures, self._failures = self._failures, []
            return failures

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._alive, begun = False, self._begun
                    self._changed.notify_all()
                    break
                name = next(iter(self._waiting))
                job = self._waiting.pop(name)
                self._running = name
            try:
                job()
            except BaseException as error:
                with self._changed:
                    self._failures.append(Failure(name, job, error))
            del job  # it holds a whole state
            with self._changed:
                self._running = None
                self._changed.notify_all()
        process_end.finish(begun)


def _nothing() -> None:
    """Do nothing: a job ends soon and need not be stopped."""
