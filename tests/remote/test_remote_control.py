"""A run steered by another process: in a blocking fit, in the background, and to the same bits."""

from __future__ import annotations

import time

import pytest
import torch
from remote_support import (
    STEPS,
    Brake,
    file_in,
    in_a_thread,
    learner_in,
    log_of,
    other_process,
    same_bits,
    straight_weights,
    waits_for,
    weights,
)

from notebook_learner import Paused
from notebook_learner.breakpoint import NonFinite
from notebook_learner.remote import control
from notebook_learner.remote.server import RemoteControl

WITHIN = 5.0
"""Seconds; measured on two cores: below 0.1. The bound is for machines that are busy with other things."""


@pytest.fixture(scope="module")
def other():
    with other_process() as process:
        yield process


def quick_steps() -> None:
    time.sleep(0.005)


def held_before(step, directory):
    """A learner that trains in the background and waits in one of its steps, and the brake that holds it."""
    brake = Brake(at=step)
    learner = learner_in(directory, each_step=brake.step)
    learner.start()
    assert brake.reached.wait(60)
    return learner, brake


def frees_once_asked(learner, brake):
    """On a busy machine the request may be slower than the whole training."""
    waits_for(lambda: learner._replica.loop.control.wanted)
    brake.free.set()


def asks_while_it_trains(other, directory, *words):
    """From a thread, while this one is blocked in `fit`."""

    def ask():
        waits_for(file_in(directory).exists)
        return other.asks(directory, *words)

    return in_a_thread(ask)


# Pause, step, resume, stop -----------------------------------------------------------------------------


def test_pause_ends_a_blocking_fit_and_the_bits_are_those_of_the_straight_run(tmp_path, other):
    brake = Brake(at=20)
    learner = learner_in(tmp_path / "steered", epochs=40, each_step=brake.step)

    def asks_at_the_brake():
        assert brake.reached.wait(60)
        return other.asks(tmp_path / "steered", "pause")

    told = in_a_thread(asks_at_the_brake)
    in_a_thread(lambda: frees_once_asked(learner, brake))
    with pytest.raises(Paused):
        learner.fit()
    answer = told()
    assert answer.ok and answer.text == f"paused at {learner.position}"
    assert answer.seconds < WITHIN
    assert learner.status == "paused" and learner.position.epoch < 40

    at = learner.position.iteration
    assert other.asks(tmp_path / "steered", "step", "3").text.startswith("3 steps taken")
    assert learner.position.iteration == at + 3
    assert other.asks(tmp_path / "steered", "resume").ok
    learner.wait()
    assert same_bits(weights(learner.model), straight_weights(tmp_path / "straight", epochs=40))


def test_a_background_training_is_paused_resumed_and_stopped(tmp_path, other):
    learner = learner_in(tmp_path / "steered", epochs=60, each_step=quick_steps)
    learner.start()
    waits_for(file_in(tmp_path / "steered").exists)
    for words, status in (
        ("pause", "paused"),
        ("resume", "running"),
        ("stop", "stopped"),
        ("resume", "running"),
        ("pause", "paused"),
        ("stop", "stopped"),
    ):
        answer = other.asks(tmp_path / "steered", words)
        assert answer.ok and answer.seconds < WITHIN
        assert learner.status == status
    assert learner.position.epoch < 60
    learner.fit()
    assert same_bits(weights(learner.model), straight_weights(tmp_path / "straight", epochs=60))


def test_pause_is_answered_at_the_very_boundary_that_is_next(tmp_path, other):
    learner, brake = held_before(4, tmp_path)
    told = in_a_thread(lambda: other.asks(tmp_path, "pause"))
    frees_once_asked(learner, brake)
    assert told().ok
    assert learner.position.step == 4 == brake.steps


def test_save_holds_the_training_for_a_moment_and_gives_the_label(tmp_path, other):
    learner = learner_in(tmp_path / "steered", epochs=30, each_step=quick_steps)
    told = asks_while_it_trains(other, tmp_path / "steered", "save")
    learner.fit()
    label = told().text.removeprefix("saved as ")
    assert [info.label for info in learner.checkpoints if info.kind == "manual"] == [label]
    assert same_bits(weights(learner.model), straight_weights(tmp_path / "straight", epochs=30))


