"""A run that is taken back stands exactly where its process stood, and ends in the straight run's bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from detach_support import (
    Gate,
    Held,
    interrupted_inside,
    printed_in,
    steered,
    until_it_ends,
    values_in,
    waiting,
    waits_for,
)
from exactness import STEPS, Setup, differences, disturb, everything, straight

from notebook_learner import BusyError, Learner, Paused, StateError
from notebook_learner.remote import control

FULL = Setup(seed=None, window=2, scheduler="cycle", clip=True, ema=True)
Owned = Callable[[Learner], Learner]


def gated(learner: Learner, gate: Path, after: int) -> Learner:
    """In a process of its own it waits after so many batches."""
    loaders: Any = learner._supplies
    loaders.settings.loss = Gate(gate, after)
    loaders.renew()
    return learner


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.rounds(1)
def test_taken_back_inside_an_epoch_it_goes_on_to_the_same_bits(
    workers: int, tmp_path: Path, owned: Owned
) -> None:
    setup = replace(FULL, workers=workers, persistent=workers > 0)
    final, written = straight(setup, tmp_path / "straight")
    run = tmp_path / "run"
    learner = owned(gated(setup.learner(run), tmp_path / "open", after=2))
    learner.step(2)
    report = learner.detach()
    assert (report.position.step, report.pid != os.getpid()) == (2, True)
    disturb()
    verbs = (learner.fit, learner.step, learner.start, learner.pause, learner.stop, learner.save)
    for verb in (*verbs, lambda: learner.restore("latest")):
        with pytest.raises(BusyError, match=rf"goes on in process {report.pid}.*learner\.take_back\(\)"):
            verb()  # type: ignore[operator]
    with pytest.raises(BusyError):
        learner.num_epochs = 5
    assert learner.position.step == 2 and len(learner.history["train", "Loss"]) == 2
    assert learner.artifacts.directory == run
    with pytest.raises(BusyError, match="goes on in process"):
        learner.detach()

    waits_for(waiting(tmp_path / "open").exists)
    assert "running at epoch 1, train, step 4 of 7" in steered(run, "status")
    (tmp_path / "open").touch()
    back = learner.take_back()
    assert (back.pid, back.told) == (report.pid, ""), printed_in(run)
    assert back.position.iteration >= 4 and learner.position == back.position
    assert learner.status in ("paused", "finished")
    learner.fit()
    assert list(differences(everything(learner), final)) == []
    assert values_in(run) == written
    assert len(learner.history["train", "Loss"]) == 14


def test_a_run_with_samples_is_handed_over_and_shows_them_again_here(tmp_path: Path, owned: Owned) -> None:
    final, written = straight(FULL, tmp_path / "straight")
    learner = owned(gated(replace(FULL, samples=True).learner(tmp_path / "run"), tmp_path / "open", after=2))
    learner.step(2)
    learner.detach()
    (tmp_path / "open").touch()
    learner.take_back()
    learner.fit()
    assert list(differences(final, everything(learner))) == []
    assert [sheet.name for sheet in learner.history.sheets][-1] == "Samples"
    assert written == values_in(tmp_path / "run")


def test_a_run_that_was_steered_there_is_so_here(tmp_path: Path, owned: Owned) -> None:
    run = tmp_path / "run"
    learner = owned(gated(replace(FULL, seed=7, scheduler="none").learner(run), tmp_path / "open", after=1))
    learner.detach()
    (tmp_path / "open").touch()
    steered(run, "pause")
    assert "lr is 0.25" in steered(run, "set", "lr=0.25", "num_epochs=3")
    before = steered(run, "status")
    steered(run, "step", "2")
    assert before != steered(run, "status")
    assert learner.take_back().told == ""
    assert learner.num_epochs == 3
    assert [group["lr"] for group in learner.optimizer.param_groups] == [0.25]
    learner.fit()
    assert learner.position.epoch == 3 and steered(run, "status").startswith("finished")


@pytest.mark.soak
def test_resumed_and_stopped_through_its_socket_it_saves_where_it_stands(
    tmp_path: Path, owned: Owned
) -> None:
    setup, run = replace(FULL, seed=7), tmp_path / "run"
    final, written = straight(setup, tmp_path / "straight")
    learner = owned(gated(setup.learner(run), tmp_path / "open", after=3))
    learner.detach()
    (tmp_path / "open").touch()
    steered(run, "pause")
    steered(run, "resume")
    steered(run, "stop")
    ended = until_it_ends(run)
    assert ended.ended in ("stopped", "finished")
    assert learner.take_back().told == f"which had ended ({ended.ended})"
    learner.fit()
    assert list(differences(everything(learner), final)) == []
    assert values_in(run) == written


@pytest.mark.soak
def test_back_and_forth(tmp_path: Path, owned: Owned) -> None:
    setup, run, gate = FULL, tmp_path / "run", tmp_path / "open"
    final, written = straight(setup, tmp_path / "straight")
    learner = owned(gated(setup.learner(run), gate, after=2))
    learner.detach()
    waits_for(waiting(gate).exists)
    gate.touch()
    learner.take_back()
    learner.step()
    assert learner.rewind().exact
    learner.detach()
    until_it_ends(run)
    assert learner.take_back().told == "which had ended (finished)"
    assert learner.status == "finished"
    assert list(differences(everything(learner), final)) == []
    assert values_in(run) == written


def test_of_a_killed_process_it_takes_the_last_checkpoint_and_says_so(tmp_path: Path, owned: Owned) -> None:
    setup, run = FULL, tmp_path / "run"
    final, written = straight(setup, tmp_path / "straight")
    learner = owned(gated(setup.learner(run), tmp_path / "open", after=4))
    learner.step(2)
    report = learner.detach()
    waits_for(waiting(tmp_path / "open").exists)
    os.kill(report.pid, signal.SIGKILL)
    back = learner.take_back()
    assert back.told == "which was killed by SIGKILL, so this is its last checkpoint"
    assert back.position.step == 2
    learner.fit()
    assert list(differences(everything(learner), final)) == []
    assert values_in(run) == written


def test_an_error_there_is_in_the_log_and_the_learner_stands_before_that_step(
    tmp_path: Path, owned: Owned
) -> None:
    from notebook_learner import LearnerBuilder

    run = tmp_path / "run"
    learner = owned(failing(LearnerBuilder(run), at=4))
    learner.step(2)
    report = learner.detach()  # it takes the third
    ended = until_it_ends(run, report.pid)
    assert (ended.ended, ended.error) == ("failed", "ZeroDivisionError: the fourth")
    assert "ZeroDivisionError: the fourth" in printed_in(run)
    assert "ERROR failed at epoch 1, train, step 3" in (run / "experiment.log").read_text("utf-8")
    back = learner.take_back()
    assert "which had failed (ZeroDivisionError: the fourth)" in str(back)
    assert learner.position.step == 3
    assert learner.step().steps == 1  # here nothing fails


def failing(builder: Any, at: int) -> Learner:
    import torch
    from torch.nn import functional as F

    home, model, steps = os.getpid(), torch.nn.Linear(3, 2), []

    def step(model: Any, batch: Any) -> Any:
        from notebook_learner import ClassificationOutput

        x, y = batch
        steps.append(1)
        if os.getpid() != home and len(steps) == at:
            raise ZeroDivisionError("the fourth")
        output = model(x)
        return ClassificationOutput(F.cross_entropy(output, y), output, y)

    batches = [(torch.ones(2, 3), torch.tensor([0, 1]))] * 6
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner: Learner = builder.train_step(step).renderer("silent").build(model, optimizer, None, batches)
    return learner


@pytest.mark.soak
def test_a_wait_that_is_interrupted_can_be_taken_up_again(tmp_path: Path, owned: Owned) -> None:
    run = tmp_path / "run"
    learner = owned(gated(FULL.learner(run), tmp_path / "open", after=1))
    learner.detach()

    waits_for(waiting(tmp_path / "open").exists)
    button = interrupted_inside(Learner.take_back)
    with pytest.raises(Paused, match="not waiting any more for process"):
        learner.take_back()
    button.join()
    (tmp_path / "open").touch()
    assert learner.take_back().told in ("", "which had ended (stopped)")
    learner.fit()
    assert learner.status == "finished"


@pytest.mark.parametrize(
    "words", [("set", "lr=0.25", "num_epochs=3"), ("step",), ("pause",), ("save",), ("stop",)]
)
@pytest.mark.rounds(1)
def test_a_process_that_writes_its_end_down_refuses_what_would_be_lost(
    words: tuple[str, ...], tmp_path: Path, owned: Owned
) -> None:
    run, gate, disk = tmp_path / "run", tmp_path / "open", tmp_path / "disk"
    setup = replace(FULL, seed=7, scheduler="none")
    learner = owned(gated(setup.learner(run), gate, after=STEPS - 1))
    learner._supplies.origin.settings.recorder = Held(disk)
    learner.detach()
    waits_for(waiting(gate).exists)
    gate.touch()
    waits_for(waiting(disk).exists)
    waits_for(lambda: steered(run, "status").startswith("finished"))
    answer = control(run, *words)
    assert (answer.ok, "the run is over here" in answer.text) == (False, True), answer
    disk.touch()
    learner.take_back()
    assert learner.num_epochs == 2
    assert [group["lr"] for group in learner.optimizer.param_groups] == [0.02]


def test_there_is_nothing_to_take_back_from_here(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"this learner's run goes on here; fit\(\) trains on"):
        FULL.learner(tmp_path).take_back()
