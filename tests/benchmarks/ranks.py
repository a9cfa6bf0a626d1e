"""What several devices cost beside torch's DistributedDataParallel: two ranks of each on this machine, which
take the same steps in turn, while the other two wait."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from ranks_work import batches_of, net_of, optimizer_of

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import Loss

HERE = Path(__file__).parent
WORLD = 2
WORKLOADS = {"small": (256, 300), "large": (1500, 60)}
"""Width of the model, and steps of a chunk."""
CHUNKS = 6
"""Of each, a round."""


class ByHand:
    """The processes of DistributedDataParallel."""

    def __init__(self, width: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        meeting = f"{self._folder.name}/meeting"
        self._ranks = [
            subprocess.Popen(
                [sys.executable, str(HERE / "ddp_rank.py"), str(rank), str(WORLD), meeting, str(width)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(WORLD)
        ]

    def chunk(self, steps: int) -> dict[str, Any]:
        for each in self._ranks:
            assert each.stdin is not None
            each.stdin.write(f"{steps}\n")
            each.stdin.flush()
        told = [each.stdout.readline() for each in self._ranks if each.stdout is not None]
        found: dict[str, Any] = json.loads(told[0])
        return found

    def close(self) -> None:
        for each in self._ranks:
            assert each.stdin is not None
            each.stdin.close()
        for each in self._ranks:
            each.wait()


class Ours:
    """A learner on as many devices. Only rank 0 notes when a step begins, as above."""

    def __init__(self, width: int) -> None:
        self.begun: list[float] = []
        """When each step of a chunk began."""
        net, batches = net_of(width), batches_of(width)
        self.learner: Learner = (
            LearnerBuilder(tempfile.mkdtemp())
            .devices(["cpu"] * WORLD)
            .train_step(step_of())
            .metrics(Loss())
            .renderer("silent")
            .metric_logger(InMemoryMetricLogger())
            .with_application_logger(False)
            .build(net, optimizer_of(net), None, batches * 5000)
        )

    def watch(self) -> None:
        """Note when a step begins; not before the model was sent to the other ranks, without this."""
        self.learner.model.register_forward_pre_hook(self._note)

    def _note(self, module: Any, given: Any) -> None:
        self.begun.append(time.perf_counter())

    def chunk(self, steps: int) -> dict[str, Any]:
        self.begun.clear()
        cpu = time.process_time()
        self.learner.step(steps)
        spent = (time.process_time() - cpu) / steps
        weights = [float(each.detach().double().sum()) for each in self.learner.model.parameters()]
        return {"begun": list(self.begun), "weights": weights, "cpu": spent}


def step_of() -> Any:
    """Made here, so that it is sent by value: the engines do not know this folder."""
    from torch.nn import functional as F

    def step(model: Any, batch: Any) -> Any:
        class Output:
            pass

        output = Output()
        output.loss = F.cross_entropy(model(batch[0]), batch[1])  # type: ignore[attr-defined]
        return output

    return step


def seconds(begun: list[float]) -> float:
    """A step's, without the first and the last tenth of a chunk: its begin and end cost something, too."""
    edge = len(begun) // 10
    return (begun[-1 - edge] - begun[edge]) / (len(begun) - 1 - 2 * edge)


def main(rounds: int) -> None:
    torch.set_num_threads(1)
    print(f"a step of {WORLD} ranks, medians of {rounds * CHUNKS} pairs of chunks")
    for name, (width, steps) in WORKLOADS.items():
        theirs, ours = ByHand(width), Ours(width)
        pairs: list[tuple[float, float]] = []
        cpu: list[tuple[float, float]] = []
        for number in range(rounds * CHUNKS + 1):
            order = (theirs, ours) if number % 2 else (ours, theirs)
            found = {id(each): each.chunk(steps) for each in order}
            a, b = found[id(theirs)], found[id(ours)]
            apart = max(abs(x - y) for x, y in zip(a["weights"], b["weights"], strict=True))
            assert apart < 1e-3, f"unequal work: the sums of the weights differ by {apart}"
            if number:
                pairs.append((seconds(a["begun"]), seconds(b["begun"])))
                cpu.append((a["cpu"], b["cpu"]))
            else:  # the first warms up
                ours.watch()
        theirs.close()
        report(f"{name}, wall time", pairs)
        report(f"{name}, CPU time of rank 0", cpu)


def report(name: str, pairs: list[tuple[float, float]]) -> None:
    more = sorted(100 * (b / a - 1) for a, b in pairs)
    tenth = len(more) // 10
    print(
        f"{name:26}{1e3 * statistics.median(a for a, _ in pairs):10.3f} ms by hand"
        f"{1e3 * statistics.median(b for _, b in pairs):10.3f} ms here"
        f"   {statistics.median(more):+.2f} %"
        f" (eight pairs of ten from {more[tenth]:+.2f} to {more[-1 - tenth]:+.2f} %)"
    )
