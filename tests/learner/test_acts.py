"""Functions of `.on(...)`: they are a part of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.errors import ConfigurationError

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
TRAIN = [(X[at : at + 8], X[at : at + 8].sum(1, keepdim=True)) for at in (0, 8, 16)]
VALID = [(X[:4], X[:4].sum(1, keepdim=True))]
EPOCHS = 3


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1))


def clip_weights(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.3, 0.3)


def preview(model: nn.Module) -> None:
    """Move BatchNorm's statistics by a sample that is drawn, as a preview of a GAN does."""
    model(torch.randn(5, 4))


def made(directory: Path, **more: Any) -> tuple[Learner, list[str]]:
    model, seen = net(), list[str]()
    builder = LearnerBuilder(directory).num_epochs(EPOCHS).renderer("silent").metrics().loss(F.mse_loss)
    builder.with_file_checkpointer().on("update", lambda learner: clip_weights(learner.model))
    builder.on("validated", lambda learner: preview(learner.model))
    builder.on("epoch", lambda learner: seen.append(f"{learner.position.epoch}"))
    for verb, values in more.items():
        getattr(builder, verb)(*values)
    learner = builder.build(model, torch.optim.Adam(model.parameters(), 0.05), None, TRAIN, VALID)
    return learner, seen


def by_hand() -> nn.Module:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(EPOCHS):
        model.train()
        for x, y in TRAIN:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            clip_weights(model)
        model.eval()
        with torch.no_grad():
            for x, _ in VALID:
                model(x)
        preview(model)
    return model


def bits(model: nn.Module) -> list[Tensor]:
    return [tensor.clone() for tensor in model.state_dict().values()]


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, bits(one), bits(other)))


def test_the_run_is_the_loop_by_hand_with_them(tmp_path: Path) -> None:
    learner, seen = made(tmp_path)
    learner.fit()
    assert same(learner.model, by_hand())
    assert seen == ["1", "2", "3"]


@pytest.mark.parametrize("steps", [5, 8])
def test_going_back_and_on_again_repeats_them(steps: int, tmp_path: Path) -> None:
    learner, seen = made(tmp_path)
    learner.step(steps)
    learner.rewind(3)
    learner.what_if(2, lr=0.5)
    learner.fit()
    assert same(learner.model, by_hand())
    assert seen == ["1", "2", "3"]


def test_a_resumed_run_and_a_fork_go_on_with_them(tmp_path: Path) -> None:
    first, _ = made(tmp_path / "run")
    first.step(4)
    first.save()
    child = first.fork(tmp_path / "child")
    child.fit()
    assert same(child.model, by_hand())
    second, _ = made(tmp_path / "run", resume=())
    second.fit()
    assert same(second.model, by_hand())


def test_what_one_logs_after_an_update_is_a_metric_of_the_step(tmp_path: Path) -> None:
    learner, _ = made(
        tmp_path, on=("update", lambda learner: learner.log("widest", learner.model[0].weight.max()))
    )
    learner.step(2)
    assert learner.history.values("widest", "train").shape == (2,)


def test_an_error_in_one_takes_the_step_back(tmp_path: Path) -> None:
    armed = tmp_path / "armed"

    def fail(learner: Learner) -> None:
        if armed.exists():
            armed.unlink()
            raise RuntimeError("in the act")

    learner, _ = made(tmp_path / "run", on=("update", fail))
    learner.step(2)
    before = bits(learner.model)
    armed.touch()
    with pytest.raises(RuntimeError, match="in the act"):
        learner.step()
    assert all(map(torch.equal, before, bits(learner.model)))
    learner.fit()
    assert same(learner.model, by_hand())


@pytest.mark.parametrize("when", ["validated", "epoch"])
def test_an_error_at_an_end_leaves_a_run_that_goes_on_exactly(when: str, tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    armed.touch()

    def fail(learner: Learner) -> None:
        if armed.exists():
            armed.unlink()
            raise RuntimeError("in the act")

    learner, _ = made(tmp_path / "run", on=(when, fail))
    with pytest.raises(RuntimeError, match="in the act"):
        learner.fit()
    learner.fit()
    assert same(learner.model, by_hand())


@pytest.mark.parametrize(
    ("given", "said"),
    [(("step", print), 'choose "update", "validated" or "epoch"'), (("epoch", 3), "give a function")],
)
def test_mistakes_are_named(given: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        made(tmp_path, on=given)
