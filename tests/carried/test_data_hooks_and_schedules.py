"""Data, hooks and schedules with a state of their own: what they hold is part of the state, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from carried_support import weights
from test_what_steps_reach import BATCHES, SIZE, Net, disturbed, plain_step
from torch import Tensor
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Sampler, TensorDataset

from notebook_learner import Learner, LearnerBuilder


class Shifting(Sampler[int]):
    """A sampler that counts its epochs."""

    def __init__(self, size: int) -> None:
        self.size, self.epochs = size, 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Any:
        self.epochs += 1
        return iter([(number * 3 + 7 * self.epochs) % self.size for number in range(self.size)])


class Noisy(TensorDataset):
    """A dataset with a generator of its own."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self.rng = np.random.default_rng(2)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return x + float(self.rng.normal()), y


def with_data_of_its_own(
    directory: Path, hook: str = "", seed: int | None = None, resume: bool = False
) -> Learner:
    torch.manual_seed(0)
    model = Net(lambda: 0.0)
    calls = [0]

    def raises(value: Any) -> Any:
        calls[0] += 1
        return value * (1 + calls[0] / 10)

    if hook == "module":
        model.body.register_forward_hook(lambda module, given, made: raises(made))
    elif hook == "parameter":
        model.body[0].weight.register_hook(raises)
    size = BATCHES * SIZE
    data = Noisy(torch.randn(size, 4), torch.randint(0, 2, (size,)))
    builder = LearnerBuilder(directory).train_step(plain_step).num_epochs(3).metrics().renderer("silent")
    builder.with_file_checkpointer()
    if seed is not None:
        builder.seed(seed)
    if resume:
        builder.resume()
    loader = DataLoader(data, SIZE, sampler=Shifting(size))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if hook == "optimizer":
        optimizer.register_step_pre_hook(lambda own, *_: raised_gradients(own, raises))
        optimizer.register_step_post_hook(lambda own, *_: raises(1))
    elif hook == "optimizer's step":
        replace_step(optimizer, raises)
    return builder.build(model, optimizer, schedule_by(hook, optimizer, raises), loader)


def raised_gradients(optimizer: Any, raises: Callable[[Any], Any]) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad.mul_(raises(0.5))


def replace_step(optimizer: Any, raises: Callable[[Any], Any]) -> None:
    step = optimizer.step

    def raising(closure: Any = None) -> Any:
        raised_gradients(optimizer, raises)
        return step(closure)

    optimizer.step = raising


def schedule_by(hook: str, optimizer: Any, raises: Callable[[Any], Any]) -> Any:
    """A schedule that asks a function with a state of its own."""
    if hook == "schedule":
        return lambda step: float(raises(0.01))
    if hook == "scheduler":
        return LambdaLR(optimizer, lambda epoch: float(raises(0.1)))
    if hook == "chain":
        members = [LinearLR(optimizer, total_iters=1), LambdaLR(optimizer, lambda epoch: float(raises(0.1)))]
        return SequentialLR(optimizer, members, [1])
    if hook == "cycle":
        return CyclicLR(optimizer, 0.01, 0.1, 3, scale_fn=lambda x: float(raises(0.1)), cycle_momentum=False)
    return None


HOOKS = [
    "",
    "module",
    "parameter",
    "schedule",
    "scheduler",
    "chain",
    "cycle",
    "optimizer",
    "optimizer's step",
]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("hook", HOOKS)
def test_data_hooks_and_schedules_may_have_a_state(hook: str, seed: int | None, tmp_path: Path) -> None:
    expected = with_data_of_its_own(tmp_path / "straight", hook, seed)
    expected.fit()
    assert torch.equal(disturbed(with_data_of_its_own(tmp_path / "a", hook, seed)), weights(expected))
    for steps in (3, 5, 7):
        folder = tmp_path / str(steps)
        first = with_data_of_its_own(folder, hook, seed)
        first.step(steps)
        first.save()
        second = with_data_of_its_own(folder, hook, seed, resume=True)
        second.fit()
        assert torch.equal(weights(second), weights(expected))
