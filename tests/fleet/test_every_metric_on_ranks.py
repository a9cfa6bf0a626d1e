"""Every metric of the catalogue, measured by two ranks that have a part of each batch, says what one process
says that has all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fleet_support import TWO, Net, samples
from torch.nn import functional as F
from torch.utils.data import DataLoader
from whole_catalogue import whole_catalogue

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.logger import InMemoryMetricLogger

EPOCHS = 2
NAMES = [metric.name for metric in whole_catalogue()]
SPLITS = ["train", "valid"]


def measured(directory: Path, devices: list[str]) -> Learner:
    """Trained at a rate of zero: the same weights everywhere, so that only the measuring differs. The last
    batches are of two and of five samples: of one and three for a rank at most."""
    torch.manual_seed(0)
    model = Net()
    builder = LearnerBuilder(directory).devices(devices).loss(F.cross_entropy).num_epochs(EPOCHS).seed(3)
    builder.renderer("silent").metric_logger(InMemoryMetricLogger()).with_application_logger(False)
    loaders = DataLoader(samples(50), 16, shuffle=True), DataLoader(samples(37), 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    learner = builder.metrics(*whole_catalogue()).build(model, optimizer, None, *loaders)
    learner.fit()
    return learner


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Learner, Learner]:
    return (
        measured(tmp_path_factory.mktemp("alone"), ["cpu"]),
        measured(tmp_path_factory.mktemp("together"), TWO),
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.soak
def test_the_value_of_an_epoch_is_that_of_all_samples(name: str, both: tuple[Learner, Learner]) -> None:
    alone, together = ([epochs_of(each, name, split) for split in SPLITS] for each in both)
    assert np.isfinite(alone).all()
    assert together == pytest.approx(np.array(alone), rel=2e-6)


def epochs_of(learner: Learner, name: str, split: Any) -> list[float | None]:
    return [learner.history.final(name, split, epoch) for epoch in range(1, EPOCHS + 1)]


BY_PARTS = {"R2", "Kappa"}
"""Metrics whose step is no sum or mean over samples: told is the mean of the ranks' own values."""


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BY_PARTS])
def test_so_is_the_value_of_a_step(name: str, both: tuple[Learner, Learner]) -> None:
    alone, together = (steps_of(each, name) for each in both)
    assert len(alone) == EPOCHS * 4
    assert together == pytest.approx(alone, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("name", sorted(BY_PARTS))
def test_the_step_of_a_metric_that_cannot_be_summed_is_not_the_batchs_own(
    name: str, both: tuple[Learner, Learner]
) -> None:
    alone, together = (steps_of(each, name) for each in both)
    assert len(together) == len(alone)
    assert together[:3] != pytest.approx(alone[:3], rel=1e-5)


def steps_of(learner: Learner, name: str) -> Any:
    return np.asarray(learner.history["train", name], dtype=float)
