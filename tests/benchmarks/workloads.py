"""The same training, by hand and by the Learner: one process each, so that neither warms the other up.

Run as a script: `python workloads.py NAME WHO STEPS` prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4
BATCH = 32
Batches = list[tuple[Tensor, Tensor]]
Result = tuple[float, float, float]
"""CPU seconds, wall seconds, and the final loss, which both must share."""


def batches(steps: int) -> Batches:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(steps, BATCH, 64, generator=source)
    y = torch.randint(0, 10, (steps, BATCH), generator=source)
    return list(zip(x, y, strict=True))


def shuffled(data: Batches) -> Any:
    """The same samples, in the loader that most notebooks have."""
    x, y = (torch.cat(column) for column in zip(*data, strict=True))
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def timed(train: Callable[[], Tensor | float]) -> Result:
    cpu, wall = time.process_time(), time.perf_counter()
    loss = float(train())
    return time.process_time() - cpu, time.perf_counter() - wall, loss


def by_hand(data: Any, metrics: bool) -> Result:
    """A sensible loop: metrics stay tensors, and are read once an epoch."""
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def train() -> Tensor:
        loss = torch.zeros(())
        for _ in range(EPOCHS):
            net.train()
            total, right, seen = torch.zeros(()), torch.zeros((), dtype=torch.int64), 0
            for x, y in data:
                optimizer.zero_grad()
                output = net(x)
                loss = F.cross_entropy(output, y)
                loss.backward()
                optimizer.step()
                if metrics:
                    total += loss.detach() * len(y)
                    right += (output.argmax(1) == y).sum()
                    seen += len(y)
            if metrics:
                total.item(), right.item()
        return loss.detach()

    return timed(train)


def by_learner(data: Any, configure: Callable[[Any], Any]) -> Result:
    from notebook_learner import LearnerBuilder

    net = model()
    with tempfile.TemporaryDirectory() as directory:
        builder = configure(LearnerBuilder(directory).loss(F.cross_entropy).num_epochs(EPOCHS))
        learner = builder.build(net, torch.optim.Adam(net.parameters(), lr=1e-3))

        def train() -> Tensor:
            learner.fit(data)
            return learner.output.loss.detach()

        return timed(train)


def quiet(builder: Any) -> Any:
    from notebook_learner.logger import InMemoryMetricLogger

    return builder.renderer("silent").with_application_logger(False).metric_logger(InMemoryMetricLogger())


def measured(builder: Any) -> Any:
    from notebook_learner.metric import Accuracy, Loss

    return builder.metrics(Loss(), Accuracy())


WORKLOADS: dict[str, dict[str, Callable[[Batches], Result]]] = {
    "bare": {
        "raw": lambda data: by_hand(data, metrics=False),
        "learner": lambda data: by_learner(data, lambda b: quiet(b).metrics()),
    },
    "metrics": {
        "raw": lambda data: by_hand(data, metrics=True),
        "learner": lambda data: by_learner(data, lambda b: measured(quiet(b))),
    },
    "default": {
        "raw": lambda data: by_hand(data, metrics=True),
        "learner": lambda data: by_learner(data, measured),
    },
    "memory": {
        "raw": lambda data: by_hand(shuffled(data), metrics=False),
        "learner": lambda data: by_learner(shuffled(data), lambda b: quiet(b).metrics()),
    },
}


def main(name: str, who: str, steps: int) -> None:
    torch.set_num_threads(1)
    data = batches(steps)
    WORKLOADS[name][who](data[: max(1, steps // 10)])  # warm-up: allocator, code paths, imports
    cpu, wall, loss = WORKLOADS[name][who](data)
    taken = EPOCHS * steps
    print(json.dumps({"cpu_us": cpu / taken * 1e6, "wall_us": wall / taken * 1e6, "loss": loss}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