# Status ------------------------------------------------------------------------------------------------


def test_status_is_answered_in_the_middle_of_a_step(tmp_path, other):
    learner, brake = held_before(6, tmp_path)
    answer = other.asks(tmp_path, "status")
    brake.free.set()
    learner.wait()
    assert answer.ok and answer.text.startswith("running at epoch 1, train, step ")
    assert answer.facts["status"] == "running"
    assert answer.facts["epoch"] == 1 and answer.facts["num_epochs"] == 2
    assert answer.facts["total"] == STEPS
    waits_for(lambda: any("remote control" in line and "status" in line for line in log_of(tmp_path)))


def test_status_tells_the_last_values_and_the_process(tmp_path, other):
    learner = learner_in(tmp_path)
    learner.step(3)
    facts = other.asks(tmp_path, "status").facts
    assert facts["metrics"]["train"]["Loss"] == learner.history["train", "Loss"][-1]
    assert facts["step"] == facts["iteration"] == 3
    with open(f"/proc/{facts['pid']}/comm") as mine, open("/proc/self/comm") as comm:
        assert mine.read() == comm.read()


# Set ---------------------------------------------------------------------------------------------------


def test_a_rate_set_from_elsewhere_is_the_rate_from_the_next_step_on(tmp_path, other):
    learner = learner_in(tmp_path / "steered")
    learner.step(5)
    answer = other.asks(tmp_path / "steered", "set", "lr=0.5", "num_epochs=3")
    assert answer.ok
    assert answer.text == "trains up to epoch 3; lr is 0.5 from epoch 1, train, step 5 of 8 on"
    learner.fit()

    by_hand = learner_in(tmp_path / "by hand", epochs=3)
    by_hand.step(5)
    by_hand.optimizer.param_groups[0]["lr"] = 0.5
    assert same_bits(weights(learner.model), weights(by_hand.fit()))


def test_what_was_set_while_it_trains_stays_when_a_later_step_fails(tmp_path, other):
    broken = [False]

    def step() -> None:
        time.sleep(0.005)
        if broken[0]:
            raise RuntimeError("boom")

    learner = learner_in(tmp_path, epochs=100, each_step=step)
    learner.start()
    waits_for(file_in(tmp_path).exists)
    assert other.asks(tmp_path, "set", "lr=0.125").ok
    broken[0] = True
    with pytest.raises(RuntimeError, match="boom") as caught:
        learner.wait()
    assert learner.optimizer.param_groups[0]["lr"] == 0.125, "not taken back with the failed step"
    assert not any("drifted" in note for note in getattr(caught.value, "__notes__", ()))


