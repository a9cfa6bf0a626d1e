"""Requests to the loop: made from any thread, taken at boundaries, never lost and never left over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from notebook_learner.run.control import Control, Request

SOON = 30.0
"""How long a test waits for what must come; it never waits so long."""


@contextmanager
def another_thread(work: Any) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


def wait_held(control: Control) -> None:
    with control.changed:
        assert control.changed.wait_for(lambda: control.held, SOON)


def test_nothing_is_wanted_at_first_and_a_boundary_goes_by() -> None:
    control = Control()
    assert not control.wanted
    assert control.take() is None


@pytest.mark.parametrize("what", ["pause", "stop"])
def test_a_request_is_wanted_until_it_is_taken_once(what: Request) -> None:
    control = Control()
    control.request(what)
    assert control.wanted
    assert control.take() == what
    assert not control.wanted
    assert control.take() is None


@pytest.mark.parametrize("order", [("pause", "stop"), ("stop", "pause"), ("stop", "stop")])
def test_stop_outranks_pause_in_whatever_order_they_come(order: tuple[Request, Request]) -> None:
    control = Control()
    for what in order:
        control.request(what)
    assert control.take() == "stop"
    assert control.take() is None


# Interrupts ------------------------------------------------------------------------------------------


def test_an_interrupt_is_a_pause() -> None:
    control = Control()
    assert control.interrupt() is False
    assert control.wanted and control.interrupted
    assert control.take() == "pause"
    assert not control.wanted and not control.interrupted


def test_an_interrupt_does_not_turn_a_stop_into_a_pause() -> None:
    control = Control()
    control.request("stop")
    control.interrupt()
    assert control.take() == "stop"
    assert control.take() is None


@pytest.mark.parametrize("interruptible", [False, True])
def test_the_second_interrupt_breaks_off_only_what_is_interruptible(interruptible: bool) -> None:
    control = Control()
    control.interruptible = interruptible
    assert control.interrupt() is False
    assert control.interrupt() is interruptible
    assert control.take() == "pause"
    assert control.interrupt() is False, "the count begins anew"


def test_an_interrupt_that_no_boundary_answered_is_told_once_and_forgotten() -> None:
    control = Control()
    control.interrupt()
    assert control.forget_interrupts() is True
    assert control.forget_interrupts() is False
    assert control.take() is None


def test_a_new_run_forgets_the_request_of_the_last_but_no_interrupt() -> None:
    control = Control()
    control.request("pause")
    control.forget_request()
    assert not control.wanted
    control.request("stop")
    control.interrupt()
    control.forget_request()
    assert control.take() == "pause"


def test_clear_forgets_both() -> None:
    control = Control()
    control.request("stop")
    control.interrupt()
    control.clear()
    assert not control.wanted
    assert control.take() is None


class InterruptedAt(Control):
    """A signal that comes between two instructions: right after the flag was written."""

    def __init__(self) -> None:
        super().__init__()
        self.strikes = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "wanted" and getattr(self, "strikes", False):
            super().__setattr__("strikes", False)
            self.interrupt()


def test_an_interrupt_that_comes_while_the_flag_is_written_is_not_lost() -> None:
    control = InterruptedAt()
    control.request("stop")
    control.strikes = True
    assert control.take() == "stop"
    assert control.wanted
    assert control.take() == "pause"


# Holds -----------------------------------------------------------------------------------------------


def test_a_hold_keeps_the_loop_at_its_boundary_until_it_is_released() -> None:
    control = Control()
    control.hold()
    assert control.wanted and not control.held
    with another_thread(control.take) as taken:
        wait_held(control)
        assert not taken.done()
        control.release()
        assert taken.result(SOON) is None
    assert not control.held and not control.wanted


def test_as_many_releases_as_holds() -> None:
    control = Control()
    control.hold()
    control.hold()
    with another_thread(control.take) as taken:
        wait_held(control)
        control.release()
        assert control.held and control.wanted
        assert not taken.done()
        control.release()
        assert not control.held
        assert taken.result(SOON) is None


def test_a_request_made_under_a_hold_is_taken_without_a_step_after_it() -> None:
    control = Control()
    control.hold()
    with another_thread(control.take) as taken:
        wait_held(control)
        control.request("pause")
        assert not taken.done()
        control.release()
        assert taken.result(SOON) == "pause"


def test_an_interrupt_ends_the_wait_and_whoever_holds_may_go_on_looking() -> None:
    control = Control()
    control.hold()
    with another_thread(control.take) as taken:
        wait_held(control)
        control.interrupt()
        assert taken.result(SOON) == "pause"
        assert control.held, "the run ends there without moving"
        control.release()
        assert not control.held


def test_a_replay_hears_interrupts_and_nothing_else() -> None:
    """At a replayed boundary the record is that of a later one: no capture may happen there."""
    control = Control()
    control.hold()
    control.request("stop")
    assert control.take_interrupt() is None
    assert not control.held
    control.interrupt()
    assert control.take_interrupt() == "pause"
    assert control.take_interrupt() is None
    control.release()
    assert control.take() == "stop"


def test_holds_released_before_the_boundary_cost_nothing_there() -> None:
    control = Control()
    control.hold()
    control.release()
    assert not control.wanted
    assert control.take() is None


def test_requests_from_many_threads_are_all_taken() -> None:
    control = Control()
    start = threading.Barrier(9)

    def ask() -> None:
        start.wait(SOON)
        for _ in range(200):
            control.request("pause")
            control.hold()
            control.release()

    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask) for _ in range(8)]
        start.wait(SOON)
        while not all(each.done() for each in asking):
            control.take()
        for each in asking:
            each.result()
    control.take()
    assert not control.wanted
