"""Metric objects that steps update and log: `learner.log("F1", model.f1)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn import functional as F

from notebook_learner import ClassificationOutput, LearnerBuilder
from notebook_learner.errors import StateError, StepError
from notebook_learner.metric import Loss, TorchMetric


def f1() -> Any:
    return torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)
        self.train_f1, self.valid_f1 = f1(), f1()
        self.fails_at = -1

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    sizes = (8, 8, 8, 3)
    return [
        (torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator))
        for n in sizes
    ]


OTHER = batches()[1:]


def learner_in(directory: Path, log: Any = None, model: nn.Module | None = None, **options: Any) -> Any:
    """A learner whose steps log an object, and which measures the same by a registered metric."""
    holder: list[Any] = []

    def step(module: Any, batch: Any) -> ClassificationOutput:
        x, y = batch
        output = module(x)
        metric = module.train_f1 if module.training else module.valid_f1
        if log is None:
            metric(output.detach(), y)
            holder[0].log("F1", metric)
        else:
            log(holder[0], metric, output.detach(), y)
        if holder[0].position.iteration == module.fails_at:
            raise RuntimeError("broken")
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    model = Net() if model is None else model
    builder = LearnerBuilder(directory).num_epochs(2).train_step(step).valid_step(step).renderer("silent")
    builder = builder.metrics(Loss(), TorchMetric(f1(), name="Registered")).with_file_checkpointer()
    if options.get("off"):
        builder = builder.exactness("off")
    learner = builder.build(
        model, torch.optim.SGD(model.parameters(), lr=0.5), train=batches(), valid=batches()[:3]
    )
    holder.append(learner)
    return learner


def require_both_agree(learner: Any) -> None:
    for split in ("train", "valid"):
        for epoch in (1, 2):
            assert learner.history.final("F1", split, epoch) == learner.history.final(
                "Registered", split, epoch
            )
            np.testing.assert_array_equal(
                learner.history[split, "F1", epoch], learner.history[split, "Registered", epoch]
            )


def test_its_values_are_those_of_a_registered_metric(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.fit()
    require_both_agree(learner)


@pytest.mark.parametrize("steps", [2, 3, 6, 9])
def test_it_goes_back_and_comes_again(steps: int, tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step(steps)
    learner.rewind(min(steps, 3))
    learner.step(1)
    learner.fit()
    require_both_agree(learner)


@pytest.mark.parametrize("steps", [1, 3, 5, 6, 10])
def test_another_learner_goes_on_in_mid_epoch(steps: int, tmp_path: Path) -> None:
    first = learner_in(tmp_path)
    first.step(steps)
    label = first.save()
    again = learner_in(tmp_path)
    again.restore(label)
    again.fit()
    require_both_agree(again)


def test_a_step_that_fails_leaves_nothing_in_it(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.model.fails_at = 2
    with pytest.raises(RuntimeError, match="broken"):
        learner.fit()
    learner.model.fails_at = -1
    learner.fit()
    require_both_agree(learner)


@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("steps", [2, 6])
def test_a_set_is_measured_by_itself(steps: int, off: bool, tmp_path: Path) -> None:
    learner = learner_in(tmp_path, off=off)
    learner.step(steps)
    found = learner.evaluate(OTHER)
    assert found["F1"] == found["Registered"]
    learner.fit()
    require_both_agree(learner)


def test_an_object_that_is_only_updated_has_a_value_for_the_epoch(tmp_path: Path) -> None:
    def log(learner: Any, metric: Any, output: Tensor, y: Tensor) -> None:
        metric.update(output, y)
        learner.log("F1", metric)

    learner = learner_in(tmp_path, log)
    learner.fit()
    assert np.isnan(learner.history["train", "F1"]).all()
    for epoch in (1, 2):
        assert learner.history.final("F1", "valid", epoch) == learner.history.final(
            "Registered", "valid", epoch
        )


def test_one_that_comes_late_has_no_value_before(tmp_path: Path) -> None:
    def log(learner: Any, metric: Any, output: Tensor, y: Tensor) -> None:
        if learner.position.epoch == 2:
            metric(output, y)
            learner.log("F1", metric)

    learner = learner_in(tmp_path, log)
    learner.fit()
    assert np.isnan(learner.history["train", "F1", 1]).all()
    assert learner.history.final("F1", "train", 2) == learner.history.final("Registered", "train", 2)


def test_another_object_in_its_place_counts(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    learner.step_epoch()
    learner.model.train_f1 = f1()
    learner.fit()
    require_both_agree(learner)


def test_an_object_outside_the_model_is_refused_in_words(tmp_path: Path) -> None:
    metric = f1()
    learner = learner_in(tmp_path, lambda learner, *_: learner.log("F1", metric))
    with pytest.raises(StepError, match=r"log\('F1', ...\) was given a .*F1Score that is no attribute"):
        learner.step()
    assert learner.position.iteration == 0


def test_a_state_whose_object_is_gone_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    first = learner_in(tmp_path)
    first.step(2)
    label = first.save()
    model = Net()
    model.train_f1 = nn.Identity()
    again = learner_in(tmp_path, lambda *_: None, model)
    before = {name: value.clone() for name, value in again.model.state_dict().items()}
    with pytest.raises(StateError, match="'train_f1', a metric object that the model does not have"):
        again.restore(label)
    assert all(torch.equal(before[name], value) for name, value in again.model.state_dict().items())
    again.step()
    assert again.position.iteration == 1
