"""What the notebook of `panel_cost` runs."""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from notebook_learner import Learner, LearnerBuilder, TrainOutput
from notebook_learner.event import MetricBlock
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import Loss, Metric
from notebook_learner.step.output import LossOutput

BLOCKS, LED_IN = 12, 2
"""Blocks of steps, of a tenth of a second, that are of one kind, and how many of them are not counted. What a
message costs after it was sent ends within these, so that as much of it leaves the window as enters it."""
TURNS = 60
"""How often each kind has its turn in one process."""
KINDS = ("panel", "silent", "control")
"""The control is as silent as the silent one: what the two differ by is what such a measurement does not
tell."""
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


class Scaled(Metric):
    """The loss under another name, times a number."""

    needs = ("loss",)

    def __init__(self, factor: int) -> None:
        self.name, self.factor = f"metric {factor}", factor

    def update(self, item: Any) -> Any:
        return item.loss * self.factor


def learner_of(width: int, steps: int, renderer: str, metrics: int = 1) -> Learner:
    torch.manual_seed(0)
    net = ByHand(width) if width < 10 else Net(width)
    measured = (Loss(), *(Scaled(factor) for factor in range(1, metrics)))
    builder = LearnerBuilder(tempfile.mkdtemp()).metrics(*measured).num_epochs(1).renderer(renderer)
    builder = builder.metric_logger(InMemoryMetricLogger()).with_application_logger(False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    return builder.build(net, optimizer, None, [torch.randn(32, width)] * steps)


class Gate:
    """Lets a learner's display hear of the steps in some turns and of nothing in others: what it does, it
    does in its calls, and in what these have the pages and the kernel's other threads do."""

    def __init__(self, learner: Learner, turns: int) -> None:
        self._kinds = [kind for _ in range(turns) for kind in random.sample(KINDS, len(KINDS))]
        self._kind, self._blocks, self._closed_at = "panel", -10 * BLOCKS, 0.0  # it warms up
        self._at: tuple[float, float, int] | None = None
        self.figures: dict[str, list[float]] = {f"{kind}{of}": [] for kind in KINDS for of in ("", "'s own")}
        display: Any = learner._display
        self._panel, self._handle, self._blocking = display._panel, display.handle, display.blocking
        self.messages, self._in_calls = 0, 0.0
        self._learner = learner
        display.handle, display.blocking = self.handle, self.blocking

    def handle(self, event: Any) -> None:
        if isinstance(event, MetricBlock):
            self._turn(event.last)
        if self._kind == "panel" or not isinstance(event, MetricBlock):
            began, told = time.thread_time(), self._panel._seq
            self._handle(event)
            self._in_calls += time.thread_time() - began
            self.messages += self._panel._seq - told

    @contextmanager
    def blocking(self) -> Iterator[Callable[[], None]]:
        with self._blocking() as serve:
            yield lambda: serve() if self._kind == "panel" else None

    def _turn(self, steps: int) -> None:
        if self._kind == "over":
            return
        self._blocks += 1
        if self._blocks == LED_IN:
            self._at = self._spent(steps)
        if self._blocks in (BLOCKS, 0):
            self._count(steps)
            self._blocks = 0
            self._change(self._kinds.pop() if self._kinds else "over")

    def _count(self, steps: int) -> None:
        if self._at is not None:
            cpu, own, taken = (now - then for now, then in zip(self._spent(steps), self._at, strict=True))
            self.figures[self._kind].append(cpu / taken)
            self.figures[f"{self._kind}'s own"].append(own / cpu)
        if not self._kinds:
            self._learner.stop()

    def _spent(self, steps: int) -> tuple[float, float, int]:
        """CPU seconds of the process, those in the display's hands and of all threads but this one, steps."""
        cpu = time.process_time()
        return cpu, self._in_calls + cpu - time.thread_time(), steps

    def _change(self, kind: str) -> None:
        now = time.monotonic()
        if self._kind == "panel":
            self._closed_at = now
        elif kind == "panel":  # its clock stood still: it tells as often as it would if it always heard
            self._panel._pace.sent += now - self._closed_at
            self._panel._pace.values_sent += now - self._closed_at
        self._kind = kind


def keep_to(cores: set[int]) -> None:
    """Run all threads of this process there, and nowhere else."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def width_for(seconds: float, metrics: int) -> tuple[int, float]:
    """The width of the model whose step takes about so long on this machine, and how long."""
    found = []
    for width in WIDTHS:
        learner = learner_of(width, 50, "silent", metrics)
        for _ in range(3):
            learner.model.cpu.clear()
            learner.fit(epochs=1)
        taken = float(np.median(np.diff(learner.model.cpu)))
        found.append((abs(math.log(taken / seconds)), width, taken))
        if taken > 2 * seconds:
            break
    return min(found)[1:]


def measured(seconds: float, metrics: int) -> None:
    """CPU seconds a step of each turn, and the share of what is not the steps themselves: a panel's own calls
    and the kernel's other threads."""
    torch.set_num_threads(1)
    keep_to({0})  # the browser has the other cores
    width, taken = width_for(seconds, metrics)
    steps = round(2 * 0.1 * BLOCKS * len(KINDS) * (TURNS + 4) / taken)
    learner = learner_of(width, steps, "panel", metrics)
    gate = Gate(learner, TURNS)
    learner.fit(epochs=1)
    print("FIGURES" + json.dumps(gate.figures | {"messages": [gate.messages]}))
