"""Every verb moves all ranks, and what is taken again gives the same bits."""

from __future__ import annotations

import importlib.util
import os
import time

import pytest
import torch
from fleet_support import TWO, bits, furthest, learner_on, train_loader, valid_loader
from torch import nn
from torch.nn import functional as F

from notebook_learner import LearnerBuilder
from notebook_learner.breakpoint import AtStep
from notebook_learner.errors import ConfigurationError, StateError
from notebook_learner.run.unheard import is_unheard


@pytest.fixture
def straight(tmp_path):
    """The bits of an undisturbed run of two ranks, with dropout on both."""
    learner = learner_on(TWO, tmp_path / "straight", dropout=0.5)
    torch.manual_seed(5)
    learner.fit(train_loader(), valid_loader())
    return bits(learner)


def begun(directory, **options):
    learner = learner_on(TWO, directory, dropout=0.5, **options)
    torch.manual_seed(5)
    return learner


def test_stepping_ends_with_the_bits_of_a_run_that_never_stopped(tmp_path, straight):
    learner = begun(tmp_path / "stepped")
    learner._supplies.use(learner, "train", train_loader())
    learner._supplies.use(learner, "valid", valid_loader())
    for n in (1, 3, 1, 6):
        learner.step(n)
    learner.step_epoch()
    learner.fit()
    assert bits(learner) == straight


def test_rewinding_and_going_on_gives_the_same_bits(tmp_path, straight):
    learner = begun(tmp_path / "rewound", epochs=1)
    learner.fit(train_loader(), valid_loader())
    learner.num_epochs = 3
    learner.step(9)
    assert learner.rewind(4).exact
    learner.step(2)
    assert learner.rewind(to=(1, 3)).exact
    learner.fit()
    assert bits(learner) == straight


def test_a_state_captured_inside_a_window_comes_back_with_every_rank_s_part(tmp_path):
    def run(stops):
        learner = begun(tmp_path / f"window {stops}", epochs=2, configure=lambda b: b.grads_accumulation(3))
        learner._supplies.use(learner, "train", train_loader())
        if stops:
            learner.step(2)
            state = learner.capture()
            learner.step(4)
            learner.restore(state)
        learner.fit()
        return bits(learner)

    assert run(True) == run(False)


def test_a_pause_lands_all_ranks_on_one_step_and_is_not_to_be_seen(tmp_path):
    def run(pauses):
        learner = begun(tmp_path / f"paused {pauses}", epochs=40)
        learner.start(train_loader())
        for _ in range(pauses):
            time.sleep(0.2)
            learner.pause()
            assert {each.step for each in learner.devices} == {learner.position.iteration}
            learner.resume()
        learner.wait()
        return bits(learner)

    run(0)  # engines take seconds to start
    assert run(3) == run(0)


def test_what_a_person_changes_between_steps_holds_on_all_ranks(tmp_path):
    def trained(devices):
        learner = learner_on(devices, tmp_path / str(devices))
        torch.manual_seed(5)
        learner._supplies.use(learner, "train", train_loader())
        learner.step(3)
        learner.optimizer.param_groups[0]["lr"] = 0.5
        with torch.no_grad():
            learner.model.first.weight.data.mul_(0.5)  # unseen by torch's own version counter
        learner.step(3)
        return learner.model

    assert furthest(trained(TWO), trained(None)) < 1e-6


def test_early_stopping_ends_all_ranks_in_the_same_epoch(tmp_path):
    def ended(devices):
        learner = learner_on(
            devices,
            tmp_path / str(devices),
            epochs=30,
            configure=lambda b: b.early_stopping("Loss", patience=1, split="train", min_delta=0.05),
        )
        torch.manual_seed(5)
        learner.fit(train_loader())
        return learner

    one, two = ended(None), ended(TWO)
    assert one.position.epoch < 30
    assert two.position == one.position
    assert furthest(two.model, one.model) < 1e-5


