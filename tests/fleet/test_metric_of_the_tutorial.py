"""The metrics that tutorial 6 teaches to write, taken out of it: plotted, deciding when to stop, resumed in
the middle of an epoch, and measured by two ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import CLASSES, TWO, Net, samples
from sklearn.metrics import f1_score
from torch.nn import functional as F
from torch.utils.data import DataLoader

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.metric import Loss, Metric

TUTORIAL = Path(__file__).parents[2] / "tutorials" / "06_your_own_parts.ipynb"
NAME = "Macro F1"
EPOCHS = 4
SPLITS = ["train", "valid"]


def recipe() -> dict[str, Any]:
    """What the cells that define a metric leave behind; the classes belong to no module, as in a notebook."""
    names: dict[str, Any] = {"__name__": "__main__", "Metric": Metric, "torch": torch}
    for cell in json.loads(TUTORIAL.read_text())["cells"]:
        source = "".join(cell["source"])
        if "(Metric):" in source:
            exec(source, names)
    return names


RECIPE = recipe()


def learner(
    directory: Path,
    devices: Sequence[str] = ("cpu",),
    *,
    patience: int | None = None,
    resume: bool = False,
) -> Learner:
    torch.manual_seed(0)
    model = Net(dropout=0.2)
    builder = (
        LearnerBuilder(directory).devices(list(devices)).loss(F.cross_entropy).num_epochs(EPOCHS).seed(3)
    )
    builder.renderer("silent").metrics(Loss(), RECIPE["MacroF1"](CLASSES)).with_file_checkpointer()
    if patience is not None:
        builder.early_stopping(NAME, patience, mode="min")  # the wrong way round: it will not get better
    if resume:
        builder.checkpoint("latest")
    loaders = DataLoader(samples(50), 16, shuffle=True), DataLoader(samples(37), 16)
    return builder.build(model, torch.optim.Adam(model.parameters(), lr=0.01), None, *loaders)


def finals(of: Learner) -> list[list[float | None]]:
    return [[of.history.final(NAME, split, epoch) for epoch in range(1, EPOCHS + 1)] for split in SPLITS]


def test_the_value_of_an_epoch_is_scikit_learns(tmp_path: Path) -> None:
    trained = learner(tmp_path)
    model = trained.fit().eval()
    x, y = samples(37).tensors
    with torch.no_grad():
        expected = f1_score(y, model(x).argmax(1), average="macro")
    assert trained.history.final(NAME, "valid", EPOCHS) == pytest.approx(expected, rel=1e-12)


def test_it_has_a_curve(tmp_path: Path) -> None:
    trained = learner(tmp_path)
    trained.fit()
    assert NAME in {axes.get_title(loc="left") for axes in trained.plot().axes}
    assert len(trained.history["train", NAME]) == EPOCHS * 4


def test_it_decides_when_to_stop(tmp_path: Path) -> None:
    stopped = learner(tmp_path, patience=1)
    stopped.fit()
    assert (stopped.status, stopped.position.epoch) == ("finished", 2)


@pytest.mark.parametrize("place", [(2, "train", 2), (2, "valid", 1)])
def test_a_run_that_is_resumed_in_the_middle_of_an_epoch_measures_the_same(
    tmp_path: Path, place: Any
) -> None:
    straight = learner(tmp_path / "straight")
    straight.fit()
    cut = learner(tmp_path / "cut")
    cut.run_until(place)
    cut.save()
    del cut
    resumed = learner(tmp_path / "cut", resume=True)
    assert resumed.position.key[0] == place[0]
    resumed.fit()
    assert finals(resumed) == finals(straight)


def test_two_ranks_measure_the_same(tmp_path: Path) -> None:
    alone, together = learner(tmp_path / "alone"), learner(tmp_path / "together", TWO)
    for each in (alone, together):
        each.model.dropout.p = 0.0
        each.fit()
    assert finals(together) == [pytest.approx(values, rel=1e-6) for values in finals(alone)]
