"""Curves of going back and of seeding, by what there is to go back over, tensors, samples and indices."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from growth import Row, cpu, curve


def learner_of(folder: str, model: Any, loader: Any, *, step: Any = None, optimizer: Any = None) -> Any:
    """A learner without files, so that what is measured is not the disk."""
    import torch
    from torch.nn import functional as F

    from notebook_learner import LearnerBuilder

    torch.set_num_threads(1)
    builder = LearnerBuilder(Path(folder) / "run").num_epochs(1).renderer("silent").remote_control(False)
    if step is None:
        builder.loss(F.cross_entropy)
    if step is not None:
        builder.train_step(step)
    return builder.build(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.01), None, loader)


@curve("rewind", "steps behind", "first, ms CPU", "later, ms CPU", "later, steps")
def rewind_again(quick: bool) -> Iterator[Row]:
    """`rewind(1)` after so many steps, the mean of 20 that follow, and the most steps one of them takes."""
    import torch
    from torch import nn

    batch = torch.randn(4, 8), torch.tensor([0, 1, 2, 0])
    for steps in (50, 100) if quick else (100, 300, 1000, 3000, 10_000):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            learner = learner_of(folder, nn.Linear(8, 3), [batch] * (steps + 1))
            learner.step(steps)
            with cpu() as first:
                learner.rewind(1)
            with cpu() as later:
                most = max(learner.rewind(1).replayed for _ in range(20))
            yield steps, first.ms, later.ms / 20, most


@curve("keyframes", "tensors", "counted, MB", "memory, MB", "memory/counted")
def keyframes(quick: bool) -> Iterator[Row]:
    """100 keyframes of so many tensors of 20 numbers, with Adam."""
    import psutil
    import torch
    from torch import nn

    def joined(model: Any, batch: Any) -> Any:
        return torch.cat(list(model)).sum() * batch

    def now(timeline: Any) -> tuple[float, float]:
        gc.collect()
        return timeline.nbytes / 1e6, psutil.Process().memory_info().rss / 1e6

    for tensors in (50, 100) if quick else (100, 300, 1000, 3000):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            model = nn.ParameterList([nn.Parameter(torch.ones(20)) for _ in range(tensors)])
            adam = torch.optim.Adam(model.parameters())
            learner = learner_of(folder, model, [torch.ones(())] * 130, step=joined, optimizer=adam)
            for _ in range(20):
                learner.step(1)
            timeline = learner._replica.timeline
            counted, taken = now(timeline)
            for _ in range(100):
                learner.step(1)
            counted, taken = (
                after - before for after, before in zip(now(timeline), (counted, taken), strict=True)
            )
            yield tensors, counted, taken, taken / counted


@curve("seed", "batch", "unseeded, us", "seeded, us", "us a sample")
def seed(quick: bool) -> Iterator[Row]:
    """What a batch costs to fetch, without and with `.seed(n)`, from a dataset that draws nothing."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    from notebook_learner.data.cursor import Cursor

    class Plain(Dataset[Any]):
        sample = torch.randn(4)

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: int) -> Any:
            return self.sample, index & 1

    for batch in (2, 8) if quick else (1, 32, 256, 1024):
        took = []
        for number in (None, 1):
            cursor = Cursor(DataLoader(Plain(), batch, shuffle=True), number)
            cursor.begin(1)
            for _ in range(20):
                cursor.fetch()
            repeated = 20 if quick else max(20, 20_000 // (batch + 30))
            measured = []
            for _ in range(5):
                with cpu() as fetched:
                    for _ in range(repeated):
                        cursor.fetch()
                measured.append(fetched.ms * 1e3 / repeated)
            took.append(min(measured))
        yield batch, *took, (took[1] - took[0]) / batch


@curve("order", "indices", "first step, ms", "after rewind, ms")
def order(quick: bool) -> Iterator[Row]:
    """The first step over so many shuffled indices, which draws their order; the step after `rewind(1)`."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class Indices(Dataset[Any]):
        def __init__(self, size: int) -> None:
            self.size = size

        def __len__(self) -> int:
            return self.size

        def __getitem__(self, index: int) -> Any:
            return torch.ones(4), index & 1

    for size in (100, 1000) if quick else (10_000, 100_000, 1_000_000, 10_000_000):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            learner = learner_of(folder, nn.Linear(4, 2), DataLoader(Indices(size), 32, shuffle=True))
            with cpu() as first:
                learner.step(1)
            learner.step(2)
            learner.rewind(1)
            with cpu() as again:
                learner.step(1)
            yield size, first.ms, again.ms
