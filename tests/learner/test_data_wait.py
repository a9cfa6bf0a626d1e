"""How long steps wait for their batches, as a number: counted if a renderer or a logger asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.evaluation import set_pass as evaluating
from notebook_learner.metric import DataWait, Loss
from notebook_learner.run import loop


class Clock:
    """Goes on where it is told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(loop, "perf_counter", found)
    monkeypatch.setattr(evaluating, "perf_counter", found)
    return found


class Slow(Dataset[Any]):
    """Each sample takes half a second."""

    def __init__(self, clock: Clock, seconds: float = 0.5) -> None:
        self.clock, self.seconds = clock, seconds

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.clock.now += self.seconds
        return torch.full((4,), float(index)), torch.ones(1)


def learner_of(directory: Path, clock: Clock, *metrics: Any) -> Learner:
    def step(model: nn.Module, batch: Any) -> Tensor:
        clock.now += 2.0
        return F.mse_loss(model(batch[0]), batch[1])

    model = nn.Linear(4, 1)
    builder = LearnerBuilder(directory).train_step(step).valid_step(step).renderer("silent").metrics(*metrics)
    return builder.build(model, torch.optim.SGD(model.parameters(), lr=1e-4))


def test_it_is_the_share_of_the_time_in_which_a_step_had_no_batch(tmp_path: Path, clock: Clock) -> None:
    """Four samples take the two seconds of a step, two take one."""
    learner = learner_of(tmp_path / "run", clock, Loss(), DataWait())
    learner.fit(DataLoader(Slow(clock), batch_size=4), DataLoader(Slow(clock), batch_size=2))
    assert learner.history["train", "Data Wait"].tolist() == pytest.approx([50.0] * 6)
    assert learner.history["valid", "Data Wait"].tolist() == pytest.approx([100 / 3] * 12)
    learner.evaluate(DataLoader(Slow(clock), batch_size=12), name="other")
    assert learner.history["test/other", "Data Wait"].tolist() == pytest.approx([75.0] * 2)


def test_a_loader_that_keeps_up_is_not_waited_for(tmp_path: Path, clock: Clock) -> None:
    learner = learner_of(tmp_path / "run", clock, DataWait())
    learner.fit(DataLoader(Slow(clock, 0.0), batch_size=4))
    assert learner.history["train", "Data Wait"].tolist() == [0.0] * 6


def test_nobody_looks_at_the_clock_for_it_where_nobody_asks(tmp_path: Path, clock: Clock) -> None:
    def looks(*metrics: Any) -> int:
        before = clock.asked
        learner_of(tmp_path / str(len(metrics)), clock, Loss(), *metrics).fit(DataLoader(Slow(clock, 0.0)))
        return clock.asked - before

    assert looks(DataWait()) == looks() + 2 * (24 + 1)  # and that there is no further batch
