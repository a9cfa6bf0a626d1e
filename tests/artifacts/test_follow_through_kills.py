"""A run that is written, killed, resumed and rewound, seen from another process all the while: no value torn
or told twice, `artifacts.h5` always whole, and the trainer not slowed down."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import pytest
from test_follow import Listener, assert_heard

from notebook_learner import Artifacts

TRAINER = """
import sys, time
sys.path[:0] = {paths!r}
from crash_support import Training
learner = Training().learner({directory!r}, {which!r})
function = learner._replica.loop.passes["train"].step.function

def slowly(batch):
    time.sleep(0.02)
    return function(batch)

learner._replica.loop.passes["train"].step.function = slowly
learner.step(3)
learner.rewind(2)
print("training", flush=True)
learner.fit()
"""


def train(directory: Path, which: str | None, kill_after: float | None) -> None:
    tests = Path(__file__).parents[1]
    script = TRAINER.format(
        paths=[str(tests / "crash"), str(tests / "learner")], directory=str(directory), which=which
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "training\n"
    if kill_after is not None:
        threading.Event().wait(kill_after)
        child.send_signal(signal.SIGKILL)
    child.communicate(timeout=200)
    assert child.returncode == (0 if kill_after is None else -signal.SIGKILL)


class Follower(threading.Thread):
    """Hears a run to its end; the thread that waits for it gets its error."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.news = Artifacts(directory).follow(poll=0.002, timeout=200)
        self.listener = Listener()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.listener.hear(self.news)
        except BaseException as error:
            self.error = error


class Viewer(threading.Thread):
    """Opens artifacts.h5 again and again, as a viewer of HDF5 files does."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)  # a test that fails does not end it
        self.path = directory / "artifacts.h5"
        self.over = threading.Event()
        self.seen, self.wrong = 0, ""

    def run(self) -> None:
        while not self.over.wait(0.01):
            if self.path.exists():
                try:
                    self.look()
                except Exception as error:
                    self.wrong = repr(error)

    def look(self) -> None:
        with h5py.File(self.path, locking=False) as file:
            for series in file.get("series/train", {}).values():
                assert len(series["value"][()]) == len(series["iteration"][()])
        self.seen += 1


@pytest.mark.soak
def test_a_run_that_is_killed_resumed_and_rewound_is_followed_to_the_end(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    follower, viewer = Follower(directory), Viewer(directory)
    viewer.start()
    follower.start()
    train(directory, None, kill_after=0.15)
    train(directory, "latest", kill_after=0.1)
    train(directory, "latest", kill_after=None)
    follower.join(timeout=60)  # it ends with the run; a busy machine takes long to begin one
    viewer.over.set()
    viewer.join()

    assert not follower.is_alive()
    if follower.error is not None:
        raise follower.error
    assert follower.listener.back, "it was told what a rewind took back"
    assert_heard(follower.listener, Artifacts(directory).history.snapshot())
    assert (viewer.wrong, viewer.seen > 3) == ("", True)
