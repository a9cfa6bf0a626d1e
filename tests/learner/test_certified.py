"""A whole run is replayed and certified; what differs between two runs is named."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from branching_support import STEPS, X, Y, learner_in, step_on, weights
from torch.utils.data import TensorDataset

from notebook_learner import Artifacts, StateError


def trained(directory: Path, rate: float = 0.05) -> Any:
    learner = learner_in(directory)
    step_on(learner, 5)
    learner.lr = rate
    learner.fit()
    return learner


def test_a_replay_of_the_whole_run_is_certified_and_changes_nothing(tmp_path: Path) -> None:
    learner = trained(tmp_path / "run")
    before = weights(learner)
    found = learner.verify(replay=True)
    assert found.exact and found.certificate.replayed == found.certificate.steps == 4 * STEPS
    assert "exact: 32 of 32 training steps" in str(found)
    assert torch.equal(weights(learner), before) and learner.status == "finished"
    assert Artifacts(tmp_path / "run").verify(found.path)
    assert Artifacts(tmp_path / "run").verify(found.certificate)


def test_some_segments_can_be_replayed_alone(tmp_path: Path) -> None:
    found = trained(tmp_path / "run").verify(replay=True, segments=1)
    assert found.exact and 0 < found.certificate.replayed < 4 * STEPS


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("train/epoch-2/Loss.log", "the measured values are not those of the certificate"),
        ("checkpoint/state-4.h5", "checkpoint 4, which the certificate names, is not there"),
    ],
)
def test_another_run_is_not_the_certified_one(path: str, told: str, tmp_path: Path) -> None:
    found = trained(tmp_path / "run").verify(replay=True)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert Artifacts(tmp_path / "copy").verify(found.path)
    there = tmp_path / "copy" / path
    if there.suffix == ".log":
        lines = there.read_text().splitlines()
        lines[2] = "9.5,4"
        there.write_text("\n".join([*lines, ""]))
    else:
        there.unlink()
    assert told in str(Artifacts(tmp_path / "copy").verify(found.path))


def test_weights_of_another_run_are_named(tmp_path: Path) -> None:
    found = trained(tmp_path / "run").verify(replay=True)
    trained(tmp_path / "other", 0.04).artifacts  # noqa: B018
    problems = Artifacts(tmp_path / "other").verify(found.path).problems
    assert "the weights of checkpoint 4 are not those of the certificate" in problems


def test_a_replay_that_differs_says_where_and_why_and_its_certificate_too(tmp_path: Path) -> None:
    trained(tmp_path / "run").artifacts  # noqa: B018
    learner = learner_in(tmp_path / "run", plain=True, data=TensorDataset(X + 1, Y))
    found = learner.verify(replay=True)
    assert not found.exact and "Loss differs after epoch 1" in str(found) and "data.train" in str(found)
    assert "the certificate itself says" in str(Artifacts(tmp_path / "run").verify(found.path))


def test_what_cannot_be_replayed_or_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"no certificate at 'nowhere.json'"):
        Artifacts(trained(tmp_path / "run").artifacts.directory).verify("nowhere.json")
    with pytest.raises((TypeError, ValueError), match="segments"):
        learner_in(tmp_path / "run", plain=True).verify(replay=True, segments=0)


# Two runs ----------------------------------------------------------------------------------------------


def test_two_runs_differ_by_what_made_them_and_by_a_first_step(tmp_path: Path) -> None:
    for name, rate in (("a", 0.05), ("b", 0.02)):
        trained(tmp_path / name, rate).artifacts  # noqa: B018
    found = Artifacts.diff(tmp_path / "a", tmp_path / "b")
    assert found.made_by["changed by hand"] == ("lr = 0.05 at step 5", "lr = 0.02 at step 5")
    assert (found.first.key, found.metric, found.steps) == ((1, 0, 7), "Loss", 6)
    assert not found.same and "Loss after epoch 1, train, step 7" in repr(found)
    assert found.values == tuple(float(Artifacts(tmp_path / each).series("Loss").value[6]) for each in "ab")


def test_the_same_run_twice_differs_in_nothing(tmp_path: Path) -> None:
    for name in "ab":
        trained(tmp_path / name).artifacts  # noqa: B018
    found = Artifacts.diff(tmp_path / "a", tmp_path / "b")
    assert found.same and found.steps == 4 * STEPS and "all 32 training steps" in repr(found)


def test_a_branch_differs_from_its_run_where_it_left_it(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    step_on(learner, 12)
    learner.rewind(to=(2, 1))
    learner.lr = 0.5
    step_on(learner, 3)
    run = learner.artifacts
    found = Artifacts.diff(run, run.branches["1"])
    assert found.first.key == (2, 0, 3) and found.steps == STEPS + 2


def test_a_directory_can_be_asked_by_way_of_its_builder(tmp_path: Path) -> None:
    learner = trained(tmp_path / "run")
    losses = learner.artifacts.series("Loss").value
    again = partial(learner_in, tmp_path / "run", plain=True)
    answer = Artifacts(tmp_path / "run").ask(lambda each: each.output.loss, steps=(3, 6), builder=again)
    assert answer.value.tolist() == losses[2:6].tolist()
