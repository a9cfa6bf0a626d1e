"""Trainings with several optimizers, or whose step runs them itself, as people write them in a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.optim.lr_scheduler import StepLR

from notebook_learner import Learner, LearnerBuilder

BATCHES = [(torch.randn(8, 4, generator=torch.Generator().manual_seed(n)),) for n in range(7)]
PAIRS = [(x, x.sum(1, keepdim=True).sin()) for (x,) in BATCHES]
EPOCHS = 2


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


class SAM(Optimizer):
    """The two passes of sharpness-aware minimisation, as its public code has them."""

    def __init__(self, params: Any, base: type[Optimizer], rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        scale = 0.05 / (torch.stack([grad.norm() for grad in grads]).norm() + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base_optimizer.step()
        self.zero_grad()


@dataclass
class Program:
    """What a person would write: a model, its optimizers, and one step of their loop."""

    model: nn.Module
    optimizers: Any
    step: Callable[[Any, Any], Any]
    batches: list[Any]
    schedules: Any = None
    per_epoch: Callable[[], None] = lambda: None
    """What the loop by hand does at an epoch's end."""


def gan() -> Program:
    model = Gan()
    g = Adam(model.generator.parameters(), lr=0.01, betas=(0.5, 0.9))
    d = SGD(model.critic.parameters(), lr=0.05, momentum=0.9)
    schedule = StepLR(d, 1, 0.5)

    def step(model: Any, batch: Any) -> Any:
        (real,) = batch
        fake = model.generator(torch.randn(len(real), 3))
        d.zero_grad()
        loss_d = F.softplus(model.critic(fake.detach())).mean() + F.softplus(-model.critic(real)).mean()
        loss_d.backward()
        d.step()
        g.zero_grad()
        loss_g = F.softplus(-model.critic(fake)).mean()
        loss_g.backward()
        g.step()
        return {"loss": loss_g, "critic": loss_d}

    return Program(model, {"g": g, "d": d}, step, BATCHES, {"d": schedule}, schedule.step)


def critic_first() -> Program:
    """Three steps of the critic for one of the generator; the first step steps the critic alone."""
    program = gan()
    model, (g, d) = program.model, program.optimizers.values()
    count = [0]

    def step(model: Any, batch: Any) -> Any:
        (real,) = batch
        count[0] += 1
        d.zero_grad()
        loss = (
            model.critic(model.generator(torch.randn(len(real), 3)).detach()).mean()
            - model.critic(real).mean()
        )
        loss.backward()
        d.step()
        if count[0] % 3 == 0:
            g.zero_grad()
            (-model.critic(model.generator(torch.randn(len(real), 3))).mean()).backward()
            g.step()
        return loss

    return Program(model, program.optimizers, step, BATCHES)


def lbfgs() -> Program:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = LBFGS(model.parameters(), lr=0.3, max_iter=4, history_size=5)

    def step(model: Any, batch: Any) -> Any:
        x, y = batch

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return Program(model, optimizer, step, PAIRS)


def sam() -> Program:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = SAM(model.parameters(), SGD, lr=0.1, momentum=0.9)

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.first_step()
        F.mse_loss(model(x), y).backward()
        optimizer.second_step()
        return loss

    return Program(model, optimizer, step, PAIRS)


def collecting(steps_at: int = 1) -> Program:
    """Accumulation by hand: of three steps one, here the first, steps the optimizer and clears."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    optimizer = Adam(model.parameters(), lr=0.02)
    count = [0]

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        loss = F.mse_loss(model(x), y) / 3
        loss.backward()
        count[0] += 1
        if count[0] % 3 == steps_at:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return Program(model, optimizer, step, PAIRS)


def collecting_first() -> Program:
    """The same, but the first two steps only collect."""
    return collecting(steps_at=0)


def warming_up() -> Program:
    """Steps that only remember what came, until there is enough to train on."""
    program = collecting()
    model, optimizer, seen = program.model, program.optimizers, list[Any]()

    def step(model: Any, batch: Any) -> Any:
        seen.append(batch)
        if len(seen) < 3:
            return None
        x, y = seen[int(torch.randint(len(seen), ()))]
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Program(model, optimizer, step, PAIRS)


def in_the_backward() -> Program:
    """An optimizer for each parameter, which steps as soon as its gradient is there."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    each = {p: Adam([p], lr=0.02) for p in model.parameters()}

    def hook(parameter: Any) -> None:
        each[parameter].step()
        each[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        loss = F.mse_loss(model(x), y)
        return loss

    return Program(model, list(each.values()), step, PAIRS)


def weights_by_hand() -> Program:
    """No optimizer takes part: the step moves the weights itself."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 1))

    def step(model: Any, batch: Any) -> Any:
        x, y = batch
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        return loss.detach()

    return Program(model, SGD(model.parameters(), lr=1.0), step, PAIRS)


DRIVEN = [gan, critic_first, lbfgs, sam, collecting, collecting_first, warming_up, weights_by_hand]
ALL = [*DRIVEN, in_the_backward]


def made(program: Callable[[], Program], directory: Path, **more: Any) -> tuple[Learner, Program]:
    torch.manual_seed(3)
    mine = program()
    builder = LearnerBuilder(directory).num_epochs(EPOCHS).renderer("silent").metrics().train_step(mine.step)
    builder.with_file_checkpointer()
    for verb, value in more.items():
        getattr(builder, verb)(*value)
    return builder.build(mine.model, mine.optimizers, mine.schedules, mine.batches), mine


def by_hand(program: Callable[[], Program], epochs: int = EPOCHS) -> nn.Module:
    torch.manual_seed(3)
    mine = program()
    mine.model.train()
    for _ in range(epochs):
        for batch in mine.batches:
            output = mine.step(mine.model, batch)
            if program is in_the_backward:
                output.backward()
        mine.per_epoch()
    return mine.model
