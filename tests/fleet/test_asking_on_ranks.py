"""`ask` on several ranks: the bits of the run that measured it there, and nothing left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fleet_support import TWO, Walked, bits, made, train_loader, valid_loader
from torch.nn import functional as F

from notebook_learner import LearnerBuilder
from notebook_learner.metric import Accuracy, Loss, TopKAccuracy


def learner_in(
    directory: Path, devices: list[str] | None = TWO, *metrics: Any, data: Any = None, **resume: Any
) -> Any:
    builder = LearnerBuilder(directory).loss(F.cross_entropy).num_epochs(3).renderer("silent")
    builder.metrics(Loss(), *metrics).with_file_checkpointer().seed(4)
    if devices is not None:
        builder.devices(devices)
    if resume:
        builder.resume(**resume)
    model, optimizer = made(0.2)
    return builder.build(model, optimizer, None, data or train_loader(), valid_loader())


def trained(learner: Any) -> Any:
    learner.step(5)
    learner.lr = 0.002
    learner.fit()
    return learner


@pytest.mark.parametrize("handed_out", [False, True], ids=["each cuts its part", "rank 0 hands out"])
@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_metric_has_the_bits_of_the_run_that_measured_it(
    split: str, handed_out: bool, tmp_path: Path
) -> None:
    found = []
    for name, metrics in (("measured", (Accuracy(), TopKAccuracy(2))), ("asked", ())):
        torch.manual_seed(5)
        data = Walked(list(train_loader())) if handed_out else None
        learner = trained(learner_in(tmp_path / name, TWO, *metrics, data=data))
        if metrics:
            found = [learner.artifacts.series(each.name, split) for each in metrics]
            continue
        before, place = bits(learner), learner.position
        for metric, measured in zip((Accuracy(), TopKAccuracy(2)), found, strict=True):
            asked = learner.ask(metric, split=split)
            for column in ("value", "weight", "epoch", "step"):
                assert np.array_equal(getattr(asked, column), getattr(measured, column)), column
        assert bits(learner) == before and learner.position == place


def test_a_function_sees_the_weights_of_each_step_and_the_rate_that_was_set_by_hand(tmp_path: Path) -> None:
    seen, learner = {}, learner_in(tmp_path / "run")
    for number in range(1, 15):
        learner.step()
        while learner.position.split == "valid":
            learner.step()
        if number == 5:
            learner.lr = 0.002
        seen[number] = learner.model.first.weight.detach().clone()
    answer = learner.ask(lambda learner: learner.model.first.weight, steps=(2, 12))
    assert answer.exact, answer.differs
    assert all(torch.equal(value, seen[number]) for number, value in enumerate(answer.value, 2))


def test_a_way_back_over_a_rate_that_was_set_by_hand_keeps_the_ranks_together(tmp_path: Path) -> None:
    learner = learner_in(tmp_path / "run")
    learner.step(3)
    learner.lr = 0.002
    learner.step(4)
    before = bits(learner)
    learner.fit()
    learner.artifacts  # noqa: B018  # waits for the files
    again = learner_in(tmp_path / "run", at=5)
    again.step(2)
    assert bits(again) == before


def halved(model: Any, batch: Any) -> Any:
    x, y = batch
    return F.cross_entropy(model(x) * 0.5, y)


def test_a_step_that_was_replaced_is_in_force_on_all_ranks_at_its_place(tmp_path: Path) -> None:
    seen, learner = {}, learner_in(tmp_path / "run")
    for number in range(1, 13):
        learner.step()
        while learner.position.split == "valid":
            learner.step()
        if number == 4:
            learner.tools.use_step("train", halved)
        seen[number] = learner.model.first.weight.detach().clone()
    answer = learner.ask(lambda learner: learner.model.first.weight, steps=(2, 12))
    assert answer.exact, answer.differs
    assert all(torch.equal(value, seen[number]) for number, value in enumerate(answer.value, 2))
    assert learner.rewind(to=3).exact and torch.equal(learner.model.first.weight, seen[3])
    assert learner.go_to("1").exact and torch.equal(learner.model.first.weight, seen[12])