def test_a_schedule_that_may_set_it_anew_is_told_of(tmp_path, other):
    learner = learner_in(tmp_path, scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    learner.step()
    assert other.asks(tmp_path, "set", "lr=0.5").text.endswith(
        "; the schedule (StepLR) may set it anew when it moves"
    )


@pytest.mark.parametrize("change", ["lr[1]=0.5", "num_epochs=1"])
def test_what_cannot_be_set_changes_nothing(tmp_path, other, change):
    learner = learner_in(tmp_path)
    learner.step(STEPS + 1)
    answer = other.asks(tmp_path, "set", "lr=0.5", change)
    assert not answer.ok
    assert learner.optimizer.param_groups[0]["lr"] == 0.02
    assert learner.num_epochs == 2
    assert " refused: " in log_of(tmp_path)[-1]


def test_one_group_is_set_alone_and_a_tensor_stays_the_same(tmp_path):
    learner = learner_in(tmp_path)
    learner.step()
    groups = learner.optimizer.param_groups
    groups[0]["lr"] = rate = torch.tensor(0.02)
    groups.append({**groups[0], "params": [], "lr": 0.02})
    assert control(tmp_path, "set", "lr[1]=0.25", "lr=0.5")
    assert groups[0]["lr"] is rate and float(rate) == 0.5
    assert groups[1]["lr"] == 0.25


# Refused, and the log ------------------------------------------------------------------------------------


def test_steps_taken_back_and_a_checkpoint_restored_from_elsewhere_end_in_the_straight_run_s_bits(
    tmp_path, other
):
    straight = straight_weights(tmp_path / "straight")
    run = tmp_path / "steered"
    learner = learner_in(run)
    learner.step(2)
    assert other.asks(run, "save").text == "saved as 1-2"
    assert other.asks(run, "step", "4").ok and learner.position.step == 6
    assert "exact" in other.asks(run, "rewind", "3").text and learner.position.step == 3
    assert "exact" in other.asks(run, "rewind_to", "1").text and learner.position.step == 1
    assert other.asks(run, "restore", "1-2").text == "restored 1-2" and learner.position.step == 2
    assert other.asks(run, "step_epoch").ok and learner.position.epoch == 2
    assert other.asks(run, "rewind", "1").ok and learner.position.split == "train", "no step of validation"
    learner.fit()
    assert same_bits(weights(learner.model), straight)


def test_a_breakpoint_is_switched_and_a_step_inspected_from_elsewhere(tmp_path, other):
    learner = learner_in(tmp_path, configure=lambda builder: builder.break_on(NonFinite()))
    learner.step(1)
    name = str(next(iter(learner.breakpoints)).name)
    assert other.asks(tmp_path, "breakpoint", name, "off").text.endswith("is off")
    assert [each.on for each in learner.breakpoints] == [False]
    assert other.asks(tmp_path, "breakpoint", "none.of.that.name", "on").text.startswith(
        "there is no breakpoint"
    )
    assert other.asks(tmp_path, "inspect", "0").text.startswith("inspected at epoch 1, train")


def test_a_run_that_trains_takes_no_steps_by_hand_and_resumes_no_second_time(tmp_path, other):
    learner = learner_in(tmp_path, epochs=1000, each_step=quick_steps)
    learner.start()
    waits_for(file_in(tmp_path).exists)
    step, resume = other.asks(tmp_path, "step"), other.asks(tmp_path, "resume")
    learner.stop()
    assert not step.ok and "already under way" in step.text
    assert not resume.ok and resume.text == "it is running already"


def test_a_finished_run_is_told_how_to_go_on(tmp_path, other):
    learner = learner_in(tmp_path)
    learner.fit()
    refused = other.asks(tmp_path, "resume")
    assert not refused.ok and "set num_epochs" in refused.text
    assert other.asks(tmp_path, "set", "num_epochs=3").ok
    assert other.asks(tmp_path, "resume").ok
    learner.wait()
    assert learner.position.epoch == 3


def test_an_error_in_a_step_is_told_and_the_learner_stands_before_it(tmp_path, other):
    def fails() -> None:
        raise RuntimeError("no\nbatch")

    learner = learner_in(tmp_path)
    learner.step()
    learner._replica.loop.passes["train"].step.function = lambda batch: fails()
    answer = other.asks(tmp_path, "step")
    assert (answer.ok, answer.text) == (False, "RuntimeError: no batch")
    assert learner.status == "failed" and learner.position.step == 1


def test_every_command_is_in_the_log_before_what_comes_of_it(tmp_path, other):
    learner = learner_in(tmp_path, epochs=1000, each_step=quick_steps)
    learner.start()
    waits_for(file_in(tmp_path).exists)
    for words in (["save"], ["set", "lr=0.25"], ["pause"], ["step", "2"], ["resume"], ["stop"]):
        assert other.asks(tmp_path, *words).ok
    lines = log_of(tmp_path)
    who = f"INFO  remote control by {_me()} (pid {other.pid}): "
    asked = [line.removeprefix(who) for line in lines if line.startswith(who)]
    assert asked == ["save", "set lr=0.25", "pause", "step 2", "resume", "stop"]
    for word, outcome in (("pause", "paused at"), ("stop", "stopped at")):
        assert lines[lines.index(who + word) + 1].startswith(f"INFO  {outcome}")


def _me() -> str:
    import os
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def test_whoever_knocks_as_soon_as_the_door_is_there_meets_the_learner(tmp_path, other, monkeypatch):
    """Before the call that opened the run has come to its end."""
    answers = []
    opened = RemoteControl._open

    def open_and_be_asked(self):
        opened(self)
        answers.append(other.asks(tmp_path, "status"))

    monkeypatch.setattr(RemoteControl, "_open", open_and_be_asked)
    learner = learner_in(tmp_path)
    learner.step()

    assert [told.ok for told in answers] == [True], answers
