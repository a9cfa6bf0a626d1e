"""What a run of a million steps keeps in memory while it trains, and how long its directory takes to open.

`long-run` trains a model of one parameter with the default logs, and notes the process' memory at the start
and after each tenth of the run; then a fresh process opens the directory, and is timed from the first line it
needs to the first message that a panel's page would get.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PARTS = 10
"""Epochs, each a tenth of the run."""


def main(steps: int, directory: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = directory or Path(folder) / "run"
        if not run.exists():
            _alone("train", str(run), str(steps))
        for number in range(2):
            print(f"opened {'for the first time' if number == 0 else 'once more'}, a fresh process:")
            _alone("read", str(run))


def _alone(*arguments: str) -> None:
    subprocess.run([sys.executable, __file__, *arguments], check=True)


# Training --------------------------------------------------------------------------------------------------


class OneBatch:
    """The same batch so many times; notes the memory whenever an epoch begins."""

    def __init__(self, steps: int) -> None:
        import torch

        self.steps = steps
        self.batch = torch.ones(1)
        self.resident: list[float] = []
        """Before each epoch, and at the end; told as it is noted."""

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        self.note()
        for _ in range(self.steps):
            yield self.batch

    def note(self) -> None:
        self.resident.append(resident())
        after, first = (len(self.resident) - 1) * self.steps, self.resident[0]
        print(
            f"  after {after:>9,} steps{self.resident[-1]:9.1f} MB{self.resident[-1] - first:+9.1f}",
            flush=True,
        )


def resident() -> float:
    import psutil

    return psutil.Process().memory_info().rss / 1e6


def train(directory: str, steps: int) -> None:
    import torch
    from torch import Tensor, nn

    from notebook_learner import LearnerBuilder
    from notebook_learner.metric import Loss

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def train_step(self, batch: Tensor) -> Tensor:
            return self.weight * self.weight

    torch.set_num_threads(1)
    model = Net()
    builder = LearnerBuilder(directory).metrics(Loss()).num_epochs(1)
    learner = builder.renderer("silent").build(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    learner.fit([torch.ones(1)] * 100)  # its first blocks, files and threads are no growth
    before = learner.position.iteration
    batches = OneBatch(steps // PARTS)
    learner.num_epochs += PARTS
    began = time.process_time()
    learner.fit(batches)
    took = time.process_time() - began
    marks = [*batches.resident, resident()]
    print(
        f"memory of a run of {steps:,} steps, one logged value each, {took / steps * 1e6:.0f} us CPU a step"
    )
    for number, megabytes in enumerate(marks):
        print(f"  after {number * steps // PARTS:>9,} steps{megabytes:9.1f} MB{megabytes - marks[0]:+9.1f}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(f"  at most{'':16}{peak:9.1f} MB{peak - marks[0]:+9.1f}")
    assert learner.position.iteration == before + steps // PARTS * PARTS


# Reading ---------------------------------------------------------------------------------------------------


class Page:
    """What carries a panel's messages, without a browser: it asks as a page does and keeps what comes."""

    def __init__(self, receive: Callable[[object], None]) -> None:
        self.receive = receive
        self.said: list[Any] = []

    def send(self, message: Any) -> None:
        self.said.append(message)

    def bundle(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


def read(directory: str) -> None:
    import torch  # noqa: F401  # a notebook has it

    from notebook_learner import Artifacts
    from notebook_learner.artifacts.watch_panel import Watching
    from notebook_learner.widget.panel import Panel

    size = sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())
    index = os.path.getsize(Path(directory) / "artifacts.h5")
    print(f"  {size / 1e6:.1f} MB of files, of it artifacts.h5 {index / 1e6:.1f} MB")
    before = resident()
    run = _timed("Artifacts(dir)", lambda: Artifacts(directory))
    series = _timed(".series('Loss')", lambda: run.series("Loss"))
    print(f"    {len(series.value):,} points")
    _timed(".series('Loss') again", lambda: run.series("Loss"))
    _timed(".summary()", lambda: run.summary())
    _timed(".plot()", lambda: run.plot())
    _timed("repr", lambda: repr(run))
    panel = Panel(Page)
    watching = Watching(Artifacts(directory), panel)

    def shown() -> None:
        watching.start()
        panel.receive({"cmd": "hello", "args": {}, "seq": 1, "client": "page"})

    _timed("a panel's first snapshot", shown)
    watching.stop()
    parts = panel.wire.said[-1]
    print(f"    {sum(len(part) for part in parts.buffers) / 1e3:.0f} kB of curves")
    print(f"  memory {resident() - before:+.1f} MB")


def _timed(what: str, work: Callable[[], Any]) -> Any:
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"  {what:34}{cpu * 1e3:10.1f} ms CPU{wall * 1e3:10.1f} ms")
    return result


if __name__ == "__main__":
    if sys.argv[1] == "train":
        train(sys.argv[2], int(sys.argv[3]))
    else:
        read(sys.argv[2])
