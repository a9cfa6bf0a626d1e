"""Shapes that change in mid-run, on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import CLASSES, FEATURES, TWO, train_loader
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.errors import StateError


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.1)).requires_grad_(False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x))


def unfreeze(learner: Any) -> None:
    learner.model.body.requires_grad_(True)
    learner.optimizer.add_param_group({"params": learner.model.body.parameters(), "lr": 0.05})


def add_head(learner: Any) -> None:
    learner.model.head = nn.Sequential(learner.model.head, nn.Linear(CLASSES, CLASSES))
    learner.optimizer.add_param_group({"params": learner.model.head[1].parameters()})


def another_loss(learner: Any) -> None:
    learner.loss = smooth


def smooth(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, target, label_smoothing=0.2)


CHANGES = [unfreeze, add_head, another_loss]


def learner_in(
    directory: Path, devices: list[str] | None = TWO, resume: bool = False, **more: Any
) -> Learner:
    torch.manual_seed(3)
    model = Frozen()
    builder = (
        LearnerBuilder(directory).loss(F.cross_entropy).num_epochs(2).renderer("silent").metrics().seed(5)
    )
    builder.with_file_checkpointer().reshapes(*CHANGES)
    if devices:
        builder.devices(devices)
    if resume:
        builder.resume()
    for verb, value in more.items():
        getattr(builder, verb)(value)
    return builder.build(model, SGD(model.head.parameters(), lr=0.1, momentum=0.9), None, train_loader())


def weights(learner: Learner) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in learner.model.state_dict().values()]


def straight(directory: Path, change: Callable[[Any], None]) -> list[torch.Tensor]:
    learner = learner_in(directory)
    learner.step(3)
    learner.reshape(change)
    learner.fit()
    return weights(learner)


@pytest.mark.parametrize("change", CHANGES)
def test_all_ranks_follow_it_and_go_back_over_it(change: Callable[[Any], None], tmp_path: Path) -> None:
    expected = straight(tmp_path / "straight", change)
    learner = learner_in(tmp_path / "run")
    learner.step(2)
    before = weights(learner)
    learner.step(1)
    learner.reshape(change)
    learner.step(2)
    learner.rewind(3)
    assert all(map(torch.equal, weights(learner), before))
    learner.step(2)
    learner.save()
    assert learner.what_if(2, then=another_loss).first_difference is not None or change is another_loss
    learner.fit()
    assert all(map(torch.equal, weights(learner), expected))


@pytest.mark.parametrize("change", [unfreeze, add_head])
def test_they_train_as_on_one_device(
    change: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number, devices in enumerate((None, TWO)):
        learner = learner_in(tmp_path / str(number), devices)
        learner.model.body[2].p = 0.0  # no draws: each rank has its own
        learner.step(3)
        learner.reshape(change)
        learner.fit()
        found.append(weights(learner))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_change_by_hand_reaches_all_ranks(tmp_path: Path) -> None:
    expected = straight(tmp_path / "straight", unfreeze)
    learner = learner_in(tmp_path / "run")
    learner.step(3)
    unfreeze(learner)
    learner.fit()
    assert all(map(torch.equal, weights(learner), expected))


def test_a_new_process_resumes_it(tmp_path: Path) -> None:
    expected = straight(tmp_path / "straight", add_head)
    learner = learner_in(tmp_path / "run")
    learner.step(3)
    learner.reshape(add_head)
    learner.step(2)
    learner.save()
    del learner
    again = learner_in(tmp_path / "run", resume=True)
    again.fit()
    assert all(map(torch.equal, weights(again), expected))


@pytest.mark.parametrize("further", [0, 2])
def test_an_open_window_keeps_each_ranks_gradients(further: int, tmp_path: Path) -> None:
    expected = learner_in(tmp_path / "straight", grads_accumulation=2)
    expected.step(3)
    expected.reshape(add_head)
    expected.fit()
    learner = learner_in(tmp_path / "run", grads_accumulation=2)
    learner.step(3)
    learner.reshape(add_head)
    learner.step(1 + further)
    learner.rewind(2 + further)
    learner.fit()
    assert all(map(torch.equal, weights(learner), weights(expected)))


def test_weights_in_parts_keep_their_shape_and_say_so(tmp_path: Path) -> None:
    learner = learner_in(tmp_path, strategy="fsdp")
    with pytest.raises(StateError, match="fsdp"):
        learner.reshape(add_head)
