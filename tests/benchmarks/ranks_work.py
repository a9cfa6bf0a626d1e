"""What `ranks` trains, by both."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, DIFFERENT = 64, 20


def net_of(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01)


def batches_of(width: int) -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [
        (torch.randn(BATCH, width, generator=drawn), torch.randint(0, 10, (BATCH,), generator=drawn))
        for _ in range(DIFFERENT)
    ]


def loss_of(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])
