"""`verify` names the operation that gives other bits for the same input, and the setting that helps."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.trial.verify import OpsSeen

_CALLS = itertools.count()
DATA = [(torch.ones(4, 3), torch.zeros(4, 2))] * 4


def _noise() -> float:
    return next(_CALLS) * 1e-3


@torch.library.custom_op("told_or_exact::racing_sum", mutates_args=())
def racing_sum(x: Tensor) -> Tensor:
    """As CUDA's `index_add`: with deterministic algorithms it takes another way."""
    return x * 2 + (0.0 if torch.are_deterministic_algorithms_enabled() else _noise())


@torch.library.custom_op("told_or_exact::racing_always", mutates_args=())
def racing_always(x: Tensor) -> Tensor:
    """It has no other way, which torch's own warning says of `put_`, which it is made of."""
    torch.zeros(2).put_(torch.tensor([0, 1]), torch.ones(2))
    return x * 2 + _noise()


@torch.library.custom_op("told_or_exact::racing_product", mutates_args=())
def racing_product(x: Tensor) -> Tensor:
    """As cuBLAS, whose warning it gives."""
    if torch.are_deterministic_algorithms_enabled():
        warnings.warn("CuBLAS: you must set CUBLAS_WORKSPACE_CONFIG=:4096:8", UserWarning, stacklevel=1)
    return x * 2 + _noise()


for _op in (racing_sum, racing_always, racing_product):
    _op.register_autograd(lambda context, grad: grad * 2)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, grad: Tensor) -> Tensor:
        return racing_sum(grad)


class Layer(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = [function]

    def forward(self, x: Tensor) -> Tensor:
        return self.function[0](x)


def learner_with(function: Any, directory: Path) -> Learner:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), Layer(function), nn.Linear(4, 2))
    builder = LearnerBuilder(directory).loss(F.mse_loss).renderer("silent").exactness("off")
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, DATA)


@pytest.fixture(autouse=True)
def settings_stay() -> Iterator[None]:
    yield
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_with_a_deterministic_way_is_named_with_the_setting(tmp_path: Path) -> None:
    found = learner_with(racing_sum, tmp_path).verify().differs
    assert found is not None and found.cause == (
        "racing_sum in 1 (Layer) is not deterministic: it gives other bits for the same input; with "
        "torch.use_deterministic_algorithms(True) the step gives the same bits again"
    )


def test_an_operation_of_the_backward_pass_is_named_too(tmp_path: Path) -> None:
    found = learner_with(Backward.apply, tmp_path).verify().differs
    assert found is not None
    assert found.cause.startswith("racing_sum in the backward pass or the optimizer is not deterministic")
    assert "use_deterministic_algorithms(True) the step gives the same bits" in found.cause


def test_what_torch_has_no_deterministic_way_for_is_named_as_such(tmp_path: Path) -> None:
    found = learner_with(racing_always, tmp_path).verify().differs
    assert found is not None and found.cause.endswith(
        "torch has no deterministic way for put_: put another operation in its place"
    )


def test_a_variable_of_the_environment_that_the_setting_needs_is_told(tmp_path: Path) -> None:
    found = learner_with(racing_product, tmp_path).verify().differs
    assert found is not None and found.cause.endswith(
        "torch.use_deterministic_algorithms(True) makes it so, with CUBLAS_WORKSPACE_CONFIG=:4096:8 in the "
        "environment from the start"
    )


def test_a_number_from_elsewhere_is_no_operations_fault(tmp_path: Path) -> None:
    def elsewhere(x: Tensor) -> Tensor:
        return x + int.from_bytes(os.urandom(2), "big") * 1e-5

    found = learner_with(elsewhere, tmp_path).verify().differs
    assert found is not None and found.cause.startswith("1 (Layer) gives another output for the same input")


def test_a_generator_that_is_not_in_the_state_is_no_operations_fault(tmp_path: Path) -> None:
    hidden = [torch.Generator()]

    def drawn(x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=hidden[0])

    found = learner_with(drawn, tmp_path).verify().differs
    assert found is not None and found.cause.startswith("1 (Layer) gives another output for the same input")


def test_operations_are_seen_in_the_backward_pass_and_what_they_write_to_counts() -> None:
    x = torch.ones(2, requires_grad=True)
    seen = []
    for _ in range(2):
        x.grad = None
        with OpsSeen() as ops:
            x.sin().sum().backward()
            torch.zeros(2).add_(1)
        seen.append(ops.found)
    names = [name for name, *_ in seen[0]]
    assert {"sin", "cos", "add_"} <= {*names}
    assert seen[0] == seen[1]
    _, given, made = seen[0][names.index("add_")]
    assert given != made
