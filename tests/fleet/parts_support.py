"""Learners whose weights are in parts, and a model with layers that are brought together one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fleet_support import CLASSES, FEATURES, TWO, learner_on
from torch import Tensor, nn
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder


def begun(
    directory: Any,
    devices: list[str] | None = TWO,
    configure: Callable[[LearnerBuilder], Any] = lambda builder: None,
    **options: Any,
) -> Learner:
    """One that is about to train, in parts where there are several devices."""

    def both(builder: LearnerBuilder) -> None:
        if devices is not None:
            builder.strategy("fsdp")
        configure(builder)

    learner = learner_on(devices, directory, configure=both, **options)
    torch.manual_seed(5)
    return learner


class Block(nn.Module):
    """One of several of its kind."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.layer(self.norm(x)))


class Deep(nn.Module):
    """Blocks, a recurrent layer, a layer that trains nothing, running statistics, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 13)
        self.statistics = nn.BatchNorm1d(13)
        self.blocks = nn.ModuleList(Block(13) for _ in range(3))
        self.memory = nn.GRU(13, 13)
        self.frozen = nn.Linear(13, 13)
        self.again = nn.Linear(FEATURES, 13)
        self.again.weight = self.first.weight
        self.last = nn.Linear(13, CLASSES)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.statistics(self.first(x))
        for block in self.blocks:
            h = block(h)
        h = self.frozen(self.memory(h[None])[0][0])
        return self.last(h + self.again(x))


def deep(directory: Any, devices: list[str] | None = TWO, **options: Any) -> Learner:
    """A learner of a `Deep`, with weight decay and momentum."""
    torch.manual_seed(1)
    model = Deep()
    optimizer = torch.optim.SGD(
        [
            {"params": list(model.blocks.parameters()), "lr": 0.05},
            {"params": [p for n, p in model.named_parameters() if not n.startswith("blocks.")]},
        ],
        lr=0.02,
        momentum=0.9,
        weight_decay=0.01,
    )
    builder = LearnerBuilder(directory).loss(F.cross_entropy).num_epochs(2).renderer("silent")
    builder.with_application_logger(False)
    if devices is not None:
        builder.devices(devices).strategy(options.get("strategy", "fsdp"))
    learner = builder.build(model, optimizer)
    torch.manual_seed(5)
    return learner