def test_running_statistics_are_those_of_rank_0_on_all_ranks(tmp_path):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    learner = (
        LearnerBuilder(tmp_path)
        .loss(F.cross_entropy)
        .devices(TWO)
        .num_epochs(2)
        .renderer("silent")
        .with_application_logger(False)
        .build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    )
    learner.fit(train_loader(batch_size=26), valid_loader())
    # The mean of the validation, measured in two processes, is that of this process's model alone.
    measured = learner.history.snapshot()[-1].finals["Loss"]
    x, y = valid_loader().dataset.tensors
    model.eval()
    assert measured == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-5)


class SlowElsewhere(nn.Module):
    """Takes a twentieth of a second a step in every process but the one that it was made in."""

    def __init__(self):
        super().__init__()
        self.layer, self.home = nn.Linear(10, 3), os.getpid()

    def forward(self, x):
        if os.getpid() != self.home:
            time.sleep(0.05)
        return self.layer(x)


@pytest.mark.parametrize("cut", [True, False], ids=["each cuts its part", "rank 0 hands out"])
def test_who_holds_the_others_up_is_told_by_the_pace_that_is_its_own(tmp_path, cut):
    model = SlowElsewhere()
    builder = LearnerBuilder(tmp_path).loss(F.cross_entropy).devices(TWO).num_epochs(2).renderer("silent")
    learner = builder.build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [each.rate for each in learner.devices] == [None]
    batches = train_loader()
    learner._supplies.use(learner, "train", batches if cut else (batch for batch in list(batches)))
    learner.step(6)
    first, other = learner.devices
    assert other.rate < 20 < 2 * 20 < first.rate
    assert "steps/s" in repr(learner.devices) and f"{other.rate:.3g}" in repr(learner.devices)


def test_a_breakpoint_stops_all_ranks_before_its_step(tmp_path):
    learner = begun(tmp_path, configure=lambda b: b.break_on(AtStep(5)))
    learner._supplies.use(learner, "train", train_loader())
    report = learner.step_epoch()
    assert (report.why, learner.position.step) == ("breakpoint", 4)
    assert [each.step for each in learner.devices] == [4, 4]
    learner.step(1)
    assert [each.step for each in learner.devices] == [5, 5]


def test_a_look_at_a_step_leaves_all_ranks_as_they_were(tmp_path, straight):
    learner = begun(tmp_path / "inspected")
    learner._supplies.use(learner, "train", train_loader())
    learner._supplies.use(learner, "valid", valid_loader())
    learner.step(4)
    learner.inspect("next")
    learner.fit()
    assert bits(learner) == straight


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cpu", "cuda:0"], "all CUDA devices, or all 'cpu'"),
        ([], "give at least one device"),
        (["cpu", "nowhere"], "torch knows no such device"),
    ],
)
def test_devices_that_cannot_train_together_are_refused(tmp_path, devices, said):
    with pytest.raises(ConfigurationError, match=said):
        learner_on(devices, tmp_path)


def test_packages_that_are_missing_are_named_with_the_line_that_installs_them(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "ipyparallel" else found(name, *more)
    )
    with pytest.raises(ConfigurationError, match=r"pip install 'notebook_learner\[devices\]'"):
        learner_on(TWO, tmp_path)


def test_one_device_is_this_process_alone(tmp_path):
    learner = learner_on(["cpu"], tmp_path)
    learner.fit(train_loader())
    assert [each.rank for each in learner.devices] == [0]
    with pytest.raises(StateError, match="this learner has one device"):
        learner.devices.restart()


def test_steps_that_are_taken_again_are_silent_on_every_rank(tmp_path):
    noted = tmp_path / "noted"

    def talking(output, targets):
        with noted.open("a") as file:
            file.write("s" if is_unheard() else "h")
        return F.cross_entropy(output, targets)

    learner = begun(tmp_path / "silent", epochs=1, configure=lambda b: b.loss(talking))
    learner._supplies.use(learner, "train", train_loader())
    learner.step(3)
    assert learner.rewind(1).replayed == 2
    learner.step(1)
    assert noted.read_text() == "h" * 2 * 3 + "s" * 2 * 2 + "h" * 2
