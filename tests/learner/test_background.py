"""Training in the background: started, waited for, paused, resumed and stopped from any thread."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from driver_support import (
    EPOCHS,
    Bench,
    Boom,
    Trouble,
    assert_ended_like,
    assert_stands_like,
    bench,
    by_hand,
    disturb,
    loaders,
    steps_taken,
)

from notebook_learner import BusyError, ConfigurationError, Paused, Position
from notebook_learner.run.driver import BACKGROUND

SOON = 30.0


class Gate:
    """Stops a training inside a step until a test lets it go on."""

    def __init__(self, b: Bench, where: tuple[int, str, int], place: str = "forward") -> None:
        self.b = b
        self.reached, self.open = threading.Event(), threading.Event()
        b.trouble.where = where
        b.trouble.calls[place] = self.stand

    def stand(self) -> None:
        if self.b.trouble.here() and not self.open.is_set():
            self.reached.set()
            assert self.open.wait(SOON)

    def wait(self) -> None:
        assert self.reached.wait(SOON)


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_start_returns_at_once_and_wait_gives_the_model(tmp_path: Path) -> None:
    b = bench(tmp_path)
    gate = Gate(b, (1, "train", 3))

    b.learner.start()

    gate.wait()
    assert b.learner.status == "running"
    gate.open.set()
    assert b.learner.wait() is b.learner.model
    assert_ended_like(b, by_hand())
    assert b.learner.wait() is b.learner.model, "and again, for a cell that is run twice"


def test_start_takes_loaders_and_epochs_as_fit_does(tmp_path: Path) -> None:
    b = bench(tmp_path, data=(None, None))
    b.learner.start(*loaders(), epochs=3)
    b.learner.wait()
    assert_ended_like(b, by_hand(epochs=3))


def test_the_very_next_line_finds_it_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the other thread comes to run."""
    b = bench(tmp_path)
    asked, run = threading.Event(), threading.Thread.run

    def late(self: threading.Thread) -> None:
        if self.name == BACKGROUND:
            assert asked.wait(SOON)
        run(self)

    monkeypatch.setattr(threading.Thread, "run", late)
    b.learner.start()
    assert b.learner.status == "running"
    asked.set()
    b.learner.wait()
    assert_ended_like(b, by_hand())


