"""Threads that wait for work. To give work to one takes 30 to 90 us; to start a thread takes 150 to 250 us,
and the training would wait until it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

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
