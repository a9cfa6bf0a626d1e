"""Threads that wait for work: to hand some to one takes 30 to 90 us where starting a thread takes 150 to 250,
and whoever trains does not stand still until it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

_ENOUGH = 10_000
"""Work waits for other work (a checkpoint for a copy): it always finds a thread, so there is no dead end."""


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_ENOUGH, "notebook_learner worker")


_pool = _threads()


def hand_over(work: Callable[[], None]) -> Future[None]:
    """Have it done by a thread that has nothing to do, or by a new one. The interpreter's end waits for it.
    Where it has come, or no thread can be had, it is done by whoever asks. What it raises is for whoever
    waits for it.

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
    except RuntimeError:  # no thread; and yet it stands in the queue, for whichever comes
        do()
    return done


def _renew() -> None:
    """The threads of a process do not go on in one that was forked from it."""
    global _pool
    _pool = _threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
