"""A run whose shape has changed, in a process of its own and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from detach_support import until_it_ends
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from notebook_learner import Learner, LearnerBuilder

BATCHES = [
    (torch.randn(8, 4, generator=torch.Generator().manual_seed(n)), torch.ones(8, 1)) for n in range(6)
]


def add_head(learner: Any) -> None:
    learner.model.append(nn.Linear(1, 1))
    learner.optimizer.add_param_group({"params": learner.model[-1].parameters(), "lr": 0.02})


def learner_in(directory: Path) -> Learner:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 1), nn.Dropout(0.1))
    builder = LearnerBuilder(directory).loss(F.mse_loss).num_epochs(2).seed(5).renderer("silent")
    builder.with_file_checkpointer()
    return builder.build(model, SGD(model.parameters(), lr=0.1, momentum=0.9), None, BATCHES)


def weights(learner: Learner) -> list[Tensor]:
    return [each.detach().clone() for each in learner.model.parameters()]


def test_it_goes_on_there_and_the_rewind_goes_back_over_the_change_here(
    tmp_path: Path, owned: Callable[[Learner], Learner]
) -> None:
    straight = learner_in(tmp_path / "straight")
    straight.step(1)
    before = weights(straight)
    straight.step(1)
    straight.reshape(add_head)
    straight.fit()

    learner = owned(learner_in(tmp_path / "run"))
    learner.step(1)
    learner.save()
    learner.step(1)
    learner.reshape(add_head)
    learner.step(2)
    report = learner.detach()
    until_it_ends(tmp_path / "run", report.pid)
    learner.take_back()
    assert learner.status == "finished"
    assert all(map(torch.equal, weights(learner), weights(straight)))
    learner.rewind(to=1)  # from the disk, as the process was another one
    assert all(map(torch.equal, weights(learner), before))
    learner.fit()
    assert all(map(torch.equal, weights(learner), weights(straight)))
