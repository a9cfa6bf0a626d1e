"""A run may go on with other metrics, also in the midst of an epoch: its missing part is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from branching_support import Shown, X, Y, weights
from torch import nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import Artifacts, ConfigurationError, LearnerBuilder
from notebook_learner.metric import Loss, MeanAbsoluteError, MeanSquaredError

MAE = "Mean Absolute Error"
WITH = (Loss, MeanAbsoluteError)


def builder_of(directory: Path, metrics: Any = (Loss,), shown: Any = "silent", **resume: Any) -> Any:
    builder = LearnerBuilder(directory).loss(F.mse_loss).num_epochs(3).renderer(shown)
    builder.with_file_checkpointer().metrics(*(each() for each in metrics))
    return builder.resume() if resume.get("resume") else builder


def model_of() -> Any:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    return model, Adam(model.parameters(), lr=0.01)


def data() -> tuple[Any, Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True), DataLoader(TensorDataset(X, Y), 8)


def learner_of(directory: Path, metrics: Any = (Loss,), **options: Any) -> Any:
    return builder_of(directory, metrics, **options).build(*model_of(), None, *data())


def begun(directory: Path, steps: int, metrics: Any = (Loss,)) -> None:
    """A run that stands after so many steps of training and validation."""
    learner = learner_of(directory, metrics)
    for _ in range(steps):
        learner.step()
    learner.save()
    learner.stop()


def logs(directory: Path, epochs: Any) -> dict[str, bytes]:
    paths = [path for epoch in epochs for path in directory.glob(f"*/epoch-{epoch}/*.log")]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


# An epoch has 8 steps of training and 4 of validation.
@pytest.mark.parametrize("steps", [12, 13, 19, 20, 22, 23])
@pytest.mark.parametrize("data_with_fit", [False, True])
def test_the_epoch_has_the_bits_of_a_run_that_measured_it_from_the_start(
    steps: int, data_with_fit: bool, tmp_path: Path
) -> None:
    straight = learner_of(tmp_path / "straight", WITH)
    straight.fit()
    begun(tmp_path / "run", steps)
    if data_with_fit:
        learner = builder_of(tmp_path / "run", WITH, resume=True).build(*model_of())
        learner.fit(*data())
    else:
        learner = learner_of(tmp_path / "run", WITH, resume=True)
        learner.fit()
    assert torch.equal(weights(learner), weights(straight))
    for split in ("train", "valid"):
        assert (
            learner.history.epochs(MAE, split)[1:].tolist()
            == straight.history.epochs(MAE, split)[1:].tolist()
        )
        assert (
            learner.history.epochs("Loss", split).tolist() == straight.history.epochs("Loss", split).tolist()
        )
    assert logs(tmp_path / "run", (2, 3)) == logs(tmp_path / "straight", (2, 3))
    assert Artifacts(tmp_path / "run").verify() and not (tmp_path / "run" / "branches").exists()


def test_a_metric_that_is_left_out_keeps_what_was_measured(tmp_path: Path) -> None:
    begun(tmp_path / "run", 15, WITH)
    before, whole = Artifacts(tmp_path / "run").series(MAE).value.tolist(), logs(tmp_path / "run", (1,))
    learner = learner_of(tmp_path / "run", (Loss, MeanSquaredError), resume=True)
    learner.fit()
    series = learner.history.values(MAE, "train")
    assert series.tolist()[: len(before)] == before and len(before) == 11
    assert logs(tmp_path / "run", (1,)).items() >= whole.items()
    mse, loss = (learner.history.epochs(name, "train") for name in ("Mean Squared Error", "Loss"))
    assert mse.tolist()[1:] == pytest.approx(loss.tolist()[1:])


def test_what_was_measured_again_is_told(tmp_path: Path) -> None:
    begun(tmp_path / "run", 15)
    shown = Shown()
    learner_of(tmp_path / "run", WITH, resume=True, shown=shown)
    (told,) = [text for text in shown.told if "other metrics" in text]
    assert "were measured again" in told and "exact" in told


def test_without_a_state_before_it_the_error_says_so_and_changes_nothing(tmp_path: Path) -> None:
    begun(tmp_path / "run", 15)
    for path in (tmp_path / "run" / "start").iterdir():
        path.unlink()
    for path in (tmp_path / "run" / "checkpoint").glob("*-1.h5"):
        path.unlink()
    whole = logs(tmp_path / "run", (1, 2))
    with pytest.raises(ConfigurationError, match=r"register the same ones .*or from a state before it"):
        learner_of(tmp_path / "run", WITH, resume=True)
    assert logs(tmp_path / "run", (1, 2)) == whole
    assert learner_of(tmp_path / "run", resume=True).position.iteration == 11


def test_nothing_is_saved_before_the_missing_part_is_measured(tmp_path: Path) -> None:
    begun(tmp_path / "run", 15)
    learner = builder_of(tmp_path / "run", WITH, resume=True).build(*model_of())
    learner.save()
    learner.stop()
    straight = learner_of(tmp_path / "straight", WITH)
    straight.fit()
    again = learner_of(tmp_path / "run", WITH, resume=True)
    again.fit()
    assert again.history.epochs(MAE, "train")[1] == straight.history.epochs(MAE, "train")[1]


def test_a_checkpoint_by_its_label_too(tmp_path: Path) -> None:
    begun(tmp_path / "run", 15)
    builder = builder_of(tmp_path / "run", WITH).checkpoint("2-3")
    learner = builder.build(*model_of(), None, *data())
    assert np.isnan(learner.history.values(MAE, "train")).tolist() == [True] * 8 + [False] * 3


@pytest.mark.timeout(300)
def test_on_two_ranks(tmp_path: Path) -> None:
    straight = (
        builder_of(tmp_path / "straight", WITH).devices(["cpu", "cpu"]).build(*model_of(), None, *data())
    )
    straight.fit()
    first = builder_of(tmp_path / "run").devices(["cpu", "cpu"]).build(*model_of(), None, *data())
    first.step(15)
    first.save()
    first.stop()
    second = builder_of(tmp_path / "run", WITH, resume=True).devices(["cpu", "cpu"])
    learner = second.build(*model_of(), None, *data())
    learner.fit()
    assert torch.equal(weights(learner), weights(straight))
    for split in ("train", "valid"):
        assert (
            learner.history.epochs(MAE, split)[1:].tolist()
            == straight.history.epochs(MAE, split)[1:].tolist()
        )
    learner.stop()
    straight.stop()
