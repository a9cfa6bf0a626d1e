"""A model, changes of its shape, and the loop by hand that makes the same change at the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim import SGD, Adam, Optimizer

from notebook_learner import Learner, LearnerBuilder

BATCHES = [torch.randn(8, 4, generator=torch.Generator().manual_seed(n)) for n in range(5)]
PAIRS = [(x, x.sum(1, keepdim=True).sin()) for x in BATCHES]
EPOCHS, AT = 2, 3
STEPS = EPOCHS * len(PAIRS)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2)
        ).requires_grad_(False)
        self.memory = nn.GRU(6, 6, batch_first=True).requires_grad_(False)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Any:
        hidden = self.encoder(x)
        return self.head(hidden + self.memory(hidden[:, None])[0][:, 0])


class Lora(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = (
            nn.Parameter(torch.randn(2, base.in_features)),
            nn.Parameter(torch.zeros(base.out_features, 2)),
        )

    def forward(self, x: Tensor) -> Any:
        return self.base(x) + x @ self.a.T @ self.b.T


def optimizer_of(model: Net) -> Optimizer:
    return Adam(model.head.parameters(), lr=0.05)


def unfreeze(learner: Any) -> None:
    learner.model.encoder.requires_grad_(True)
    learner.optimizer.add_param_group({"params": learner.model.encoder.parameters(), "lr": 0.01})


def unfreeze_all(learner: Any) -> None:
    learner.model.requires_grad_(True)
    rest = [*learner.model.encoder.parameters(), *learner.model.memory.parameters()]
    learner.optimizer.add_param_group({"params": rest, "lr": 0.01})


def add_head(learner: Any) -> None:
    learner.model.head = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, 1))
    learner.optimizer.add_param_group({"params": learner.model.head.parameters()})


def new_memory(learner: Any) -> None:
    learner.model.memory.weight_hh_l0 = nn.Parameter(torch.randn(18, 6) * 0.1)
    learner.optimizer.add_param_group({"params": [learner.model.memory.weight_hh_l0]})


def grow(learner: Any) -> None:
    model, old = learner.model, learner.model.head
    model.head = nn.Sequential(old, nn.Linear(1, 1))
    learner.optimizer = SGD(model.head.parameters(), lr=0.1, momentum=0.9)


def attach(learner: Any) -> None:
    learner.model.head = Lora(learner.model.head)
    learner.optimizer = Adam([learner.model.head.a, learner.model.head.b], lr=0.02)


def merge_encoder(learner: Any) -> None:
    layer = learner.model.encoder[0]
    with torch.no_grad():
        layer.weight.add_(0.1)
    learner.model.encoder[2] = nn.ReLU()


def in_place(learner: Any) -> None:
    """The very same parameters, of another size."""
    head = learner.model.head
    head.weight.data = torch.cat([head.weight.data, 0.1 * torch.ones(1, 6)])
    head.bias.data = torch.cat([head.bias.data, torch.zeros(1)])
    learner.optimizer.state.clear()


def normalize(learner: Any) -> None:
    parametrizations.weight_norm(learner.model.head)
    learner.optimizer = SGD(learner.model.head.parameters(), lr=0.1)


def momentum(learner: Any) -> None:
    learner.optimizer = SGD(learner.model.head.parameters(), lr=0.05, momentum=0.9)


def another_loss(learner: Any) -> None:
    learner.loss = huber


def huber(output: Tensor, target: Tensor) -> Tensor:
    return F.huber_loss(output, target, delta=0.1)


def mse(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target.expand_as(output))


CHANGES = [
    unfreeze,
    unfreeze_all,
    add_head,
    new_memory,
    grow,
    attach,
    merge_encoder,
    in_place,
    normalize,
    momentum,
    another_loss,
]
Change = Callable[[Any], None]


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def made(directory: Path, *changes: Change, **more: Any) -> Learner:
    torch.manual_seed(3)
    model = Net()
    builder = LearnerBuilder(directory).loss(mse).num_epochs(EPOCHS).renderer("silent")
    builder.with_file_checkpointer().reshapes(*changes)
    if more.pop("resume", False):
        builder.resume()
    learner = builder.build(model, optimizer_of(model), more.pop("scheduler", None), PAIRS, **more)
    torch.manual_seed(7)
    return learner


def by_hand(change: Change, at: int = AT, steps: int = STEPS) -> list[Tensor]:
    torch.manual_seed(3)
    model = Net()
    run = SimpleNamespace(model=model, optimizer=optimizer_of(model), loss=mse)
    torch.manual_seed(7)
    model.train()
    for step in range(steps):
        if step == at:
            change(run)
        x, y = PAIRS[step % len(PAIRS)]
        run.optimizer.zero_grad()
        run.loss(model(x), y).backward()
        run.optimizer.step()
    if steps == at:
        change(run)
    return bits(model)


def bits(model: nn.Module) -> list[Tensor]:
    return [each.detach().clone() for each in (*model.parameters(), *model.buffers())]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def objects(learner: Learner) -> list[Any]:
    groups = learner.optimizer.param_groups
    return [
        *learner.model.modules(),
        *learner.model.parameters(),
        learner.optimizer,
        *groups,
        *(each for group in groups for each in group["params"]),
    ]


def are(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
