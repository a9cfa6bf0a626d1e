"""Data, losses and gradients that no step can be made of: the error says why, and nothing has moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from driver_support import (
    by_hand,
)
from torch import Tensor, nn

from notebook_learner import (
    DataError,
    Learner,
    LearnerBuilder,
    LossError,
    OutputError,
    TrainOutput,
)
from notebook_learner.metric import Accuracy, Loss


def plain(
    directory: Path, train: Any, step: Any = None, metrics: tuple[Any, ...] = (Loss(),), epochs: int = 1
) -> Learner:
    """The smallest learner around a step function."""
    model = nn.Linear(6, 3)
    builder = LearnerBuilder(directory).metrics(*metrics).num_epochs(epochs).renderer("silent")
    if step is None:
        builder.loss(F.cross_entropy)
    else:
        builder.train_step(step)
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, train)


def batches_of(count: int) -> list[tuple[Tensor, Tensor]]:
    return by_hand().batches[:count]


def test_a_loader_that_yields_nothing(tmp_path: Path) -> None:
    learner = plain(tmp_path, [])
    with pytest.raises(DataError, match="the train loader, a list, yielded no batch; look at"):
        learner.fit()
    assert (learner.status, str(learner.position)) == ("failed", "epoch 1, train, step 0 of 0")


def test_a_generator_in_its_second_epoch(tmp_path: Path) -> None:
    learner = plain(tmp_path, iter(batches_of(3)), epochs=2)
    with pytest.raises(DataError, match="yielded nothing in epoch 2: it can be walked only once"):
        learner.fit()
    assert str(learner.position) == "epoch 2, train, step 0"
    learner.fit(batches_of(3))
    assert learner.status == "finished"


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda model, batch: None, "train_step returned None"),
        (lambda model, batch: model(batch[0]), r"the loss has shape \(4, 3\), but backward needs a scalar"),
        (lambda model, batch: model(batch[0]).sum().detach(), "the loss does not require a gradient"),
        (lambda model, batch: type("Out", (), {"loss": 0.5})(), "the loss is a float .* leave out `.item"),
        (lambda model, batch: {"loss": 1}, "the loss is an int"),
        (lambda model, batch: {"cost": 1}, "train_step returned a dict without the key 'loss'"),
    ],
)
def test_a_loss_that_cannot_be_trained_on_says_why(step: Any, message: str, tmp_path: Path) -> None:
    learner = plain(tmp_path, batches_of(3), step)
    before = learner.model.weight.clone()  # type: ignore[operator, union-attr]
    with pytest.raises(LossError, match=message):
        learner.fit()
    assert learner.status == "failed"
    assert learner.position.step == 0
    assert torch.equal(learner.model.weight, before)  # type: ignore[arg-type]


def test_a_metric_that_does_not_find_its_field(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        return F.cross_entropy(model(batch[0]), batch[1])

    learner = plain(tmp_path, batches_of(3), step, metrics=(Accuracy(),))
    before = learner.model.weight.clone()  # type: ignore[operator, union-attr]
    with pytest.raises(OutputError, match="Accuracy"):
        learner.fit()
    assert learner.position.step == 0
    assert torch.equal(learner.model.weight, before)  # type: ignore[arg-type]  # the step was applied and taken back


def test_gradients_for_a_parameter_that_does_not_exist(tmp_path: Path) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        return TrainOutput(model, {"bogus": torch.zeros(1)}, type("Out", (), {"loss": loss})())

    learner = plain(tmp_path, batches_of(3), step)
    with pytest.raises(Exception, match="'bogus', which is no parameter of the model"):
        learner.fit()
    assert learner.status == "failed"
