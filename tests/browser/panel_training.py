"""What the notebooks of the panel's tests train: steps of 10 ms, which say when each of them ended.

Imported by a cell, so that the page has room for the panel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Loss, Metric, TextMetric

torch.set_num_threads(1)

stamps: list[float] = []
"""When each training step ended, in seconds since 1970."""
every_step: list[Callable[[], None]] = []
"""Called at each training step."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def valid_step(self, batch: tuple[Tensor, Tensor]) -> Any:
        x, y = batch
        return SimpleNamespace(loss=nn.functional.mse_loss(self.linear(x), y))

    def train_step(self, batch: tuple[Tensor, Tensor]) -> Any:
        time.sleep(0.01)  # the work of a step
        for call in every_step:
            call()
        output = self.valid_step(batch)
        stamps.append(time.time())
        return output


class Unsized:
    """Batches without a length."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def build(
    directory: str,
    steps: int = 200,
    epochs: int = 3,
    renderer: str = "auto",
    metrics: Sequence[Metric] = (),
    texts: Sequence[TextMetric] = (),
    poisoned: int | None = None,
    sized: bool = True,
) -> Learner:
    """The same training each time, with loaders, so that the panel can run it; one of its training batches,
    counted from 0, may hold a NaN; and perhaps it has no length."""
    torch.manual_seed(1)
    train = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(steps)]
    if poisoned is not None:
        train[poisoned][0][3, 2] = float("nan")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    builder = LearnerBuilder(directory).metrics(Loss(), *metrics).num_epochs(epochs).renderer(renderer)
    for text in texts:
        builder.metric_train(text)
    return builder.build(model, optimizer, None, train if sized else Unsized(train), train[:4])
