"""Models with layers in plain lists, or with a `train` of their own; samplers that count epochs from 1."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Sampler, TensorDataset

from notebook_learner import LearnerBuilder
from notebook_learner.errors import ConfigurationError

ROWS = TensorDataset(torch.randn(8, 2), torch.randn(8, 1))


class InAList(nn.Module):
    def __init__(self, *, trains: bool = True) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.layers = [nn.Linear(2, 4).requires_grad_(trains), nn.Tanh()]  # type: ignore[assignment]
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.inner.layers:  # type: ignore[union-attr]
            x = layer(x)
        return self.head(x)


def test_a_list_of_layers_that_nothing_trains_is_told_by_its_attribute(tmp_path: Path, capsys: Any) -> None:
    model = InAList()
    builder = LearnerBuilder(tmp_path).loss(F.mse_loss).renderer("plain")
    builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    said = capsys.readouterr().out
    assert "model.inner.layers holds layers in a plain list or dict, which torch does not see" in said
    assert "its 2 parameters are in no optimizer" in said


def test_a_list_of_layers_that_should_not_train_is_not_told(tmp_path: Path, capsys: Any) -> None:
    model = InAList(trains=False)
    builder = LearnerBuilder(tmp_path).loss(F.mse_loss).renderer("plain")
    builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "plain list" not in capsys.readouterr().out


def test_parameters_of_a_list_of_layers_are_refused_by_its_attribute(tmp_path: Path) -> None:
    model = InAList()
    every = [*model.parameters(), *model.inner.layers[0].parameters()]  # type: ignore[index, union-attr]
    with pytest.raises(ConfigurationError, match=r"model\.inner\.layers .* make it an nn\.ModuleList"):
        LearnerBuilder(tmp_path).loss(F.mse_loss).build(model, torch.optim.SGD(every, lr=0.1))


def test_a_model_whose_train_takes_data_trains(tmp_path: Path) -> None:
    class Own(nn.Linear):
        def train(self, data: Any) -> Any:  # type: ignore[override]
            raise RuntimeError("not asked for")

    model = Own(2, 1)
    learner = (
        LearnerBuilder(tmp_path)
        .loss(F.mse_loss)
        .renderer("silent")
        .build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    )
    learner.fit(DataLoader(ROWS, batch_size=4))
    assert learner.status == "finished"


class Counting(Sampler[int]):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))

    def __len__(self) -> int:
        return 8


@pytest.mark.parametrize(("first", "expected"), [(None, [0, 1, 2]), (0, [0, 1, 2]), (1, [1, 2, 3])])
@pytest.mark.parametrize("together", [False, True])
def test_samplers_count_epochs_from_the_number_that_was_given(
    first: int | None, expected: list[int], together: bool, tmp_path: Path
) -> None:
    def step(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch["a"] if together else batch
        return F.mse_loss(model(x), y)

    sampler, model = Counting(), nn.Linear(2, 1)
    loader = DataLoader(ROWS, batch_size=4, sampler=sampler)
    builder = LearnerBuilder(tmp_path).train_step(step).renderer("silent")
    builder = builder.num_epochs(3) if first is None else builder.num_epochs(3, first=first)
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner.fit({"a": loader} if together else loader)
    assert sampler.epochs == expected


def test_a_first_epoch_that_is_no_number_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    builder = LearnerBuilder(tmp_path).loss(F.mse_loss).num_epochs(2, first="one")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="give 0 or 1"):
        builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
