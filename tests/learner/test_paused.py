"""`with learner.paused()`: another thread or cell sees one consistent state for a moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from driver_support import (
    AN_EPOCH,
    STEPS,
    Bench,
    Boom,
    Trouble,
    assert_ended_like,
    assert_equals,
    assert_stands_like,
    bench,
    by_hand,
)
from test_background import SOON, Gate, in_a_thread

from notebook_learner import BusyError, Paused, State


def assert_consistent(b: Bench, state: State) -> None:
    """What was captured in mid-flight goes on, in a fresh learner, to the end of the straight run."""
    other = bench(b.directory.parent / f"{b.directory.name}-again")
    other.learner.restore(state)
    assert_stands_like(other.learner, by_hand())
    other.learner.fit()
    assert_ended_like(other, by_hand())


def test_while_training_in_the_background(tmp_path: Path) -> None:
    b = bench(tmp_path / "run")
    gate = Gate(b, (1, "train", 3))
    b.learner.start()
    gate.wait()
    gate.open.set()

    with b.learner.paused() as held:
        assert held is b.learner
        before = b.learner.position
        assert_stands_like(b.learner, by_hand())
        state = b.learner.capture()
        assert b.learner.position == before == state.position
        assert b.learner.status == "running", "it only stands for a moment"

    b.learner.wait()
    assert_ended_like(b, by_hand())
    assert_consistent(b, state)


def test_while_fit_trains_in_the_foreground(tmp_path: Path) -> None:
    b = bench(tmp_path / "run")
    gate = Gate(b, (1, "train", 3))
    states: list[State] = []

    def look() -> None:
        gate.wait()
        gate.open.set()
        with b.learner.paused():
            states.append(b.learner.capture())

    looking = in_a_thread(look)
    b.learner.fit()
    looking.join(SOON)

    assert_ended_like(b, by_hand())
    assert_consistent(b, states[0])


def test_a_thread_that_looks_all_the_time_sees_a_boundary_each_time(tmp_path: Path) -> None:
    b = bench(tmp_path / "run")
    by_hand()
    seen: list[tuple[int, torch.Tensor]] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            with b.learner.paused():
                at = b.learner.position
                weight = b.learner.model.body[0].weight.detach().clone()  # type: ignore[index, union-attr]
                steps = (at.epoch - 1) * AN_EPOCH + at.step + (7 if at.split == "valid" else 0)
                seen.append((steps, weight))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        b.learner.fit()
        done.set()
        looking.result(SOON)

    assert_ended_like(b, by_hand())
    assert seen
    for steps, weight in seen:
        assert torch.equal(weight, by_hand().moments[steps].tensors["body.0.weight"])
    assert {steps for steps, _ in seen} <= set(range(STEPS + 1))


def test_when_nothing_runs_it_is_there_at_once_and_can_be_nested(tmp_path: Path) -> None:
    b = bench(tmp_path / "run")
    b.learner.step(3)
    with b.learner.paused(), b.learner.paused():
        state = b.learner.capture()
        assert_stands_like(b.learner, by_hand())
    b.learner.fit()
    assert_ended_like(b, by_hand())
    assert_consistent(b, state)


def test_inside_it_this_very_thread_cannot_train(tmp_path: Path) -> None:
    b = bench(tmp_path)
    with b.learner.paused():
        for verb in (b.learner.fit, b.learner.start, b.learner.step):
            with pytest.raises(BusyError, match="in this very thread; leave that block first"):
                verb()
        b.learner.pause()
        b.learner.stop()
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_inside_it_a_pause_of_the_background_takes_effect_when_it_ends(tmp_path: Path) -> None:
    b = bench(tmp_path)
    gate = Gate(b, (1, "train", 3))
    b.learner.start()
    gate.wait()
    gate.open.set()

    with b.learner.paused():
        at = b.learner.position
        b.learner.pause()
        with pytest.raises(BusyError, match="leave that block first"):
            b.learner.wait()

    with pytest.raises(Paused):
        b.learner.wait()
    assert b.learner.position == at, "not one step was taken"


def test_a_fit_that_begins_meanwhile_waits_for_the_end_of_the_block(tmp_path: Path) -> None:
    b = bench(tmp_path)
    with b.learner.paused():
        fitting = in_a_thread(b.learner.fit)
        assert_equals(b.learner, by_hand().moments[0])
        assert b.learner.status == "ready"
    fitting.join(SOON)
    assert_ended_like(b, by_hand())


def test_from_inside_a_step_it_is_an_error(tmp_path: Path) -> None:
    b = bench(tmp_path)

    def step() -> None:
        with b.learner.paused():
            pass

    b.trouble.calls["forward"] = step
    with pytest.raises(BusyError, match="entered from the training thread itself"):
        b.learner.fit()
    b.trouble.calls.clear()
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_an_error_inside_the_block_lets_the_training_go_on(tmp_path: Path) -> None:
    b = bench(tmp_path)
    gate = Gate(b, (1, "train", 3))
    b.learner.start()
    gate.wait()
    gate.open.set()
    with pytest.raises(ZeroDivisionError), b.learner.paused():
        _ = 1 / 0
    b.learner.wait()
    assert_ended_like(b, by_hand())


def test_a_capture_is_refused_while_it_moves(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.trouble.calls["forward"] = b.learner.capture
    with pytest.raises(BusyError, match="or capture inside `with learner"):
        b.learner.fit()


@pytest.mark.parametrize("way_back", ["an error", "a rewind"])
def test_on_the_way_back_nothing_is_shown_but_where_it_leads(way_back: str, tmp_path: Path) -> None:
    """A replay passes old positions while history holds the newer steps: no state to be seen."""
    b = bench(tmp_path / "run", Trouble("forward", (1, "train", 6)))
    learner = b.learner
    states: list[State] = []
    looking: list[threading.Thread] = []

    def look() -> None:
        with learner.paused():
            states.append(learner.capture())

    def look_once_on_the_way_back() -> None:
        if learner._replica.loop.breakable or looking:
            return
        looking.append(in_a_thread(look))
        with learner._driver._changed:
            assert learner._driver._changed.wait_for(lambda: bool(learner._driver._holders), SOON)

    b.trouble.calls["forward"] = look_once_on_the_way_back
    if way_back == "an error":
        with pytest.raises(Boom):
            learner.fit()
    else:
        b.trouble.fix()
        learner.step(6)
        learner.rewind(2)
    looking[0].join(SOON)

    (state,) = states
    assert state.position.key == learner.position.key
    assert sum(part.steps for part in state.record) == state.position.step
    b.trouble.fix()
    assert_consistent(b, state)
