"""Against a loop written by hand: the same bits in the weights, the same numbers in the log.

Without `.seed()` the learner draws nothing from the user's generators that the loop would not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import LearnerBuilder
from notebook_learner.metric import Accuracy, Loss
from notebook_learner.store import RunLayout, read_log

EPOCHS = 3
TRAIN, VALID, BATCH = 70, 40, 16  # both end in a short batch


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.4), nn.Linear(24, 5))


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)),
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.Flatten(),
        nn.Linear(72, 5),
    )


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)


def step_lr(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return StepLR(optimizer, step_size=1, gamma=0.5)


def loaders() -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Fresh, and with their data from a generator of their own: the global one stays untouched."""
    source = torch.Generator().manual_seed(11)
    x = torch.randn(TRAIN + VALID, 12, generator=source)
    y = torch.randint(0, 5, (TRAIN + VALID,), generator=source)
    train = DataLoader(TensorDataset(x[:TRAIN], y[:TRAIN]), batch_size=BATCH, shuffle=True)
    return train, DataLoader(TensorDataset(x[TRAIN:], y[TRAIN:]), batch_size=BATCH)


def by_hand(
    make_model: Callable[[], nn.Module],
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    make_scheduler: Callable[[torch.optim.Optimizer, int], Any],
    bf16: bool,
) -> tuple[nn.Module, list[list[float]], Tensor]:
    torch.manual_seed(5)
    np.random.seed(5)
    model = make_model()
    optimizer = make_optimizer(model)
    train, valid = loaders()
    scheduler = make_scheduler(optimizer, EPOCHS * len(train))
    losses: list[list[float]] = []
    for _ in range(EPOCHS):
        model.train()
        losses.append([])
        for x, y in train:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if isinstance(scheduler, OneCycleLR):
                scheduler.step()
            losses[-1].append(loss.item())
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            for x, _ in valid:
                model(x)
        if not isinstance(scheduler, OneCycleLR):
            scheduler.step()
    return model, losses, torch.rand(4)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("make_scheduler", [one_cycle, step_lr])
@pytest.mark.parametrize("make_optimizer", [adam, momentum])
@pytest.mark.parametrize("make_model", [mlp, convnet])
def test_every_parameter_and_every_logged_loss_equals_the_hand_written_loop(
    make_model: Callable[[], nn.Module],
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    make_scheduler: Callable[[torch.optim.Optimizer, int], Any],
    bf16: bool,
    tmp_path: Path,
) -> None:
    expected, losses, next_draw = by_hand(make_model, make_optimizer, make_scheduler, bf16)

    torch.manual_seed(5)
    np.random.seed(5)
    model = make_model()
    optimizer = make_optimizer(model)
    train, valid = loaders()
    learner = (
        LearnerBuilder(tmp_path)
        .metrics(Loss(), Accuracy())
        .loss(F.cross_entropy)
        .num_epochs(EPOCHS)
        .precision("bf16" if bf16 else "fp32")
        .renderer("silent")
        .build(model, optimizer, make_scheduler(optimizer, EPOCHS * len(train)))
    )
    trained = learner.fit(train, valid)

    assert trained is model
    mine, theirs = model.state_dict(), expected.state_dict()
    for name, tensor in theirs.items():
        assert torch.equal(mine[name], tensor), name
    for epoch, written in enumerate(losses, start=1):
        log = read_log(RunLayout(tmp_path).metric_log("train", epoch, "Loss"))
        assert log.values.tolist() == written
    assert torch.equal(torch.rand(4), next_draw), "the learner drew from the user's generator"
