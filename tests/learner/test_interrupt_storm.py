"""Hundreds of interrupts over one run: each is answered at a boundary, and the end is the straight run's."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_support import (
    Bench,
    assert_ended_like,
    assert_stands_like,
    bench,
    by_hand,
    disturb,
)
from torch.utils.data import BatchSampler, RandomSampler

from notebook_learner import Paused
from notebook_learner.run.loop import Loop
from notebook_learner.state.state import ModelPart

STORM = 200
SHORT, LONG = 6, 40
"""Epochs of the runs."""


@pytest.fixture(autouse=True)
def strays() -> Iterator[None]:
    """Interrupts that come between two calls of `fit` are the test's own business."""
    before = signal.signal(signal.SIGINT, lambda signum, frame: None)
    yield
    signal.signal(signal.SIGINT, before)


def fit_through(b: Bench, after_each: Callable[[str], None] = lambda how: None) -> dict[str, int]:
    """Call `fit` until it is done, as a stubborn person does."""
    ended = {"paused": 0, "broken off": 0}
    while True:
        try:
            b.learner.fit()
        except Paused:
            how = "paused"
        except KeyboardInterrupt:
            how = "broken off"
        else:
            return ended
        ended[how] += 1
        assert_stands_like(b.learner, by_hand(epochs=b.learner.num_epochs))
        disturb()
        after_each(how)


class AtAnyCall:
    """Interrupts after so many calls of the package's functions: in steps, between them, in loggers, on
    the way back, wherever; some shortly after another. Repeatable to the call."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent = 0
        self.left = self._next()

    def __enter__(self) -> None:
        self.arm()

    def arm(self) -> None:
        """Python takes a profile function off that raised, as this one does where a step is broken off."""
        sys.setprofile(self._called)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _next(self) -> int:
        """To begin a run takes some 1,000 calls, and a step 20: this leaves it a few steps now and then."""
        return self.random.randint(1, 30 if self.random.random() < 0.3 else 2400)

    def _called(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call" or "notebook_learner" not in frame.f_code.co_filename:
            return
        self.left -= 1
        if not self.left:
            self.left = self._next()
            self.sent += 1
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("seed", range(6))
def test_interrupts_at_any_call_of_the_package(seed: int, tmp_path: Path) -> None:
    b = bench(tmp_path, configure=lambda builder: builder.num_epochs(SHORT))
    by_hand(epochs=SHORT)
    storm = AtAnyCall(seed)

    with storm:
        ended = fit_through(b, lambda how: storm.arm())

    assert storm.sent >= 5
    assert sum(ended.values()) > 2
    assert_ended_like(b, by_hand(epochs=SHORT))


def interrupted() -> None:
    """Twice: the first asks for a pause, the second may break off."""
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


class AtAnInstruction:
    """Two interrupts before the nth instruction of a function, wherever in it that is."""

    def __init__(self, function: Callable[..., Any], number: int) -> None:
        self.code = function.__code__
        self.left = number

    def __enter__(self) -> AtAnInstruction:
        sys.settrace(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _called(self, frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is not self.code:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._at

    def _at(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                interrupted()
        return self._at


def test_after_a_step_is_broken_off_nothing_breaks_off_the_way_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench(tmp_path, configure=lambda builder: builder.num_epochs(LONG))
    restore = ModelPart.restore

    def restored(self: ModelPart, state: Any, /) -> None:
        restore(self, state)
        interrupted()  # a person who goes on pressing the button

    monkeypatch.setattr(ModelPart, "restore", restored)
    ended = []
    for number in range(1, 200):
        with AtAnInstruction(Loop._block, number) as instruction:
            try:
                b.learner.fit()
            except (Paused, KeyboardInterrupt) as how:
                ended.append(type(how))
        assert_stands_like(b.learner, by_hand(epochs=LONG))
        if instruction.left > 0:
            break
    assert ended.count(KeyboardInterrupt) > 5 and ended.count(Paused) > 5


@pytest.mark.parametrize("sampler", [BatchSampler, RandomSampler])
def test_an_interrupt_while_the_order_is_drawn_loses_no_batch(sampler: type[Any], tmp_path: Path) -> None:
    """The generators of torch's samplers end where an exception leaves them."""
    b = bench(tmp_path, configure=lambda builder: builder.num_epochs(LONG))
    broken_off = 0
    for number in range(1, 200):
        with AtAnInstruction(sampler.__iter__, number) as instruction:
            try:
                b.learner.fit()
            except Paused:
                pass
            except KeyboardInterrupt:
                broken_off += 1
        if instruction.left > 0:
            break
        assert_stands_like(b.learner, by_hand(epochs=LONG))
    assert broken_off > 5
    assert_ended_like(b, by_hand(epochs=LONG))


