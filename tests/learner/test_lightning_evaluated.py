"""`learner.evaluate` and `predict` with a model that was written for Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_support import (
    Base,
    bits,
    both,
    by_lightning,
    classifier,
    data,
    learner_of,
    lightning,
    rows,
    same,
    their_trainer,
)
from torch.utils.data import DataLoader

from notebook_learner import ConfigurationError, Evaluator, LearnerBuilder

OTHER = DataLoader(rows(), batch_size=10)


def validated_by_lightning(model: Any) -> dict[str, float]:
    with their_trainer() as trainer:
        (values,) = trainer.validate(model, OTHER, verbose=False)
    return dict(values)


def theirs_of(learner: Any) -> Any:
    """A module of Lightning with the learner's weights."""
    theirs = classifier(lightning.LightningModule)
    theirs.load_state_dict(learner.model.state_dict())
    return theirs


@both
@pytest.mark.parametrize("steps", [3, 9], ids=["in training", "in validation"])
def test_what_the_validation_step_logs_is_measured_as_by_lightning(
    base: Base, steps: int, tmp_path: Path
) -> None:
    learner = learner_of(classifier(base), tmp_path)
    learner.step(steps)
    found = learner.evaluate(OTHER)
    expected = validated_by_lightning(theirs_of(learner))
    assert set(found) == set(expected) == {"val_loss", "val_f1"}
    assert found["val_f1"] == expected["val_f1"]
    assert found["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-6)
    assert learner.history.final("val_f1", "test/test") == found["val_f1"]


@both
@pytest.mark.parametrize("steps", [3, 9], ids=["in training", "in validation"])
def test_the_training_and_its_values_are_as_without_an_evaluation(
    base: Base, steps: int, tmp_path: Path
) -> None:
    straight = learner_of(classifier(base), tmp_path / "straight")
    straight.fit()
    learner = learner_of(classifier(base), tmp_path / "evaluated")
    learner.step(steps)
    learner.evaluate(OTHER)
    learner.fit()
    theirs = classifier(lightning.LightningModule)
    by_lightning(theirs)
    assert same(bits(learner.model), bits(theirs))
    for split in ("train", "valid"):
        assert learner.history.metrics(split) == straight.history.metrics(split)
        for name in straight.history.metrics(split):
            for epoch in (1, 2, 3):
                one, other = (each.history.final(name, split, epoch) for each in (learner, straight))
                assert one == other


@both
def test_hooks_and_batch_numbers_are_those_of_the_set(base: Base, tmp_path: Path) -> None:
    calls = tmp_path / "calls.txt"  # a list would go back with everything that the steps have changed

    def note(call: Any) -> None:
        with calls.open("a") as lines:
            print(call, file=lines)

    def end(self: Any) -> None:
        note("end")
        self.log("val_lines", float(len(calls.read_text().split())))

    own = {
        "validation_step": lambda self, batch, batch_idx: note(batch_idx),
        "on_validation_epoch_start": lambda self: note("begin"),
        "on_validation_epoch_end": end,
    }
    learner = learner_of(classifier(base, **own), tmp_path / "run")
    learner.step(8)  # one batch of the validation
    for _ in range(2):
        calls.write_text("")
        found = learner.evaluate(OTHER)
        assert calls.read_text().split() == ["begin", "0", "1", "2", "3", "4", "end"]
        assert found["val_lines"] == 7.0


@both
def test_predict_uses_the_models_predict_step_as_by_lightning(base: Base, tmp_path: Path) -> None:
    def predict_step(self: Any, batch: Any, batch_idx: int) -> Any:
        self.trainer.optimizers  # noqa: B018  (what a step asks of its trainer is there)
        return self.net(batch[0]).softmax(1) + batch_idx

    learner = learner_of(classifier(base, predict_step=predict_step), tmp_path)
    learner.step(3)
    theirs = classifier(lightning.LightningModule, predict_step=predict_step)
    theirs.load_state_dict(learner.model.state_dict())
    with their_trainer() as trainer:
        expected = torch.cat(trainer.predict(theirs, OTHER))
    found = learner.predict(OTHER)
    assert found.shape == (50, 3) and torch.equal(found, expected)


@both
def test_a_test_step_is_told_by_name(base: Base, tmp_path: Path, capsys: Any) -> None:
    model = classifier(base, test_step=lambda self, batch, batch_idx: None)
    LearnerBuilder(tmp_path).renderer("plain").build(model, train=data()[0])
    assert "test_step of Classifier is not called" in capsys.readouterr().out


def test_an_evaluator_without_a_learner_says_what_to_do(tmp_path: Path) -> None:
    learner = learner_of(classifier(lightning.LightningModule), tmp_path)
    learner.step(3)
    learner.save()
    with pytest.raises(ConfigurationError, match=r"asks its learner.*resume\(\)\.build\(model\)\.evaluate"):
        Evaluator(tmp_path, classifier(lightning.LightningModule), checkpoint="latest", renderer="silent")
