"""An optimizer that has a train and an eval mode is switched, as in a loop by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schedulefree
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import LearnerBuilder
from notebook_learner.run.modes import Modes

EPOCHS = 3
KINDS = [schedulefree.AdamWScheduleFree, schedulefree.SGDScheduleFree, schedulefree.RAdamScheduleFree]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def data() -> tuple[DataLoader[Any], DataLoader[Any]]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 3, generator=generator), torch.randn(24, 1, generator=generator)
    rows = TensorDataset(x, y)
    return DataLoader(rows, batch_size=4, shuffle=True), DataLoader(rows, batch_size=8)


def by_hand(kind: Any) -> tuple[list[Tensor], list[float]]:
    model = net()
    optimizer = kind(model.parameters(), lr=0.01)
    train, valid = data()
    losses = []
    torch.manual_seed(7)
    for _ in range(EPOCHS):
        model.train()
        optimizer.train()
        for x, y in train:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        model.eval()
        optimizer.eval()
        with torch.no_grad():
            losses += [float(F.mse_loss(model(x), y)) for x, y in valid]
    return bits(model), losses


def learner_of(kind: Any, directory: Path, *, resume: bool = False, several: bool = False) -> Any:
    model = net()
    optimizer = kind(model.parameters(), lr=0.01)
    builder = LearnerBuilder(directory).loss(F.mse_loss).num_epochs(EPOCHS).renderer("silent")
    builder = builder.with_file_checkpointer()
    if resume:
        builder = builder.resume()
    torch.manual_seed(7)
    return builder.build(model, {"only": optimizer} if several else optimizer, None, *data())


def bits(model: nn.Module) -> list[Tensor]:
    return [each.detach().clone() for each in model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def straight(learner: Any, again: Callable[[], Any]) -> Any:
    learner.fit()
    return learner


def rewound(learner: Any, again: Callable[[], Any]) -> Any:
    for steps, back in ((5, 3), (7, 4), (4, 2)):  # also from a validation, and across one
        learner.step(steps)
        learner.rewind(back)
    learner.fit()
    return learner


def looked_at(learner: Any, again: Callable[[], Any]) -> Any:
    for _ in range(4):
        learner.step(3)
        learner.evaluate(data()[1])
        learner.predict(data()[1])
        learner.inspect()
        learner.what_if(steps=2, lr=1.0)
        learner.save()
    learner.fit()
    return learner


def resumed_in_training(learner: Any, again: Callable[[], Any]) -> Any:
    learner.step(4)
    learner.save()
    other = again()
    other.fit()
    return other


def resumed_in_validation(learner: Any, again: Callable[[], Any]) -> Any:
    learner.step(7)
    assert learner.position.split == "valid"
    learner.save()
    other = again()
    other.fit()
    return other


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "way",
    [straight, rewound, looked_at, resumed_in_training, resumed_in_validation],
    ids=lambda way: way.__name__,
)
@pytest.mark.parametrize("several", [False, True], ids=["one", "by name"])
def test_it_is_switched_as_by_hand(kind: Any, way: Callable[..., Any], several: bool, tmp_path: Path) -> None:
    learner = way(
        learner_of(kind, tmp_path, several=several),
        lambda: learner_of(kind, tmp_path, resume=True, several=several),
    )
    weights, losses = by_hand(kind)
    assert same(bits(learner.model), weights)
    assert learner.history["valid", "Loss"].tolist() == pytest.approx(losses, abs=0)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_evaluation_measures_the_weights_of_the_eval_mode(kind: Any, tmp_path: Path) -> None:
    learner = learner_of(kind, tmp_path)
    learner.step(4)
    before = bits(learner.model)
    found = learner.evaluate(data()[1])["Loss"]
    assert same(bits(learner.model), before)
    learner.optimizer.eval()
    learner.model.eval()
    with torch.no_grad():
        parts = [(float(F.mse_loss(learner.model(x), y)), len(x)) for x, y in data()[1]]
    mean = sum(loss * size for loss, size in parts) / sum(size for _, size in parts)
    assert found == pytest.approx(mean, rel=1e-9)


def test_without_the_switch_it_would_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = schedulefree.SGDScheduleFree
    monkeypatch.setattr(Modes, "_with_modes", lambda self: [])
    learner = learner_of(kind, tmp_path)
    learner.optimizer.train()
    learner.fit()
    assert learner.history["valid", "Loss"].tolist() != pytest.approx(by_hand(kind)[1], rel=1e-3)