class FromAThread:
    """Interrupts from another thread, at random moments while training is on."""

    def __init__(self, b: Bench, size: int, heard: Callable[[], int]) -> None:
        self.b, self.size = b, size
        self.sent = 0
        self.heard = heard
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._storm)

    def _storm(self) -> None:
        chance = random.Random(1)
        moment = threading.Event()
        # Where the machine has other work a call of `fit` takes longer, and more of them fall into one.
        while self.sent < self.size or self.heard() <= self.size / 4:
            moment.wait(chance.uniform(0.0, 0.004))
            if self.b.learner._driver.busy:
                os.kill(os.getpid(), signal.SIGINT)
                self.sent += 1
        self.over.set()

    def outlast(self) -> None:
        """A step of the last epoch that hangs until the storm is over: only second interrupts end it."""
        if self.b.trouble.here():
            while not self.over.wait(0.01):
                pass


@pytest.mark.parametrize("size", [100, STORM, 4 * STORM])
@pytest.mark.rounds(1)
def test_many_interrupts_over_one_run(size: int, tmp_path: Path) -> None:
    b = bench(tmp_path, configure=lambda builder: builder.num_epochs(LONG))
    by_hand(epochs=LONG)
    ended: list[str] = []
    storm = FromAThread(b, size, heard=lambda: len(ended))
    b.trouble.where = (LONG, "train", 3)
    b.trouble.calls["forward"] = storm.outlast

    storm.thread.start()
    fit_through(b, ended.append)
    storm.thread.join()

    assert_ended_like(b, by_hand(epochs=LONG))


GROUP = f"""
import faulthandler, resource, signal, sys, time
faulthandler.dump_traceback_later(190)  # should it hang, the error says where
# torch shares a tensor of a worker's by an open file, and the loop by hand keeps what it was given; a plain
# account may open 1024.
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from driver_support import *
from notebook_learner.data.rng import host_rng_kept

def mortal(worker):
    "What a worker inherits would make it deaf; by itself it dies of an interrupt."
    signal.signal(signal.SIGINT, signal.SIG_DFL)

def data():
    how = dict(batch_size=4, num_workers=2, worker_init_fn=mortal)
    return DataLoader(Samples(1202, 1), shuffle=True, **how), DataLoader(Samples(202, 2), **how)

torch.set_num_threads(1)  # several would wait for each other, spinning, on a machine with other work
with host_rng_kept():
    run = trained_by_hand(data(), 2)
b = bench(Path(sys.argv[1]), data=data())
dead, calm = [], Path(sys.argv[2])
b.trouble.where = (2, "train", 150)

def step():
    workers = b.learner._replica.loop.current.cursor._inner._workers
    dead.extend(worker.pid for worker in workers if not worker.is_alive())
    while b.trouble.here() and not calm.exists():
        time.sleep(0.01)

b.trouble.calls["forward"] = step
signal.signal(signal.SIGINT, lambda signum, frame: None)  # between two calls of `fit`
print("ready", flush=True)
while b.learner.status != "finished":
    try:
        b.learner.fit()
    except KeyboardInterrupt:
        print("ended", flush=True)
assert not dead, dead
assert_equals(b.learner, run.starts[3])
assert_logged_like(b.directory, run)
"""


@pytest.mark.parametrize("storm", [60, STORM])
@pytest.mark.rounds(1)
def test_interrupts_to_the_whole_process_group_do_not_reach_the_workers(storm: int, tmp_path: Path) -> None:
    """As a kernel sends them: to the process and all that it started."""
    storm_on_a_group(tmp_path, storm, seed=2)


def storm_on_a_group(folder: Path, storm: int, seed: int) -> None:
    """The run of GROUP through a storm: many interrupts, a good part of which ended a call of `fit`."""
    calm, errors = folder / "calm", folder / "errors"
    with errors.open("w") as file:
        child = subprocess.Popen(
            [sys.executable, "-c", GROUP, str(folder / "run"), str(calm)],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            start_new_session=True,
        )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n", errors.read_text()
    ended: list[str] = []
    reader = threading.Thread(target=ended.extend, args=(child.stdout,))
    reader.start()
    chance, moment = random.Random(seed), threading.Event()
    sent = 0
    # While a busy machine starts its workers, ten are one, and some come between two calls of `fit`.
    while (sent < storm or len(ended) < storm // 10) and child.poll() is None:
        moment.wait(chance.uniform(0.0, 0.03))
        os.killpg(child.pid, signal.SIGINT)
        sent += 1
    calm.touch()
    try:
        child.wait(timeout=200)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise AssertionError(f"it hangs:\n{errors.read_text()}") from None
    finally:
        reader.join()
        child.stdout.close()

    assert child.returncode == 0, errors.read_text()
    assert set(ended) == {"ended\n"}
    assert "failed" not in (folder / "run" / "experiment.log").read_text()
