"""A table whose rows the forward writes through `.data`, while a checkpoint of it is copied."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from carried_support import weights
from torch import Tensor, nn

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.carried.part import CarriedPart
from notebook_learner.state import snapshot

ROWS, WIDTH = 9_000, 1_000  # 36 MB: from 32 MB on, a copy is made in the background


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(ROWS, WIDTH))
        self.head = nn.Linear(1, 1)
        self.calls = 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 6:  # the first copy is compared with the weights, and would show it
            self.table.data[rows] += 1.0
        return self.head(self.table[rows].mean().view(1, 1)).sum()


def program(directory: Path, resume: bool = False) -> Learner:
    torch.manual_seed(0)
    model = Table()
    batches = [torch.tensor([number, 4000 + number, 8999 - number]) for number in range(4)]
    builder = LearnerBuilder(directory).train_step(lambda model, rows: model(rows)).num_epochs(3)
    builder.metrics().renderer("silent").with_file_checkpointer()
    if resume:
        builder.checkpoint(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return builder.build(model, optimizer, None, batches)


@pytest.fixture
def slow_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy in the background begins late: when the next forward has written."""
    hand_over = snapshot.hand_over

    def late(work: Callable[[], None]) -> Any:
        def begin() -> None:
            time.sleep(0.1)
            work()

        return hand_over(begin)

    monkeypatch.setattr(snapshot, "hand_over", late)
    monkeypatch.setattr(snapshot, "_samples", lambda tensors: [])  # what looked at too few values


def resumed_equals_straight(directory: Path) -> bool:
    straight = program(directory)
    straight.fit()
    resumed = program(directory, resume=True)
    resumed.fit()
    return torch.equal(weights(resumed), weights(straight))


@pytest.mark.usefixtures("slow_copies")
def test_a_checkpoint_is_never_torn(tmp_path: Path) -> None:
    assert resumed_equals_straight(tmp_path)


@pytest.mark.usefixtures("slow_copies")
def test_where_the_code_is_not_looked_at_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CarriedPart, "writes_unseen", False)
    assert not resumed_equals_straight(tmp_path)
