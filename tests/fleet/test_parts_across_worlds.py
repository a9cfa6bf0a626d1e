"""A checkpoint of weights in parts is that of one device, whatever number of ranks wrote it or reads it."""

from __future__ import annotations

import pytest
import torch
from fleet_support import TWO, bits, furthest, train_loader
from parts_support import begun


def resumable(builder):
    builder.grads_accumulation(3).with_file_checkpointer().resume()


@pytest.mark.soak
def test_a_run_goes_on_from_two_devices_to_four_to_one_and_back_to_two(tmp_path):
    alone = begun(tmp_path / "alone", None, lambda b: b.grads_accumulation(3), epochs=2)
    alone.fit(train_loader())
    torch.manual_seed(5)
    for devices, steps in ((TWO, 2), (["cpu"] * 4, 3), (None, 3)):
        learner = begun(tmp_path / "run", devices, resumable, epochs=2)
        learner._supplies.use(learner, "train", train_loader())
        learner.step(steps)
        learner.save()
    learner = begun(tmp_path / "run", TWO, resumable, epochs=2)
    learner.fit(train_loader())
    assert furthest(learner.model, alone.model) < 1e-6


def test_its_files_hold_the_same_tensors_as_those_of_one_device(tmp_path):
    def files(devices, name):
        learner = begun(tmp_path / name, devices, lambda b: b.with_file_checkpointer(), epochs=1)
        learner.fit(train_loader())
        found = sorted((tmp_path / name / "checkpoint").iterdir())
        return {file.name: file.stat().st_size for file in found if not file.name.startswith("state")}

    assert files(TWO, "two") == files(None, "one")


@pytest.mark.soak
def test_the_same_number_of_devices_goes_on_to_the_bit(tmp_path):
    straight = begun(tmp_path / "straight", configure=lambda b: b.grads_accumulation(3), dropout=0.5)
    straight.fit(train_loader())
    learner = begun(tmp_path / "stopped", configure=resumable, dropout=0.5)
    learner._supplies.use(learner, "train", train_loader())
    learner.step(5)
    learner.save()
    again = begun(tmp_path / "stopped", configure=resumable, dropout=0.5)
    again.fit(train_loader())
    assert bits(again) == bits(straight)
