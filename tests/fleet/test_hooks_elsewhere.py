"""Hooks that the program brings on parameters and optimizers, such as a mask of gradients, are there in the
other processes that train, and can be removed there: torch leaves them out of a pickle without a word."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import TWO
from torch import Tensor, nn
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder


def halve_gradients(optimizer: Any, *_: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.mul_(0.5)


def halve_weights(optimizer: Any, *_: Any) -> None:
    with torch.no_grad():
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.mul_(0.5)


def double_gradient(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def program(directory: Path, goes: int, devices: Any = None, comes: int = 0) -> Learner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    weight: Any = model[0].weight
    register = [
        lambda: weight.register_hook(lambda gradient: gradient * mask),
        lambda: weight.register_post_accumulate_grad_hook(double_gradient),
        lambda: optimizer.register_step_pre_hook(halve_gradients),
        lambda: optimizer.register_step_post_hook(halve_weights),
        lambda: model[1].register_forward_hook(lambda module, given, made: made * 2),
    ]
    handles = [] if comes else [hook() for hook in register]
    calls = 0

    def step(model: Any, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == comes:
            handles.extend(hook() for hook in register)
        if calls == goes:
            for handle in handles:
                handle.remove()
        return F.cross_entropy(model(batch[0]), batch[1])

    data = [(torch.randn(6, 4), torch.randint(0, 2, (6,))) for _ in range(5)]
    builder = LearnerBuilder(directory).train_step(step).metrics().num_epochs(2).renderer("silent")
    if devices is not None:
        builder.devices(devices)
    return builder.with_file_checkpointer().build(model, optimizer, None, data)


def weights(learner: Learner) -> Tensor:
    return nn.utils.parameters_to_vector(learner.model.parameters()).detach()


@pytest.fixture(params=[6, 100], ids=["removed there", "never removed"])
def goes(request: pytest.FixtureRequest, tmp_path: Path) -> int:
    """The call in which a step removes the hooks, which change what is learned."""
    ends = []
    for call in (6, 100):
        learner = program(tmp_path / f"removed-{call}", call)
        learner.fit()
        ends.append(weights(learner))
    assert not torch.allclose(*ends, atol=1e-3)
    return int(request.param)


@pytest.mark.parametrize("comes", [0, 2], ids=["the program's", "a step's"])
def test_in_a_detached_run(comes: int, goes: int, tmp_path: Path) -> None:
    straight = program(tmp_path / "straight", goes, comes=comes)
    straight.fit()
    learner = program(tmp_path / "run", goes, comes=comes)
    learner.step(3)
    learner.detach()
    until = time.monotonic() + 120
    while not (tmp_path / "run" / "checkpoint" / "state-2.h5").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    learner.take_back()
    learner.fit()
    assert torch.equal(weights(learner), weights(straight))


def test_on_several_devices(goes: int, tmp_path: Path) -> None:
    alone = program(tmp_path / "alone", goes)
    alone.fit()
    together = program(tmp_path / "together", goes, TWO)
    together.fit()
    assert torch.allclose(weights(together), weights(alone), atol=1e-6)


class Gate:
    """What a step and a layer of the model have in common: a weight that both change."""

    def __init__(self) -> None:
        self.open = 1.0


GATE = Gate()


class Gated(nn.Tanh):
    def forward(self, x: Tensor) -> Tensor:
        GATE.open *= 0.9
        return super().forward(x) * GATE.open


def in_common(directory: Path, devices: Any = None) -> Learner:
    """A hook fills a list that the step reads, and the step counts in what a layer reads."""
    torch.manual_seed(0)
    GATE.open = 1.0
    model = nn.Sequential(nn.Linear(4, 6), Gated(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    features: list[Tensor] = []
    model[1].register_forward_hook(lambda module, given, made: features.append(made))

    def step(model: Any, batch: Any) -> Tensor:
        features.clear()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        GATE.open += 0.05
        return loss + GATE.open * sum(each.pow(2).mean() for each in features)

    data = [(torch.randn(6, 4), torch.randint(0, 2, (6,))) for _ in range(5)]
    builder = LearnerBuilder(directory).train_step(step).metrics().num_epochs(3).renderer("silent")
    if devices is not None:
        builder.devices(devices)
    return builder.build(model, optimizer, None, data)


def test_what_a_step_and_the_model_both_reach_is_one_object_on_each_rank(tmp_path: Path) -> None:
    alone = in_common(tmp_path / "alone")
    alone.fit()
    together = in_common(tmp_path / "together", TWO)
    together.step(3)
    together.rewind(2)
    together.step(4)
    together.devices.restart()
    together.what_if(2, lr=0.5)
    together.fit()
    assert torch.allclose(weights(together), weights(alone), atol=1e-6)
