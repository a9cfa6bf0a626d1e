"""What the notebook of `panel_cost` runs."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from notebook_learner import Learner, LearnerBuilder, TrainOutput
from notebook_learner.event import MetricBlock
from notebook_learner.learner.step.output import LossOutput
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import Loss
from notebook_learner.widget import panel as panels

BLOCK = 0.1
"""Seconds of a block of steps."""
RUN, BEGIN = 4.0, 0.5
"""Seconds of a run, and of its beginning, which is told apart: the pages hear of it at once and again after
the panel's interval, all buttons change, and the browser draws for a tenth of a second each time."""
WIDTHS = (4, 64, 128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 3072)


class Net(nn.Module):
    """One layer; notes the process's CPU time at each step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width, bias=False)
        self.cpu: list[float] = []

    def train_step(self, batch: Any) -> Any:
        self.cpu.append(time.process_time())
        return LossOutput(self.layer(batch).square().mean())

    valid_step = train_step


class ByHand(Net):
    """The least of steps: backward alone, for a layer of four, takes longer than a fifth of a millisecond."""

    @torch.no_grad()
    def train_step(self, batch: Any) -> Any:
        self.cpu.append(time.process_time())
        out = self.layer(batch)
        weight = (out.T @ batch).mul_(2 / out.numel())
        return TrainOutput(self, {"layer.weight": weight}, LossOutput(out.square().mean()))


def learners_of(width: int, steps: int, *renderers: str) -> dict[str, Learner]:
    """They train one model with the same batches: two models lie elsewhere in memory, and the steps of one
    may take a tenth longer than those of the other, as long as the process lives."""
    torch.manual_seed(0)
    net = ByHand(width) if width < 10 else Net(width)
    batches = [torch.randn(32, width)] * steps
    learners = {}
    for renderer in renderers:
        builder = LearnerBuilder(tempfile.mkdtemp()).metrics(Loss()).num_epochs(1).renderer(renderer)
        builder = builder.metric_logger(InMemoryMetricLogger()).with_application_logger(False)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        learners[renderer] = builder.build(net, optimizer, None, batches)
    return learners


class Spent:
    """CPU seconds in a display's hands, and of all threads but this one; and where blocks of steps met."""

    def __init__(self, learner: Learner) -> None:
        self.handling = 0.0
        self.boundaries: list[tuple[float, int, bool]] = []
        """CPU seconds of the process, steps taken, and whether a message was sent just after."""
        self._blocks = 0
        display: Any = learner._display
        if display is not None:
            self._panel = display._panel
            self._handle, display.handle = display.handle, self.handle

    def handle(self, event: Any) -> None:
        if isinstance(event, MetricBlock):
            self._choose_when()
        before, began, told = time.process_time(), time.thread_time(), self._panel._seq
        self._handle(event)
        if isinstance(event, MetricBlock):  # not the picture at the end of a run, which is short here
            self.handling += time.thread_time() - began
            self.boundaries.append((before, event.last, self._panel._seq > told))

    def _choose_when(self) -> None:
        """A message after the fewest blocks that the clock could let pass, told from what the last one took:
        sooner than by the clock, never later. By the clock itself it is slow blocks that are followed by one,
        and what it costs would be held against them."""
        self._blocks += 1
        due = self._blocks >= max(panels.INTERVAL, self._panel._rest) / BLOCK
        self._panel._sent, self._blocks = (-math.inf, 0) if due else (time.monotonic(), self._blocks)

    def around_messages(self) -> tuple[list[float], float]:
        """How much more CPU time of the process the steps after a message took, the message included, than
        those of the blocks before and after; and how many of the blocks began with a message."""
        cpu, steps, told = (np.array(each) for each in zip(*self.boundaries, strict=True))
        self.boundaries.clear()
        spent, taken, told = np.diff(cpu), np.diff(steps), told[:-1]
        alone = [at for at in range(1, len(told) - 1) if told[at - 1 : at + 2].tolist() == [0, 1, 0]]
        more = [
            spent[at] / taken[at] * (taken[at - 1] + taken[at + 1]) / (spent[at - 1] + spent[at + 1]) - 1
            for at in alone
        ]
        return more, float(told.mean())

    @staticmethod
    def beside() -> float:
        return time.process_time() - time.thread_time()


def keep_to(cores: set[int]) -> None:
    """Run all threads of this process there, and nowhere else."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def width_for(seconds: float) -> tuple[int, int]:
    """The width of the model whose step takes about so long on this machine, and the steps of a run."""
    found = []
    for width in WIDTHS:
        learner = learners_of(width, 50, "silent")["silent"]
        for _ in range(3):
            learner.model.cpu.clear()
            learner.fit(epochs=1)
        taken = float(np.median(np.diff(learner.model.cpu)))
        found.append((abs(math.log(taken / seconds)), width, round(RUN / taken)))
        if taken > 2 * seconds:
            break
    return min(found)[1:]


def measured(seconds: float, rounds: int) -> None:
    """CPU seconds a step of each round, of the beginning, and of a panel's own calls and the kernel's other
    threads, as a share. A browser on the same machine slows the steps themselves: the share tells the
    panel's part of that."""
    torch.set_num_threads(1)
    keep_to({0})  # the browser has the other cores
    width, steps = width_for(seconds)
    learners = learners_of(width, steps, "silent", "panel")
    spent = {name: Spent(learner) for name, learner in learners.items()}
    figures: dict[str, list[Any]] = {f"{name}'s {what}": [] for name in learners for what in ("own", "begin")}
    figures |= {name: [] for name in (*learners, "more", "often")}
    first = int(steps * BEGIN / RUN)
    for number in range(rounds + 1):
        for name in sorted(learners, reverse=bool(number % 2)):
            cpu = learners[name].model.cpu
            cpu.clear()
            handling, beside, began = spent[name].handling, Spent.beside(), time.process_time()
            learners[name].fit(epochs=1)
            ended = time.process_time()
            more, often = spent[name].around_messages() if name == "panel" else ([], math.nan)
            if number == 0:
                continue  # it warms up
            own = spent[name].handling - handling + Spent.beside() - beside
            figures[f"{name}'s own"].append(own / (ended - began))
            figures[f"{name}'s begin"].append(cpu[first] - began)
            figures[name].append((cpu[-1] - cpu[first]) / (len(cpu) - 1 - first))
            figures["more"] += more
            figures["often"].append(often)
    print("FIGURES" + json.dumps(figures))
