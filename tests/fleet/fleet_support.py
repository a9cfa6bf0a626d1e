"""What the tests of several devices train, and the same training written by hand in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.logger import InMemoryMetricLogger
from notebook_learner.metric import Accuracy, Loss

TWO = ["cpu", "cpu"]
SAMPLES, FEATURES, CLASSES = 101, 10, 3
BATCH = 16  # seven batches of an epoch, the last one of five samples: an uneven one for two ranks


class Net(nn.Module):
    """Two layers; dropout where a test wants a random stream."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 32), nn.Linear(32, CLASSES)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(torch.relu(self.first(x))))


def samples(count: int = SAMPLES) -> TensorDataset:
    x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, x[:, :CLASSES].argmax(1))


def train_loader(batch_size: int = BATCH, count: int = SAMPLES) -> DataLoader[Any]:
    return DataLoader(samples(count), batch_size=batch_size, shuffle=True)


def valid_loader() -> DataLoader[Any]:
    return DataLoader(samples(), batch_size=33)


def batches(size: int = 33) -> list[tuple[Tensor, Tensor]]:
    """Views of larger tensors, the last of them uneven for two ranks."""
    x, y = samples().tensors
    return [(x[at : at + size], y[at : at + size]) for at in range(0, len(x), size)]


class Walked:
    """Batches that only rank 0 can walk, and hands out."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def made(dropout: float = 0.0) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = Net(dropout)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def learner_on(
    devices: list[str] | None,
    directory: Any,
    *,
    dropout: float = 0.0,
    epochs: int = 3,
    configure: Callable[[LearnerBuilder], Any] = lambda builder: None,
) -> Learner:
    """A learner that keeps no log files; whether it trains alone or not is all that differs."""
    builder = (
        LearnerBuilder(directory)
        .loss(F.cross_entropy)
        .num_epochs(epochs)
        .renderer("silent")
        .metrics(Loss(), Accuracy())
        .metric_logger(InMemoryMetricLogger())
        .with_application_logger(False)
    )
    if devices is not None:
        builder.devices(devices)
    configure(builder)
    model, optimizer = made(dropout)
    return builder.build(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9))


def by_hand(loader: Any, epochs: int = 3, window: int = 1) -> Net:
    """A plain training loop in one process, with the whole batch. A window of batches is one batch."""
    model, optimizer = made()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    torch.manual_seed(5)
    for _ in range(epochs):
        batches = list(loader)
        for at in range(0, len(batches), window):
            part = batches[at : at + window]
            x, y = torch.cat([each[0] for each in part]), torch.cat([each[1] for each in part])
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        schedule.step()
    return model


def furthest(model: nn.Module, other: nn.Module) -> float:
    """The largest difference of two models' parameters, relative to the parameter's largest value."""
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((p - q).abs().max() / q.abs().max()) for p, q in pairs)


def bits(learner: Learner) -> list[bytes]:
    """Everything that a person would compare: weights and the optimizer's state, to the bit."""
    state = learner.capture().parts
    moments = [each["values"] for each in state["optimizer"]["state"] if each]
    tensors = [*state["model"]["tensors"].values(), *(t for each in moments for t in each.values())]
    return [tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]


def comes_to_an_end(pid: int) -> bool:
    """A process that was killed is there until its parent has taken notice."""
    until = time.monotonic() + 60.0
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not psutil.pid_exists(pid)