def test_where_no_thread_can_be_had_it_does_not_stay_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name == BACKGROUND:
            raise RuntimeError("can't start new thread")
        start(self)

    b = bench(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            b.learner.start()
    assert b.learner.status == "failed"
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_what_is_wrong_with_the_call_is_an_error_of_start_not_of_wait(tmp_path: Path) -> None:
    b = bench(tmp_path, data=(None, None))
    with pytest.raises(ConfigurationError):
        b.learner.start()
    with pytest.raises(ValueError, match=r"fit\(epochs=0\)"):
        b.learner.start(*loaders(), epochs=0)
    assert b.learner.status == "ready"


def test_pause_returns_once_the_learner_stands_at_a_boundary_and_resume_goes_on(tmp_path: Path) -> None:
    b = bench(tmp_path)
    gate = Gate(b, (1, "train", 3))
    b.learner.start()
    gate.wait()
    pausing = in_a_thread(b.learner.pause)
    gate.open.set()
    pausing.join(SOON)

    assert b.learner.status == "paused"
    assert b.learner.position.key == Position(1, "train", 4).key
    assert_stands_like(b.learner, by_hand())
    with pytest.raises(Paused, match="paused at epoch 1, train, step 4 of 7; fit"):
        b.learner.wait()
    disturb()
    b.learner.resume()
    b.learner.wait()
    assert_ended_like(b, by_hand())


def test_a_pause_right_after_the_start_is_a_pause_at_the_first_boundary(tmp_path: Path) -> None:
    b = bench(tmp_path)
    for _ in range(50):
        b.learner.start()
        b.learner.pause()
        assert b.learner.status in ("paused", "finished")
        assert_stands_like(b.learner, by_hand())
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_stop_ends_it_and_wait_returns_the_model_as_it_is(tmp_path: Path) -> None:
    b = bench(tmp_path)
    gate = Gate(b, (1, "valid", 1), "valid_step")
    b.learner.start()
    gate.wait()
    stopping = in_a_thread(b.learner.stop)
    gate.open.set()
    stopping.join(SOON)

    assert b.learner.status == "stopped"
    assert b.learner.wait() is b.learner.model
    assert_stands_like(b.learner, by_hand())


@pytest.mark.parametrize("verb", ["pause", "stop"])
def test_another_thread_reaches_a_fit_in_the_foreground(verb: str, tmp_path: Path) -> None:
    b = bench(tmp_path)
    gate = Gate(b, (1, "train", 3))

    def other() -> None:
        gate.wait()
        asking = in_a_thread(getattr(b.learner, verb))
        gate.open.set()
        asking.join(SOON)

    helper = in_a_thread(other)
    if verb == "pause":
        with pytest.raises(Paused):
            b.learner.fit()
    else:
        assert b.learner.fit() is b.learner.model
    helper.join(SOON)

    assert b.learner.status == {"pause": "paused", "stop": "stopped"}[verb]
    assert_stands_like(b.learner, by_hand())
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_an_exception_surfaces_in_status_and_in_wait_each_time(tmp_path: Path) -> None:
    b = bench(tmp_path, Trouble("backward", (1, "train", 3)))
    b.learner.start()

    for _ in range(2):
        with pytest.raises(Boom, match="in the backward") as caught:
            b.learner.wait()
        *_, users, _ = traceback.extract_tb(caught.value.__traceback__)
        assert users.line == 'ctx.trouble.at("backward")'
        assert len(caught.value.__notes__) == 1

    assert b.tape.statuses == [("running", ""), ("failed", "Boom: in the backward")]
    assert_stands_like(b.learner, by_hand())
    b.trouble.fix()
    b.learner.resume()
    b.learner.wait()
    assert_ended_like(b, by_hand())


def test_two_drivers_at_once(tmp_path: Path) -> None:
    state = bench(tmp_path / "other").learner.capture()
    b = bench(tmp_path)
    gate = Gate(b, (1, "train", 3))
    b.learner.start()
    gate.wait()

    for verb in (
        b.learner.fit,
        b.learner.start,
        b.learner.resume,
        b.learner.step,
        b.learner.step_epoch,
        lambda: b.learner.run_until((2, 0)),
        b.learner.rewind,
        lambda: b.learner.restore(state),
        lambda: b.learner.fit(*loaders(), epochs=9),
    ):
        with pytest.raises(BusyError, match=r"in the background \(start\(\)\); call learner.pause\(\) first"):
            verb()
    with pytest.raises(BusyError, match=r"capture\(\) needs a learner that stands still"):
        b.learner.capture()

    assert b.learner.num_epochs == EPOCHS, "a refused fit changes nothing"
    gate.open.set()
    b.learner.wait()
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("verb", ["fit", "step", "start", "rewind", "wait"])
def test_a_step_cannot_drive_the_learner_it_is_driven_by(verb: str, tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.trouble.calls["forward"] = lambda: getattr(b.learner, verb)()
    with pytest.raises(BusyError, match=r"step or (a )?metric"):
        b.learner.fit()
    b.trouble.calls.clear()
    b.learner.fit()
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("place", ["forward", "metric", "valid_step"])
@pytest.mark.parametrize("verb", ["pause", "stop"])
def test_a_step_or_metric_in_the_background_asks_without_waiting_for_itself(
    verb: str, place: str, tmp_path: Path
) -> None:
    b = bench(tmp_path)
    b.trouble.where = (1, "valid", 1) if place == "valid_step" else (1, "train", 4)
    b.trouble.calls[place] = lambda: getattr(b.learner, verb)() if b.trouble.here() else None

    b.learner.start()
    if verb == "pause":
        with pytest.raises(Paused):
            b.learner.wait()
    else:
        b.learner.wait()

    assert b.learner.status == {"pause": "paused", "stop": "stopped"}[verb]
    assert b.learner.position.step == b.trouble.where[2] + 1
    assert_stands_like(b.learner, by_hand())


def test_a_pause_that_came_too_late_is_not_left_to_the_next_run(tmp_path: Path) -> None:
    """Asked for in the last step of a run that has no boundary left to look at requests."""
    b = bench(tmp_path)
    b.trouble.calls["scheduler"] = lambda: None
    b.learner.step(3)
    b.learner._replica.loop.control.request("pause")  # as from a thread that saw it run a moment ago

    b.learner.fit()

    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_at_the_controls_leaves_the_bits_alone(seed: int, tmp_path: Path) -> None:
    """Whatever threads do to each other, every step is taken once, and in order."""
    b = bench(tmp_path, configure=lambda builder: builder.num_epochs(20))
    by_hand(epochs=20)
    learner = b.learner

    def hold() -> None:
        with learner.paused():
            learner.capture()

    def play(player: int) -> None:
        chance = random.Random(seed * 10 + player)
        verbs = [learner.pause, learner.resume, learner.stop, hold, learner.step, learner.wait]
        for _ in range(30):
            with suppress(BusyError, Paused):
                chance.choice(verbs)()

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(play, player) for player in range(4)]:
            each.result(SOON)
    learner.pause()
    assert not learner._driver.busy
    assert_stands_like(b.learner, by_hand(epochs=20))
    learner.fit()
    assert_ended_like(b, by_hand(epochs=20))


def test_wait_when_nothing_was_started(tmp_path: Path) -> None:
    b = bench(tmp_path)
    assert b.learner.wait() is b.learner.model
    b.learner.step()
    with pytest.raises(Paused, match="step 1 of 7"):
        b.learner.wait()
    b.learner.stop()
    assert b.learner.wait() is b.learner.model


@pytest.mark.parametrize("ends", [False, True], ids=["in mid-run", "as it ends by itself"])
def test_interrupting_the_wait_pauses_the_training(ends: bool, tmp_path: Path) -> None:
    """Ctrl-C while the main thread waits; here it strikes from within a step of the background thread."""
    b = bench(tmp_path)
    b.trouble.where = (2, "valid", 2) if ends else (1, "train", 3)
    main = threading.main_thread().ident
    waiting, struck = threading.Event(), threading.Event()

    def strike() -> None:
        if b.trouble.here() and not struck.is_set():
            assert waiting.wait(SOON)
            struck.set()
            signal.pthread_kill(main, signal.SIGINT)

    b.trouble.calls["forward"] = b.trouble.calls["valid_step"] = strike
    wait = b.learner._driver.wait

    def announced(*meanwhile: Callable[[], None]) -> Callable[[], object]:
        waiting.set()
        return wait(*meanwhile)

    b.learner._driver.wait = announced  # type: ignore[method-assign]
    b.learner.start()
    with pytest.raises(Paused) as paused:
        b.learner.wait()

    assert paused.value.where == str(b.learner.position)
    assert b.learner.status in ("paused", "finished")
    assert_stands_like(b.learner, by_hand())
    assert steps_taken(b.learner) >= (20 if ends else 4)
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_an_interrupt_during_start_pauses_what_was_started(tmp_path: Path) -> None:
    b = bench(tmp_path)
    use = b.learner._supplies.use

    def interrupted(*args: object) -> None:
        signal.raise_signal(signal.SIGINT)
        use(*args)  # type: ignore[arg-type]

    b.learner._supplies.use = interrupted  # type: ignore[method-assign]
    with pytest.raises(Paused):
        b.learner.start(*loaders())

    assert not b.learner._driver.busy
    b.learner._supplies.use = use  # type: ignore[method-assign]
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_a_script_that_ends_in_mid_training_leaves_whole_logs_and_no_noise(tmp_path: Path) -> None:
    """The background thread is paused at a boundary before the interpreter goes."""
    script = textwrap.dedent(
        f"""
        import sys, threading
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from driver_support import bench, loaders
        b = bench(Path({str(tmp_path)!r}), workers=2)
        far = threading.Event()
        b.trouble.where = (3, "train", 2)
        b.trouble.calls["forward"] = lambda: far.set() if b.trouble.here() else None
        b.learner.start(epochs=1_000_000)
        assert far.wait(60)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)

    assert (done.returncode, done.stderr) == (0, "")
    last = (tmp_path / "experiment.log").read_text().splitlines()[-1]
    assert "INFO  paused at epoch" in last
