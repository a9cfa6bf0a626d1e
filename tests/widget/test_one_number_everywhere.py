"""The log files, the history, `artifacts.h5` and the panel say one number of every metric, to the bit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from page_of_messages import Page, page_of
from torch.nn import functional as F

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.artifacts.watch_panel import Watching
from notebook_learner.renderer.text import number
from notebook_learner.store import RunLayout
from notebook_learner.widget.panel import Panel

sys.path.insert(0, str(Path(__file__).parents[1] / "learner"))
from whole_catalogue import whole_catalogue

EPOCHS = 2
SPLITS: list[Any] = ["train", "valid"]
NAMES = [metric.name for metric in whole_catalogue()]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Learner, Page]:
    """A run of two epochs, the last batches of which are short, and a page that looked at it."""
    directory = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(4, 3), torch.randn(38, 4), torch.randint(0, 3, (38,))
    batches = [(x[at : at + 6], y[at : at + 6]) for at in range(0, 38, 6)]
    builder = LearnerBuilder(directory).loss(F.cross_entropy).metrics(*whole_catalogue()).num_epochs(EPOCHS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = builder.renderer("silent").build(model, optimizer, None, batches, batches[4:])
    page = page_of(learner)
    page.ask("hello")
    learner.fit()
    learner._replica.saving.close()
    page.until(lambda: page.board["status"] == "finished" and len(page.curves["Loss", "train"][0]) == 14)
    return learner, page


def lines_of(learner: Learner, name: str, split: Any, epoch: int) -> list[list[str]]:
    path = RunLayout(learner.artifacts.directory).metric_log(split, epoch, name)
    return [line.split(",") for line in path.read_text().splitlines()]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", NAMES)
def test_of_every_step(seen: tuple[Learner, Page], name: str, split: Any) -> None:
    learner, page = seen
    logged = np.array(
        [float(line[0]) for epoch in (1, 2) for line in lines_of(learner, name, split, epoch)[:-1]]
    )
    known = np.concatenate([learner.history.values(name, split, epoch=epoch) for epoch in (1, 2)])
    with h5py.File(learner.artifacts.directory / "artifacts.h5") as file:
        stored = file[f"series/{split}/{name}/value"][:]
    assert len(logged) == EPOCHS * (7 if split == "train" else 3)
    np.testing.assert_array_equal(known, logged)
    np.testing.assert_array_equal(stored, logged)
    present = logged[~np.isnan(logged)]
    if split == "train" and len(present):
        np.testing.assert_array_equal(page.curves[name, "train"][1], present)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", NAMES)
def test_of_every_epoch(seen: tuple[Learner, Page], name: str, split: Any) -> None:
    learner, page = seen
    logged = [float(lines_of(learner, name, split, epoch)[-1][0]) for epoch in (1, 2)]
    assert [lines_of(learner, name, split, epoch)[-1][1] for epoch in (1, 2)] == ["final", "final"]
    known = [learner.history.final(name, split, epoch) for epoch in (1, 2)]
    with h5py.File(learner.artifacts.directory / "artifacts.h5") as file:
        stored = file[f"epochs/{split}/{name}/value"][:]
    np.testing.assert_array_equal(known, logged)
    np.testing.assert_array_equal(stored, logged)
    points = page.curves[name, split][1]
    if split == "valid" or len(points) == EPOCHS:  # of a metric that has no value of a step
        np.testing.assert_array_equal(points, logged)
    (row,) = (row for row in page.board["table"] if (row["metric"], row["split"]) == (name, split))
    assert row["epoch"] == number(logged[-1])


def test_a_panel_that_follows_the_files_draws_the_same(seen: tuple[Learner, Page]) -> None:
    """Also what has a value of a pass only, at each pass's end."""
    learner, page = seen
    panel = Panel(Page)
    watching = Watching(learner.artifacts, panel)
    watching.start()
    follower = panel.wire
    assert isinstance(follower, Page)
    follower.ask("hello")
    follower.until(
        lambda: follower.board["status"] == "finished" and len(follower.curves) == len(page.curves)
    )
    watching.stop()
    assert follower.curves == page.curves
    assert page.curves["Their AUROC", "train"][0] == [7.0, 14.0]
