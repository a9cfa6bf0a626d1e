"""`what_if`, `lr_find` and a dry step on several ranks: what one device finds, and nothing left behind."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
import torch
from fleet_support import TWO, bits, learner_on, train_loader, valid_loader
from torch.nn import functional as F

from notebook_learner import ClassificationOutput
from notebook_learner.errors import Paused, StateError


class Walked:
    """Batches that only rank 0 can walk, and hands out."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def learner_with(devices, directory, data=None, **options):
    learner = learner_on(devices, directory, **options)
    learner._supplies.use(learner, "train", train_loader() if data is None else data)
    learner._supplies.use(learner, "valid", valid_loader())
    torch.manual_seed(5)
    return learner


def twice_the_loss(model, batch):
    x, y = batch
    output = model(x)
    return ClassificationOutput(2 * F.cross_entropy(output, y), output, y)


FIXED = (torch.randn(9, 10, generator=torch.Generator().manual_seed(3)), torch.arange(9) % 3)
CHANGES = {
    "a rate": {"lr": 0.3},
    "an option": {"weight_decay": 0.7},
    "a step": {"train_step": twice_the_loss},
    "a batch": {"batch": FIXED},
    "a bound": {"clip_norm": 0.05},
}


@pytest.mark.parametrize("handed_out", [False, True], ids=["each cuts its part", "rank 0 hands out"])
@pytest.mark.parametrize("change", CHANGES)
def test_both_courses_are_those_of_one_device(change, handed_out, tmp_path):
    found = []
    for devices in (None, TWO):
        torch.manual_seed(0)
        data = Walked(list(train_loader())) if handed_out else None
        learner = learner_with(devices, tmp_path / str(devices), data)
        learner.step(5)
        found.append(learner.what_if(6, **CHANGES[change]))  # over an uneven last batch and a validation
    one, two = found
    assert set(two.baseline) == {"loss", "Loss", "Accuracy"}
    for ours, theirs in ((two.baseline, one.baseline), (two.changed, one.changed)):
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, err_msg=name)
    assert two.first_difference == one.first_difference is not None


def test_the_losses_of_growing_rates_are_those_of_one_device(tmp_path):
    one, two = (
        learner_with(devices, tmp_path / str(devices)).tools.lr_find(1e-4, 1.0, steps=30)
        for devices in (None, TWO)
    )
    assert len(two.losses) == len(one.losses)
    np.testing.assert_allclose(two.losses, one.losses, rtol=1e-4)
    assert two.suggestion == one.suggestion


TRIALS = {
    "what_if": lambda learner: learner.what_if(9, lr=0.5, weight_decay=0.3),
    "lr_find": lambda learner: learner.tools.lr_find(1e-5, 50.0, steps=40),
    "a dry step": lambda learner: learner.tools.try_step(twice_the_loss),
}


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("trial", TRIALS)
def test_a_trial_leaves_nothing_behind_on_any_rank(trial, window, tmp_path):
    def run(directory, steps):
        learner = learner_with(TWO, directory, dropout=0.5, configure=lambda b: b.grads_accumulation(window))
        for n in steps:
            learner.step(n)
            TRIALS[trial](learner)
        learner.fit()
        return bits(learner), learner.history["train", "Loss"].tolist()

    assert run(tmp_path / "tried", [4, 4]) == run(tmp_path / "straight", [])


def test_a_dry_step_gives_the_output_of_rank_0_and_moves_nobody(tmp_path):
    learner = learner_with(TWO, tmp_path)
    learner.step(2)
    trial = learner.tools.try_step()
    assert (trial.position.step, len(trial.output.output)) == (3, 8)
    assert [each.step for each in learner.devices] == [2, 2]


def test_a_change_that_fails_on_another_rank_is_taken_back(tmp_path):
    straight = learner_with(TWO, tmp_path / "straight", dropout=0.5)
    straight.fit()
    learner = learner_with(TWO, tmp_path / "failing", dropout=0.5)
    learner.step(3)
    here = os.getpid()

    def raised_elsewhere(model, batch):
        if os.getpid() != here:
            raise ZeroDivisionError("of another rank")
        return twice_the_loss(model, batch)

    with pytest.raises(ZeroDivisionError, match="of another rank"):
        learner.what_if(3, train_step=raised_elsewhere)
    assert learner.position.step == 3 and [each.alive for each in learner.devices] == [True, True]
    learner.what_if(3, lr=1.0)
    learner.fit(epochs=3)
    assert bits(learner) == bits(straight)


@pytest.mark.soak
def test_an_interrupt_takes_it_back_on_all_ranks(tmp_path):
    straight = learner_with(TWO, tmp_path / "straight", dropout=0.5)
    straight.fit()
    learner = learner_with(TWO, tmp_path / "interrupted", dropout=0.5)
    learner.step(3)
    learner._driver.control.interrupt()
    with pytest.raises(Paused):
        learner.tools.lr_find()
    assert learner.position.step == 3
    learner.fit()
    assert bits(learner) == bits(straight)


def test_a_change_that_cannot_be_sent_is_said_and_nothing_has_happened(tmp_path):
    learner = learner_with(TWO, tmp_path)
    learner.step(1)
    lock = threading.Lock()

    def step(model, batch):
        with lock:
            return twice_the_loss(model, batch)

    with pytest.raises(StateError, match=r"a change \(train_step\) cannot be sent to the other devices'"):
        learner.what_if(2, train_step=step)
    learner.step(1)
    assert [each.step for each in learner.devices] == [2, 2]
