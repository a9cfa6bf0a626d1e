"""`verify` names an operation of the backward pass, which runs in a thread of the device's own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cuda_support import DEVICE, batches
from torch import Tensor, nn

from notebook_learner import LearnerBuilder

_CALLS = itertools.count()


@torch.library.custom_op("told_on_cuda::racing_sum", mutates_args=())
def racing_sum(x: Tensor) -> Tensor:
    """As CUDA's `index_add`: with deterministic algorithms it takes another way."""
    return x + (0.0 if torch.are_deterministic_algorithms_enabled() else next(_CALLS) * 1e-3)


class Racing(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return racing_sum(grad)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Racing.apply(self.first(x)))


def test_an_operation_of_the_backward_pass_is_named_with_its_setting(tmp_path: Path) -> None:
    torch.manual_seed(3)
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).devices([DEVICE]).renderer("silent")
    builder.exactness("off")
    learner = builder.build(Net(), lambda p: torch.optim.SGD(p, lr=0.1), None, batches(4))
    found = learner.verify().differs
    assert found is not None
    assert found.cause.startswith("racing_sum in the backward pass or the optimizer is not deterministic")
    assert found.cause.endswith("torch.use_deterministic_algorithms(True) the step gives the same bits again")
    assert not torch.are_deterministic_algorithms_enabled()
