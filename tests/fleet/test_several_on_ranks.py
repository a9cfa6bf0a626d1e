"""Several optimizers on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import CLASSES, FEATURES, TWO, batches
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.errors import ConfigurationError


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).relu())


def learner_in(
    directory: Path, devices: list[str] | None, step: Any = None, strategy: str = "ddp", resume: bool = False
) -> Learner:
    torch.manual_seed(3)
    model = Two()
    builder = LearnerBuilder(directory).num_epochs(2).renderer("silent").metrics().with_file_checkpointer()
    builder.strategy(strategy)  # type: ignore[arg-type]
    if devices:
        builder.devices(devices)
    if resume:
        builder.resume()
    body = SGD(model.body.parameters(), lr=0.1, momentum=0.9)
    named = {"body": body, "head": Adam(model.head.parameters())}
    if step is not None:
        builder.train_step(step(named))
    else:
        builder.loss(F.cross_entropy)
    return builder.build(model, named, {"body": lambda count: 0.1 / (1 + count)}, batches())


def weights(learner: Learner) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in learner.model.state_dict().values()]


def trained(learner: Learner) -> Learner:
    learner.fit()
    return learner


def test_they_train_as_on_one_device(tmp_path: Path) -> None:
    one = trained(learner_in(tmp_path / "one", None))
    two = learner_in(tmp_path / "two", TWO)
    two.step(2)
    two.rewind(1)
    two.fit()
    for ours, theirs in zip(weights(two), weights(one), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_rewind_and_a_resume_are_exact(tmp_path: Path) -> None:
    straight = trained(learner_in(tmp_path / "straight", TWO))
    first = learner_in(tmp_path / "run", TWO)
    first.step(4)
    first.rewind(2)
    first.step(1)
    first.save()
    second = trained(learner_in(tmp_path / "run", TWO, resume=True))
    assert all(map(torch.equal, weights(second), weights(straight)))


def driven(named: Any) -> Any:
    """A step that runs backward and both optimizers itself, as in a loop by hand."""

    def step(model: Any, batch: Any) -> Any:
        for each in named.values():
            each.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        for each in named.values():
            each.step()
        return loss

    return step


def test_a_step_that_drives_itself_trains_as_on_one_device(tmp_path: Path) -> None:
    one = trained(learner_in(tmp_path / "one", None, driven))
    two = learner_in(tmp_path / "two", TWO, driven)
    two.step(2)
    two.rewind(1)
    two.fit()
    for ours, theirs in zip(weights(two), weights(one), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_parts_of_weights_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is for one optimizer"):
        learner_in(tmp_path, TWO, strategy="fsdp")


def test_a_rate_that_is_set_counts_on_each_device(tmp_path: Path) -> None:
    def with_another_rate(devices: list[str] | None, name: str) -> Learner:
        learner = learner_in(tmp_path / name, devices)
        learner.step(2)
        learner.lr = {"head": 0.05}  # type: ignore[attr-defined]
        return trained(learner)

    one, two = with_another_rate(None, "one"), with_another_rate(TWO, "two")
    for ours, theirs in zip(weights(two), weights(one), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_functions_of_on_are_part_of_the_run_on_each_device(tmp_path: Path) -> None:
    def clip(learner: Any) -> None:
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.clamp_(-0.25, 0.25)

    def run(devices: list[str] | None, name: str) -> Learner:
        torch.manual_seed(3)
        model = Two()
        builder = LearnerBuilder(tmp_path / name).num_epochs(2).renderer("silent").metrics()
        builder.loss(F.cross_entropy).on("update", clip)
        if devices:
            builder.devices(devices)
        learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, batches())
        learner.step(3)
        learner.rewind(2)
        return trained(learner)

    one, two = run(None, "one"), run(TWO, "two")
    assert max(float(tensor.abs().max()) for tensor in weights(two)) <= 0.25
    for ours, theirs in zip(weights(two), weights(one), strict=True):
        torch.testing.assert_close(ours, theirs)
