"""What is set on a learner after the build counts from the next step on, or is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.errors import ConfigurationError

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
TRAIN = [(X[at : at + 8], X[at : at + 8].sum(1, keepdim=True)) for at in (0, 8, 16)]


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))


def made(directory: Path, model: Any = None, optimizer: Any = None, step: Any = None) -> Learner:
    model = model or net()
    builder = LearnerBuilder(directory).num_epochs(2).renderer("silent").metrics()
    builder.train_step(step) if step else builder.loss(F.mse_loss)
    return builder.build(model, optimizer or SGD(model.parameters(), lr=0.1), None, TRAIN)


def by_hand(change: Any, losses: Any = (F.mse_loss, F.mse_loss)) -> nn.Module:
    """Two epochs; before the third step the change is made, and the second loss is taken from there on."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate([*TRAIN, *TRAIN]):
        if number == 2:
            change(optimizer)
        optimizer.zero_grad()
        losses[number >= 2](model(x), y).backward()
        optimizer.step()
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_a_rate_counts_from_the_next_step_on_and_is_noted(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(2)
    learner.lr = 0.01  # type: ignore[attr-defined]
    learner.fit()
    assert same(learner.model, by_hand(lambda optimizer: optimizer.param_groups[0].update(lr=0.01)))
    assert [mark.text for mark in learner.history.marks if mark.kind == "edited"] == ["lr = 0.01"]


def test_a_rewind_over_it_brings_the_old_rate_back(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(2)
    learner.lr = 0.01  # type: ignore[attr-defined]
    learner.step(1)
    learner.rewind(2)
    assert learner.optimizer.param_groups[0]["lr"] == 0.1
    learner.fit()
    assert same(learner.model, by_hand(lambda optimizer: None))


@pytest.mark.parametrize("way", ["loss", "train_step"])
def test_a_loss_and_a_step_count_from_the_next_step_on(way: str, tmp_path: Path) -> None:
    def step(model: Any, batch: Any) -> Tensor:
        return F.l1_loss(model(batch[0]), batch[1])

    learner = made(tmp_path)
    learner.step(2)
    setattr(learner, way, F.l1_loss if way == "loss" else step)
    learner.fit()
    assert same(learner.model, by_hand(lambda optimizer: None, (F.mse_loss, F.l1_loss)))
    assert [mark.text for mark in learner.history.marks if mark.kind == "edited"] == [
        "another loss: l1_loss" if way == "loss" else "another train step: step"
    ]


def test_each_of_several_optimizers_takes_its_own_rate(tmp_path: Path) -> None:
    model = net()
    named = {"first": SGD(model[0].parameters(), lr=0.1), "last": SGD(model[2].parameters(), lr=0.2)}  # type: ignore[index]
    learner = made(tmp_path, model, named)
    learner.lr = {"last": 0.5}  # type: ignore[attr-defined]
    assert [each.param_groups[0]["lr"] for each in named.values()] == [0.1, 0.5]
    learner.lr = [0.3, 0.4]  # type: ignore[attr-defined]
    assert [each.param_groups[0]["lr"] for each in named.values()] == [0.3, 0.4]
    with pytest.raises(ValueError, match="no optimizer 'middle'; there are: first, last"):
        learner.lr = {"middle": 0.5}  # type: ignore[attr-defined]


@pytest.mark.parametrize("rate", ["fast", -1, float("nan"), True, [0.1, 0.2]])
def test_what_is_no_rate_is_an_error_and_changes_nothing(rate: Any, tmp_path: Path) -> None:
    learner = made(tmp_path)
    with pytest.raises(ValueError, match=r"learner\.lr"):
        learner.lr = rate  # type: ignore[attr-defined]
    assert learner.optimizer.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lrr", r"did you mean learner\.lr\?"),
        (
            "epochs",
            "it takes lr, train_step, valid_step, loss, optimizer, scheduler, train, valid, num_epochs",
        ),
        ("model", "build another learner"),
        ("history", "it takes lr"),
    ],
)
def test_what_would_be_swallowed_is_an_error_that_names_the_way(name: str, said: str, tmp_path: Path) -> None:
    learner = made(tmp_path)
    with pytest.raises(AttributeError, match=said):
        setattr(learner, name, 3)


def test_a_loss_beside_a_step_of_its_own_is_an_error(tmp_path: Path) -> None:
    learner = made(tmp_path, step=lambda model, batch: F.mse_loss(model(batch[0]), batch[1]))
    with pytest.raises(ConfigurationError, match="train_step"):
        learner.loss = F.l1_loss  # type: ignore[attr-defined]


def test_the_number_of_epochs_is_set_as_before(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.num_epochs = 1
    learner.fit()
    assert learner.position.epoch == 1


def test_a_rate_that_is_edited_in_a_group_is_noted_with_its_step(tmp_path: Path) -> None:
    learner = made(tmp_path)
    learner.step(2)
    learner.optimizer.param_groups[0]["lr"] = 0.05
    learner.step(1)
    learner.step(1)
    learner.lr = 0.01  # type: ignore[attr-defined]
    learner.fit()
    edits = [mark for mark in learner.history.marks if mark.kind == "edited"]
    assert [(m.epoch, m.step, m.text) for m in edits] == [(1, 2, "lr = 0.05"), (2, 1, "lr = 0.01")]


def test_a_rate_that_a_schedule_or_a_rewind_moved_is_no_edit(tmp_path: Path) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    batches = [(torch.ones(8, 4), torch.ones(8, 1))] * 5
    builder = LearnerBuilder(tmp_path).loss(F.mse_loss).num_epochs(2).metrics().renderer("silent")
    learner = builder.build(model, optimizer, lambda step: 0.1 / (1 + step), batches)
    learner.step(2)
    learner.step(2)
    learner.rewind(3)
    learner.what_if(1, lr=0.5)
    learner.fit()
    assert not [mark for mark in learner.history.marks if mark.kind == "edited"]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def train_step(self, batch: Any) -> Tensor:
        return F.mse_loss(self.layer(batch[0]), batch[1])


@pytest.mark.parametrize("where", ["class", "instance"])
def test_a_step_that_is_replaced_on_the_model_counts_from_the_next_step_on(
    where: str, tmp_path: Path
) -> None:
    kind = type("Own", (Own,), {})
    model = kind()
    before = [each.detach().clone() for each in model.parameters()]
    batches = [(torch.ones(8, 4), torch.ones(8, 1))] * 5
    builder = LearnerBuilder(tmp_path).num_epochs(1).metrics().renderer("silent")
    learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, batches)
    learner.step(2)

    def l1(model: Any, batch: Any) -> Tensor:
        return F.l1_loss(model.layer(batch[0]), batch[1])

    if where == "class":
        kind.train_step = l1  # type: ignore[attr-defined]
    else:
        model.train_step = lambda batch: l1(model, batch)
    learner.fit()

    alone = Own()
    with torch.no_grad():
        for each, value in zip(alone.parameters(), before, strict=True):
            each.copy_(value)
    optimizer = SGD(alone.parameters(), lr=0.1)
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        (alone.train_step(batch) if step < 2 else l1(alone, batch)).backward()
        optimizer.step()
    assert all(map(torch.equal, model.parameters(), alone.parameters()))
    (mark,) = (mark for mark in learner.history.marks if mark.kind == "edited")
    assert mark.step == 2 and "step" in mark.text
