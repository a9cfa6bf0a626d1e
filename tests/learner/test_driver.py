"""Who turns the loop: one at a time, in this thread or behind it, and no thread while it is held still."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from test_control import SOON, another_thread

from notebook_learner import BusyError
from notebook_learner.run.control import Control
from notebook_learner.run.driver import BACKGROUND, Driver


def nothing() -> None:
    pass


def loop(control: Control, started: threading.Event) -> Callable[[], str]:
    """Work that passes boundaries until it is asked to end."""

    def work() -> str:
        started.set()
        while True:
            if request := control.take():
                return request

    return work


class Running:
    """A driver with work going on in the background."""

    def __init__(self) -> None:
        self.control = Control()
        self.driver = Driver(self.control)
        self.started = threading.Event()
        self.driver.behind(nothing, loop(self.control, self.started))
        assert self.started.wait(SOON)


# Here ------------------------------------------------------------------------------------------------


def test_what_belonged_to_a_thread_and_does_no_more_is_ended_without_waiting() -> None:
    driver = Driver(Control())
    driver.belongs_to_this_thread()
    assert not driver.leave(0.01), "somebody may be in the middle of a step"

    driver.belongs_to_nobody()
    assert driver.leave(0.0)


def test_work_here_gives_its_value_and_leaves_nobody_driving() -> None:
    driver = Driver(Control())
    seen: list[tuple[bool, bool]] = []

    value, interrupted = driver.here(lambda: seen.append((driver.busy, driver.inside)) or 3)

    assert (value, interrupted) == (3, False)
    assert seen == [(True, True)]
    assert not driver.busy and not driver.inside and driver.still


def test_an_exception_here_leaves_nobody_driving() -> None:
    driver = Driver(Control())
    with pytest.raises(ZeroDivisionError):
        driver.here(lambda: 1 / 0)
    assert not driver.busy
    assert driver.here(lambda: 1)[0] == 1


def test_work_cannot_start_work_of_its_own() -> None:
    driver = Driver(Control())
    with pytest.raises(BusyError, match="already under way in this very thread; a step or metric cannot"):
        driver.here(lambda: driver.here(nothing))
    assert not driver.busy


def test_two_at_once_is_an_error_that_says_who_and_what_to_do() -> None:
    running = Running()
    with pytest.raises(BusyError, match=r"in the background \(start\(\)\); call learner.pause\(\) first, or"):
        running.driver.here(nothing)
    with pytest.raises(BusyError, match="in the background"):
        running.driver.behind(nothing, nothing)
    assert running.driver.ask("stop")
    assert running.driver.wait()() == "stop"


def test_another_threads_name_is_in_the_error() -> None:
    control = Control()
    driver = Driver(control)
    started = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="sweep") as pool:
        pool.submit(driver.here, loop(control, started))
        assert started.wait(SOON)
        with pytest.raises(BusyError, match="in thread 'sweep_0'"):
            driver.here(nothing)
        driver.ask("stop")


def test_of_many_that_start_at_once_one_drives() -> None:
    control = Control()
    driver = Driver(control)
    start, refused = threading.Barrier(8), threading.Semaphore(0)

    def work() -> str:
        for _ in range(7):
            assert refused.acquire(timeout=SOON)
        return "drove"

    def attempt() -> str:
        start.wait(SOON)
        try:
            return driver.here(work)[0]
        except BusyError:
            refused.release()
            return "refused"

    with ThreadPoolExecutor(8) as pool:
        outcomes = [each.result(SOON) for each in [pool.submit(attempt) for _ in range(8)]]
    assert sorted(outcomes) == ["drove"] + ["refused"] * 7
    assert not driver.busy


# Behind ----------------------------------------------------------------------------------------------


def test_work_behind_runs_in_a_thread_that_has_a_name_and_does_not_keep_the_process() -> None:
    driver = Driver(Control())
    driver.behind(nothing, threading.current_thread)
    thread = driver.wait()()
    assert thread.name == BACKGROUND
    assert thread.daemon
    assert thread is not threading.main_thread()


def test_what_came_of_it_can_be_had_again_and_again() -> None:
    driver = Driver(Control())
    driver.behind(nothing, lambda: 7)
    result = driver.wait()
    assert [result(), result(), driver.wait()()] == [7, 7, 7]


def test_an_exception_behind_is_raised_to_whoever_asks_each_time_with_its_own_traceback() -> None:
    def work() -> None:
        raise ValueError("in the background")

    driver = Driver(Control())
    driver.behind(nothing, work)
    lengths = []
    for _ in range(3):
        with pytest.raises(ValueError, match="in the background") as caught:
            driver.wait()()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert frames[-1].line == 'raise ValueError("in the background")'
        lengths.append(len(frames))
    assert len(set(lengths)) == 1, "a traceback does not grow by being looked at"


def test_the_next_run_forgets_what_came_of_the_last() -> None:
    driver = Driver(Control())
    driver.behind(nothing, lambda: 7)
    earlier = driver.wait()
    driver.here(nothing)
    assert driver.wait()() is None
    assert earlier() == 7, "whoever waited for it still has it"


def test_preparations_that_fail_are_an_error_here_and_start_nothing() -> None:
    driver = Driver(Control())
    ran: list[str] = []
    with pytest.raises(ZeroDivisionError):
        driver.behind(lambda: 1 / 0, lambda: ran.append("work"))  # type: ignore[arg-type, return-value]
    assert not driver.busy
    assert ran == []
    driver.behind(nothing, lambda: "second")
    assert driver.wait()() == "second"


def test_where_no_thread_can_be_started_nobody_is_left_driving(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    driver = Driver(Control())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            driver.behind(nothing, nothing)
    assert not driver.busy


# Ask -------------------------------------------------------------------------------------------------


def test_asking_waits_until_they_stand_and_where_nobody_drives_it_says_so() -> None:
    running = Running()
    assert running.driver.ask("pause") is True
    assert not running.driver.busy
    assert running.driver.ask("pause") is False


def test_a_request_to_a_run_that_ended_by_itself_is_not_left_to_the_next() -> None:
    control = Control()
    driver = Driver(control)

    def ends_without_looking() -> None:
        control.request("pause")

    driver.here(ends_without_looking)
    assert driver.here(control.take) == (None, False)


def test_the_driving_thread_asks_without_waiting_for_itself() -> None:
    control = Control()
    driver = Driver(control)

    def step() -> Any:
        assert driver.ask("pause") is True
        return control.take()

    assert driver.here(step) == ("pause", False)


def test_asking_waits_for_this_run_not_for_one_that_follows_at_once() -> None:
    """A caller that runs in a loop, as a sweep does, must not keep another thread in its `pause()`."""
    control = Control()
    driver = Driver(control)
    first, more, enough = threading.Event(), threading.Event(), threading.Event()

    def runs() -> None:
        driver.here(loop(control, first))
        while not enough.is_set():
            driver.here(loop(control, more))

    with another_thread(runs) as running:
        assert first.wait(SOON)
        assert driver.ask("pause")
        enough.set()
        while not running.done():
            driver.ask("stop")


def test_leaving_pauses_whoever_drives_and_says_whether_that_was_in_time() -> None:
    running = Running()
    assert running.driver.leave(SOON) is True
    assert running.driver.wait()() == "pause"
    assert running.driver.leave(0.0) is True

    control, hung = Control(), threading.Event()
    driver = Driver(control)
    driver.behind(nothing, lambda: hung.wait(SOON))
    assert driver.leave(0.0) is False
    hung.set()
    driver.wait()


# Held ------------------------------------------------------------------------------------------------


def test_held_while_it_runs_the_loop_stands_and_goes_on_afterwards() -> None:
    running = Running()
    with running.driver.held():
        assert running.control.held and running.driver.still and running.driver.busy
    assert running.driver.busy
    assert running.driver.ask("stop")


def test_held_while_nothing_runs_and_nested() -> None:
    driver = Driver(Control())
    with driver.held(), driver.held():
        assert driver.still
        with pytest.raises(BusyError, match=r"held still by `with learner.paused\(\)` in this very thread"):
            driver.here(nothing)
    assert driver.here(lambda: 1)[0] == 1


def test_held_by_two_threads_at_once() -> None:
    running = Running()
    both = threading.Barrier(2)

    def hold() -> bool:
        with running.driver.held():
            both.wait(SOON)
            return running.driver.still

    with ThreadPoolExecutor(2) as pool:
        assert [each.result(SOON) for each in [pool.submit(hold) for _ in range(2)]] == [True, True]
    running.driver.ask("stop")


def test_whoever_wants_to_drive_waits_while_another_thread_holds() -> None:
    driver = Driver(Control())
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with driver.held():
            holding.set()
            assert release.wait(SOON)

    with another_thread(hold):
        assert holding.wait(SOON)
        with another_thread(lambda: driver.here(lambda: "drove")) as driving:
            assert not driver.busy
            release.set()
            assert driving.result(SOON) == ("drove", False)


def test_an_interrupt_ends_the_wait_of_whoever_wants_to_drive() -> None:
    driver = Driver(Control())
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with driver.held():
            holding.set()
            assert release.wait(SOON)

    wait = driver._changed.wait

    def waits_and_is_interrupted(timeout: float | None = None) -> bool:
        signal.raise_signal(signal.SIGINT)
        return wait(timeout)

    with another_thread(hold):
        assert holding.wait(SOON)
        driver._changed.wait = waits_and_is_interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            driver.here(nothing)
        driver._changed.wait = wait  # type: ignore[method-assign]
        release.set()
    assert not driver.busy
    assert driver.here(nothing) == (None, False), "the interrupt was answered"


def test_a_hold_that_comes_when_the_run_ends_by_itself_is_granted() -> None:
    control = Control()
    driver = Driver(control)
    asked, ended = threading.Event(), threading.Event()

    def ends_without_a_boundary() -> None:
        assert ended.wait(SOON)

    def hold() -> bool:
        asked.set()
        with driver.held():
            return driver.still and not driver.busy

    driver.behind(nothing, ends_without_a_boundary)
    with another_thread(hold) as held:
        assert asked.wait(SOON)
        ended.set()
        assert held.result(SOON)


def test_the_driving_thread_cannot_hold_itself() -> None:
    driver = Driver(Control())

    def step() -> None:
        with driver.held():
            pass

    with pytest.raises(BusyError, match="entered from the training thread itself"):
        driver.here(step)
    assert driver.here(nothing) == (None, False)


def test_a_holder_that_asks_for_a_pause_does_not_wait_for_itself() -> None:
    running = Running()
    with running.driver.held():
        assert running.driver.ask("pause") is True
        assert running.driver.busy
    assert running.driver.wait()() == "pause"


def test_waits_that_would_never_end_are_errors() -> None:
    running = Running()
    with running.driver.held(), pytest.raises(BusyError, match=r"inside `with learner.paused\(\)`"):
        running.driver.wait()
    running.driver.ask("stop")

    driver = Driver(Control())
    with pytest.raises(BusyError, match="by the training"):
        driver.here(driver.wait)


# Signals ---------------------------------------------------------------------------------------------


def test_interrupts_are_requests_while_work_goes_on_and_their_old_selves_afterwards() -> None:
    control = Control()
    driver = Driver(control)
    before = signal.getsignal(signal.SIGINT)

    def work() -> Any:
        signal.raise_signal(signal.SIGINT)
        return control.take()

    assert driver.here(work) == ("pause", False)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_no_boundary_answers_is_reported_and_forgotten() -> None:
    driver = Driver(Control())
    assert driver.here(lambda: signal.raise_signal(signal.SIGINT)) == (None, True)
    assert driver.here(nothing) == (None, False)


def test_a_handler_of_the_users_own_is_back_after_an_error_too() -> None:
    def own(signum: int, frame: Any) -> None:
        raise AssertionError("not while the learner works")

    before = signal.signal(signal.SIGINT, own)
    try:
        with pytest.raises(ZeroDivisionError):
            Driver(Control()).here(lambda: 1 / 0)
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


def test_work_in_another_thread_leaves_the_signals_alone() -> None:
    driver = Driver(Control())
    before = signal.getsignal(signal.SIGINT)
    with another_thread(lambda: driver.here(lambda: signal.getsignal(signal.SIGINT))) as work:
        assert work.result(SOON) == (before, False)


def test_an_interrupt_during_preparations_behind_is_reported_here() -> None:
    control = Control()
    driver = Driver(control)
    assert driver.behind(lambda: signal.raise_signal(signal.SIGINT), lambda: "worked") is True
    assert driver.wait()() == "worked"
    assert not control.interrupted


# Context ---------------------------------------------------------------------------------------------


def test_work_behind_runs_in_the_context_it_was_started_in() -> None:
    """A kernel keeps there which cell's output it is; NumPy its error state."""
    cell: ContextVar[str] = ContextVar("cell", default="the latest")
    cell.set("the first")
    driver = Driver(Control())
    go_on = threading.Event()
    driver.behind(nothing, lambda: (go_on.wait(SOON), cell.get())[1])
    cell.set("the second")
    go_on.set()
    assert driver.wait()() == "the first"
    assert cell.get() == "the second"
