"""What the tests of remote control share: a training that draws from every generator, and another process
that asks for things."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import ClassificationOutput, Learner, LearnerBuilder
from notebook_learner.remote.socket_place import NAME

SOON = 60.0
STEPS = 8
"""Training steps of an epoch."""


@dataclass
class Brake:
    """Makes a training wait before one of its steps (counted from 1) until it is let go on."""

    at: int = 0
    steps: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    free: threading.Event = field(default_factory=threading.Event)

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.at:
            self.reached.set()
            assert self.free.wait(SOON)


def learner_in(
    directory: Path,
    *,
    epochs: int = 2,
    each_step: Callable[[], object] = lambda: None,
    scheduler: Any = None,
    configure: Callable[[LearnerBuilder], object] = lambda builder: None,
) -> Learner:
    """Dropout, Adam and a shuffled loader: what goes wrong by one draw shows in the weights."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))
    data = TensorDataset(torch.randn(4 * STEPS, 6), torch.randint(0, 3, (4 * STEPS,)))

    def train(model: nn.Module, batch: Any) -> ClassificationOutput:
        each_step()
        x, y = batch
        output = model(x)
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    builder = LearnerBuilder(directory).train_step(train).num_epochs(epochs).renderer("silent").seed(5)
    configure(builder)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return builder.build(model, optimizer, scheduler, DataLoader(data, batch_size=4, shuffle=True))


def straight_weights(directory: Path, **options: Any) -> dict[str, torch.Tensor]:
    """What the same training ends with if it is left alone."""
    learner = learner_in(directory, **options, configure=lambda builder: builder.remote_control(False))
    return weights(learner.fit())


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def log_of(directory: Path) -> list[str]:
    """The lines of experiment.log, without their times."""
    lines = (directory / "experiment.log").read_text("utf-8").splitlines()
    return [line.split("  ", 1)[1] for line in lines]


def waits_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + SOON
    while not what():
        assert time.monotonic() < until
        time.sleep(0.005)


_OTHER = """
import json, os, sys, time
from notebook_learner import NotebookLearnerError
from notebook_learner.remote import control

if sys.argv[1:]:  # as this user from here on, with everything imported that only root can read
    os.setgroups([])
    os.setuid(int(sys.argv[1]))
print("[]", flush=True)
for line in sys.stdin:
    directory, *words = json.loads(line)
    began = time.monotonic()
    try:
        answer = control(directory, *words)
        told = [answer.ok, answer.text, dict(answer.facts)]
    except (NotebookLearnerError, ValueError) as error:
        told = [False, f"{type(error).__name__}: {error}", {}]
    print(json.dumps([*told, time.monotonic() - began]), flush=True)
"""


@dataclass(frozen=True)
class Told:
    """What the other process was answered, and how long it took."""

    ok: bool
    text: str
    facts: dict[str, Any]
    seconds: float


class OtherProcess:
    """A second notebook: a process of its own that steers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self._line() == [], "it has imported everything"

    @property
    def pid(self) -> int:
        return self.process.pid

    def asks(self, directory: Path, *words: str) -> Told:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(directory), *words]) + "\n")
        self.process.stdin.flush()
        return Told(*self._line())

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


@contextmanager
def other_process(uid: int | None = None) -> Iterator[OtherProcess]:
    command = [sys.executable, "-c", _OTHER, *([] if uid is None else [str(uid)])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    with process:
        try:
            yield OtherProcess(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(SOON)


def in_a_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin it; what is returned waits for its value."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()

    def value() -> Any:
        thread.join(SOON)
        assert found, "it ended, and raised nothing"
        return found[0]

    return value


def file_in(directory: Path) -> Path:
    """What says in a run's directory where its socket is."""
    return directory / NAME


def socket_of(directory: Path) -> Path:
    """The socket itself."""
    return Path(json.loads(file_in(directory).read_text())["socket"])
