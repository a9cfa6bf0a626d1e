"""What a step on two devices costs here, and with torch's own DistributedDataParallel, interleaved.

    python tests/benchmarks/ranks_cost.py [rounds] [steps]

Two processes on the CPU (gloo), a thread each: an MLP of 1.6 million parameters and batches of 64, 32 for
each rank. Ours is a Learner on two CPU devices with `Loss()`, no display and no files. The other is a plain
loop over the same halves, in two processes that torch.multiprocessing starts.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH = 1024, 64


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(512, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(0)
    ten = [
        (torch.randn(BATCH, 512, generator=made), torch.randint(10, (BATCH,), generator=made))
        for _ in range(10)
    ]
    return [ten[index % 10] for index in range(count)]


def by_torch(rank: int, place: str, steps: int, found: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    trained = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    half = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    for count in (20, steps):
        started = time.perf_counter()
        for x, y in batches(count):
            optimizer.zero_grad()
            F.cross_entropy(trained(x[half]), y[half]).backward()
            optimizer.step()
    if rank == 0:
        found.put((time.perf_counter() - started) / steps)
    dist.destroy_process_group()


def torchs(steps: int) -> float:
    found = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(by_torch, (os.path.join(folder, "store"), steps, found), nprocs=2)
    return float(found.get())


def learner() -> Any:
    from notebook_learner import LearnerBuilder
    from notebook_learner.logger import InMemoryMetricLogger

    trained = model()
    return (
        LearnerBuilder(tempfile.mkdtemp())
        .loss(F.cross_entropy)
        .devices(["cpu", "cpu"])
        .renderer("silent")
        .metric_logger(InMemoryMetricLogger())
        .with_application_logger(False)
        .num_epochs(1_000_000)
        .build(trained, torch.optim.SGD(trained.parameters(), lr=0.01))
    )


def ours(made: Any, steps: int) -> float:
    started = time.perf_counter()
    made.step(steps)
    return (time.perf_counter() - started) / steps


def main() -> None:
    given = [int(each) for each in sys.argv[1:]]
    rounds, steps = (*given, *(5, 200)[len(given) :])
    torch.set_num_threads(1)
    made = learner()
    made._supplies.use(made, "train", batches(steps + 20))
    made.step(20)
    pairs = [(ours(made, steps), torchs(steps)) for _ in range(rounds)]
    for name, times in zip(
        ("notebook_learner", "DistributedDataParallel"), zip(*pairs, strict=True), strict=True
    ):
        print(
            f"{name:24}",
            " ".join(f"{1e3 * each:7.3f}" for each in times),
            f"ms; least {1e3 * min(times):.3f}",
        )


if __name__ == "__main__":
    main()
