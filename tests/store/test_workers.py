"""Work that is handed over: done once, by a thread that waits for more, and never left undone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from notebook_learner.store import background as workers
from notebook_learner.store.background import Background, hand_over


def who_does_it() -> Callable[[], threading.Thread]:
    """Hand something over; who did it, once it is done."""
    did: list[threading.Thread] = []
    work = hand_over(lambda: did.append(threading.current_thread()))

    def known() -> threading.Thread:
        work.result(60)
        (thread,) = did
        return thread

    return known


def test_one_thread_does_what_comes_one_after_the_other():
    held = threading.Semaphore(0)
    waiting = [hand_over(held.acquire) for _ in range(3)]
    held.release(3)
    for each in waiting:
        each.result(60)
    before = threading.active_count()
    assert threading.current_thread() not in {who_does_it()() for _ in range(20)}
    assert threading.active_count() == before, "a thread was started while others wait"


def test_work_that_waits_for_other_work_is_no_dead_end():
    first = threading.Event()
    waiting = [hand_over(lambda: first.wait(60) or pytest.fail("nobody came")) for _ in range(40)]
    hand_over(first.set).result(60)
    for each in waiting:
        each.result(60)


def test_what_the_work_raises_is_for_whoever_waits():
    with pytest.raises(ZeroDivisionError):
        hand_over(lambda: 1 / 0).result(60)


def test_without_a_thread_left_it_is_done_at_once_and_only_once(monkeypatch):
    def refused(thread):
        raise RuntimeError("can't start new thread")

    held, done = threading.Event(), []
    busy = []
    while True:  # until every thread that waits has something to do
        started = threading.active_count()
        busy.append(hand_over(lambda: held.wait(60)))
        if threading.active_count() > started:
            break
    with monkeypatch.context() as no_thread:
        no_thread.setattr(threading.Thread, "start", refused)
        hand_over(lambda: done.append(threading.current_thread())).result(0)
    assert done == [threading.current_thread()]
    held.set()
    for each in busy:
        each.result(60)
    who_does_it()()
    assert len(done) == 1, "a thread found it in the queue and did it again"


def test_a_background_without_a_thread_writes_at_once(monkeypatch):
    def refused(work):
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(workers._pool, "submit", refused)
    written = []
    background = Background()
    background.submit("index", lambda: written.append("index"))
    assert written == ["index"]
    background.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_has_threads_of_its_own():
    script = (
        "import os, sys\n"
        "from notebook_learner.store.background import hand_over\n"
        "hand_over(print).result(60)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    hand_over(lambda: os.write(1, b'child')).result(60)\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, [b"child"]), done.stderr


def test_the_end_of_the_interpreter_waits_for_what_was_handed_over():
    script = (
        "import time\n"
        "from notebook_learner.store.background import Background\n"
        "background = Background()\n"
        "def write():\n"
        "    time.sleep(0.5)\n"
        "    background.submit('index', lambda: print('index'))\n"
        "    print('checkpoint', flush=True)\n"
        "background.submit('checkpoint', write)\n"
        "print('end', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120, text=True)
    assert done.stdout.split() == ["end", "checkpoint", "index"] and not done.stderr
