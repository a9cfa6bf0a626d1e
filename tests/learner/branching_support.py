"""A run with dropout and a shuffled loader, whose weights at each step are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import LearnerBuilder
from notebook_learner.event import Notice

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)
STEPS = 8
"""The training steps of an epoch."""


class Shown:
    def __init__(self) -> None:
        self.told: list[str] = []

    def handle(self, event: Any) -> None:
        if isinstance(event, Notice):
            self.told.append(event.text)


def learner_in(
    directory: Path,
    *,
    epochs: int = 4,
    data: Any = None,
    shown: Any = "silent",
    start: bool = True,
    checkpoint: str | None = None,
    **resume: Any,
) -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    builder = LearnerBuilder(directory).loss(F.mse_loss).num_epochs(epochs).renderer(shown)
    builder.with_file_checkpointer(start=start)
    if checkpoint is not None:
        builder.checkpoint(checkpoint)
    if resume:
        builder.resume(**{name: value for name, value in resume.items() if name != "plain"})
    loader = DataLoader(TensorDataset(X, Y) if data is None else data, batch_size=4, shuffle=True)
    return builder.build(model, Adam(model.parameters(), lr=0.01), None, loader, [(X, Y)])


def weights(learner: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in learner.model.parameters()])


def step_on(learner: Any, count: int = 1) -> None:
    """Take so many training steps, and the validation steps behind them."""
    for _ in range(count):
        learner.step()
        while learner.position.split == "valid" and learner.status != "finished":
            learner.step()


def walked(learner: Any, edits: Any = (), steps: int = 4 * STEPS) -> dict[int, torch.Tensor]:
    """Train to the end, and return the weights at each training step. `edits` maps a step to a change."""
    seen, changes = {}, dict(edits)
    for number in range(learner.position.iteration, steps):
        if number in changes:
            changes[number](learner)
        seen[number] = weights(learner)
        step_on(learner)
    seen[steps] = weights(learner)
    return seen
