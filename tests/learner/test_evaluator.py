"""A saved run is evaluated without its Learner."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
import torch.nn.functional as F
from exactness import Setup, logs
from torch import nn

from notebook_learner import Artifacts, ConfigurationError, Evaluator, Learner, Paused, StateError
from notebook_learner.metric import Accuracy, Loss

SETUP = Setup(files=True)
SETS = [(torch.randn(4, 6, generator=torch.Generator().manual_seed(9)), torch.tensor([0, 1, 2, 0]))] * 3


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )


def trained(directory: Path, setup: Setup = SETUP) -> Learner:
    learner = setup.learner(directory)
    learner.fit()
    assert learner.artifacts.status == "finished"  # waits for the disk, too
    return learner


def an_evaluator(directory: Path, **more: Any) -> Evaluator:
    chosen = {"loss": F.cross_entropy, "metrics": [Loss(), Accuracy()], "renderer": "silent", **more}
    return Evaluator(directory, net(), **chosen)


def test_it_finds_what_the_learner_finds(tmp_path: Path) -> None:
    learner = trained(tmp_path)
    theirs = dict(learner.evaluate(SETS, "theirs"))
    evaluator = an_evaluator(tmp_path, checkpoint="latest")
    found = evaluator.evaluate(SETS, "mine")
    assert dict(found) == theirs
    assert (tmp_path / "test/mine/Loss.log").read_bytes() == (tmp_path / "test/theirs/Loss.log").read_bytes()
    assert torch.equal(evaluator.predict(SETS), learner.predict(SETS))


def test_a_run_shows_what_was_evaluated_later(tmp_path: Path) -> None:
    learner = trained(tmp_path)
    trained_logs = {name: log for name, log in logs(tmp_path).items() if name.startswith(("train", "valid"))}
    del learner
    evaluator = an_evaluator(tmp_path, checkpoint=1)
    found = evaluator.evaluate({"a": SETS, "b": SETS[:1]})
    run = Artifacts(tmp_path)
    assert list(run.evaluations) == ["a", "b"]
    assert dict(run.evaluations["a"]) == dict(found["a"])
    assert run.evaluations["a"].place == found["a"].place == (1, "valid", 3)
    series = run.series("Loss", "test/a")
    assert series.iteration.tolist() == [7, 7, 7]
    assert series.epoch.tolist() == [1, 1, 1]
    with h5py.File(tmp_path / "artifacts.h5") as file:
        assert file["epochs/test/b/Accuracy/value"][:].tolist() == [found["b"]["Accuracy"]]
        assert file["series/test/a/Loss/value"][:].tolist() == series.value.tolist()
        assert file["series/test/a/Loss/step"][:].tolist() == [1, 2, 3]
    assert run.verify()
    assert run.status == "finished"
    assert {name: log for name, log in logs(tmp_path).items() if name in trained_logs} == trained_logs


def test_a_live_run_takes_up_what_another_evaluated(tmp_path: Path) -> None:
    learner = SETUP.learner(tmp_path)
    learner.step_epoch()
    learner.save()
    an_evaluator(tmp_path, checkpoint="latest").evaluate(SETS)
    learner.fit()
    assert learner.artifacts.status == "finished"  # waits for the disk, too
    with h5py.File(tmp_path / "artifacts.h5") as file:
        assert list(file["series/test"]) == ["test"]


def test_the_moving_average_is_taken_where_the_run_kept_one(tmp_path: Path) -> None:
    learner = trained(tmp_path, Setup(files=True, ema=True))
    theirs = dict(learner.evaluate(SETS))
    assert dict(an_evaluator(tmp_path, checkpoint="latest").evaluate(SETS)) == theirs
    plain = an_evaluator(tmp_path, checkpoint="latest", average=False)
    assert all(
        torch.equal(a, b) for a, b in zip(plain.model.parameters(), learner.model.parameters(), strict=True)
    )
    assert dict(plain.evaluate(SETS)) != theirs


def test_generators_and_modes_are_as_before(tmp_path: Path) -> None:
    trained(tmp_path)
    evaluator = an_evaluator(tmp_path)
    assert evaluator.model.training
    drawn = torch.get_rng_state()
    evaluator.evaluate(SETUP.valid_loader())
    evaluator.predict(SETUP.valid_loader())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert evaluator.model.training
    assert evaluator.model[1].training  # type: ignore[index]


def test_an_interrupt_records_nothing(tmp_path: Path) -> None:
    trained(tmp_path)

    def step(model: nn.Module, batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return F.cross_entropy(model(batch[0]), batch[1])

    evaluator = an_evaluator(tmp_path, loss=None, valid_step=step, metrics=None)
    with pytest.raises(Paused, match="evaluate test: broken off after batch 1 of 3; nothing was recorded"):
        evaluator.evaluate(SETS)
    assert not (tmp_path / "test").exists()


def test_what_is_wrong_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    trained(tmp_path)
    with pytest.raises(ConfigurationError, match="for 2 reasons"):
        an_evaluator(tmp_path, metrics=[Loss], precision="half")
    with pytest.raises(ConfigurationError, match="nothing says how to measure it"):
        Evaluator(tmp_path, net())
    with pytest.raises(StateError, match="of another model"):
        Evaluator(tmp_path, nn.Linear(2, 2), loss=F.cross_entropy)
    with pytest.raises(StateError, match="no checkpoint"):
        an_evaluator(tmp_path, checkpoint=99)
    with pytest.raises(StateError, match="no moving average"):
        an_evaluator(tmp_path, average=True)
    with pytest.raises(ConfigurationError, match="give an iterable of batches"):
        an_evaluator(tmp_path).evaluate(None)
