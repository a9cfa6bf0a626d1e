"""A checkpoint is one file of one training, whatever number of ranks wrote it or reads it."""

from __future__ import annotations

import pytest
import torch
from fleet_support import TWO, bits, by_hand, furthest, learner_on, train_loader

from notebook_learner.run.rank_protocol import OWN


def resumable(builder):
    builder.grads_accumulation(3).with_file_checkpointer().resume()


def stopped_inside_a_window(devices, directory, step, dropout=0.0):
    learner = learner_on(devices, directory, dropout=dropout, configure=resumable)
    torch.manual_seed(5)
    learner._supplies.use(learner, "train", train_loader())
    learner.step(step)
    learner.save()
    return learner


@pytest.mark.parametrize(("first", "then"), [(TWO, None), (None, TWO)], ids=["2 to 1", "1 to 2"])
def test_a_run_goes_on_with_another_number_of_devices(tmp_path, first, then):
    stopped_inside_a_window(first, tmp_path, 5)
    again = learner_on(then, tmp_path, configure=resumable)
    again.fit(train_loader())
    assert furthest(again.model, by_hand(train_loader(), window=3)) < 1e-6


def test_the_same_number_of_devices_goes_on_to_the_bit(tmp_path):
    straight = learner_on(
        TWO, tmp_path / "straight", dropout=0.5, configure=lambda b: b.grads_accumulation(3)
    )
    torch.manual_seed(5)
    straight.fit(train_loader())

    stopped_inside_a_window(TWO, tmp_path / "stopped", 5, dropout=0.5)
    again = learner_on(TWO, tmp_path / "stopped", dropout=0.5, configure=resumable)
    again.fit(train_loader())
    assert bits(again) == bits(straight)


def test_what_is_each_rank_s_own_is_one_part_more(tmp_path):
    learner = stopped_inside_a_window(TWO, tmp_path, 5)
    parts = learner.capture().parts
    alone = stopped_inside_a_window(None, tmp_path / "alone", 5).capture().parts
    assert set(parts) - set(alone) == {OWN}
    assert set(alone) - set(parts) == set()
