"""What the tests of detached runs share: scripts that hand a run over and die, and a look at what goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from exactness import Setup, logs

from notebook_learner import Learner
from notebook_learner.checkpoint import Hdf5Recorder
from notebook_learner.remote import control
from notebook_learner.remote.detached import LOG, Detached, noted_in

SOON = 120.0
LEARNER = Path(__file__).parents[1] / "learner"
HERE = Path(__file__).parent

HEAD = f"""
import os, signal, sys, time
from pathlib import Path
sys.path[:0] = [{str(LEARNER)!r}, {str(HERE)!r}, {str(HERE.parent / "fleet")!r}]
import torch
torch.set_num_threads(1)
"""


def waits_for(what: Callable[[], Any]) -> Any:
    until = time.monotonic() + SOON
    while not (found := what()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def interrupted_inside(verb: Callable[..., Any]) -> threading.Thread:
    """As by the interrupt button, half a second after the main thread began this verb."""
    code = verb.__code__

    def is_inside() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        return any(each.f_code is code for each, _ in traceback.walk_stack(frame))

    def press() -> None:
        waits_for(is_inside)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def runs_and_dies(text: str, **values: Any) -> int:
    """A script that hands a run over and is killed for it: the number of the process that goes on."""
    script = HEAD + textwrap.dedent(text).format(**{name: repr(value) for name, value in values.items()})
    end = "\nprint('handed over to', report.pid, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script + end], capture_output=True, text=True, timeout=SOON
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return int(done.stdout.split()[-1])


def until_it_ends(directory: Path, pid: int | None = None) -> Detached:
    """Waits for the process; what it noted of its end."""
    noted = waits_for(lambda: noted_in(directory))
    assert pid in (None, noted.pid)
    waits_for(lambda: not noted.is_alive())
    found = noted_in(directory)
    assert found is not None
    return found


def values_in(directory: Path) -> dict[str, bytes]:
    """The logs of the metrics, byte by byte."""
    return {name: data for name, data in logs(directory).items() if name not in (LOG, "experiment.log")}


def printed_in(directory: Path) -> str:
    return (directory / LOG).read_text("utf-8")


def resumed(setup: Setup, directory: Path) -> Learner:
    """A new kernel's learner, where the run ended."""
    return setup.learner(directory, "latest")


def steered(directory: Path, *words: str) -> str:
    answer = control(directory, *words)
    assert answer.ok, answer.text
    return answer.text


def end(learner: Learner) -> None:
    """Of a process that a test has left to itself."""
    away: Any = learner._away
    if away is not None:
        with suppress(ProcessLookupError):
            os.kill(away.noted.pid, signal.SIGKILL)
        waits_for(lambda: not away.noted.is_alive())


def waiting(gate: Path) -> Path:
    """There while a step waits."""
    return gate.with_suffix(".waits")


def waits_at(gate: Path) -> None:
    """Wait until another process opens it."""
    while not gate.exists():
        waiting(gate).touch()
        time.sleep(0.01)


class Gate:
    """A step's loss waits at each step of a process other than this one until a file is there: so a test
    finds a detached run in the middle. Then each step takes a moment, so that what the test asks for next
    finds it there, too. Sent by value it knows where it comes from."""

    def __init__(self, path: Path, after: int = 0) -> None:
        self.path, self.home, self.after, self.steps = path, os.getpid(), after, 0

    def state_dict(self) -> dict[str, Any]:
        """It is no part of the training."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def __call__(self, output: Any, target: Any) -> Any:
        from torch.nn import functional as F

        if os.getpid() != self.home:
            self.steps += 1
            if self.steps > self.after:
                waits_at(self.path)
                time.sleep(0.05)
        return F.cross_entropy(output, target)


class Held(Hdf5Recorder):
    """A disk on which nothing is written by a process other than this one until a file is there."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.home = path, os.getpid()

    def encode(self, value: Any, /, what: str = "state") -> Any:
        if os.getpid() != self.home:
            waits_at(self.path)
        return super().encode(value, what)
