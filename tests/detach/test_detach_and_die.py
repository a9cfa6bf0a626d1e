"""The kernel hands its run over and is killed: the run ends on its own in the bits of a run that was left
alone, and its logs are the same to the byte."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from detach_support import (
    printed_in,
    resumed,
    runs_and_dies,
    until_it_ends,
    values_in,
)
from exactness import Setup, differences, everything, straight
from fleet_support import TWO, learner_on, train_loader, valid_loader

from notebook_learner import Artifacts, Learner, LearnerBuilder

FULL = Setup(seed=None, window=2, scheduler="cycle", clip=True, ema=True, files=True)


def assert_ends_as_the_straight_run(setup: Setup, directory: Path, root: Path) -> None:
    final, written = straight(setup, root / "straight")
    found = list(differences(everything(resumed(setup, directory)), final))
    # Whether workers of an epoch that is over wait for the next one: no process is left that could use them.
    assert [each for each in found if "/warm:" not in each] == []
    assert values_in(directory) == written


@pytest.mark.parametrize(
    ("setup", "steps"),
    [
        (FULL, 3),
        (replace(FULL, seed=7, workers=2, persistent=True), 9),
        (replace(FULL, scheduler="epoch", workers=1, own_generator=True, precision="bf16"), 12),
        (replace(FULL, scheduler="function"), 0),
        (replace(FULL, precision="fp16"), 10),
    ],
    ids=[
        "inside an epoch",
        "in validation, with workers",
        "in the second epoch",
        "at the start",
        "at an end",
    ],
)
@pytest.mark.rounds(1)
def test_a_run_whose_kernel_is_killed_ends_by_itself(setup: Setup, steps: int, tmp_path: Path) -> None:
    pid = runs_and_dies(
        """
        from exactness import Setup
        learner = {setup}.learner(Path({run}))
        if {steps}:
            learner.step({steps})
        report = learner.detach()
        """,
        setup=setup,
        run=str(tmp_path / "run"),
        steps=steps,
    )
    ended = until_it_ends(tmp_path / "run", pid)
    assert (ended.ended, ended.error, ended.num_epochs) == ("finished", "", 2), printed_in(tmp_path / "run")
    assert Artifacts(tmp_path / "run").status == "finished"
    assert_ends_as_the_straight_run(setup, tmp_path / "run", tmp_path)


def on_ranks(directory: Path, resume: bool = False) -> Learner:
    """What it measures it keeps in memory alone."""

    def configure(builder: LearnerBuilder) -> None:
        builder.seed(5).with_file_checkpointer()
        if resume:
            builder.resume()

    return learner_on(TWO, directory, dropout=0.5, configure=configure)


@pytest.mark.soak
def test_so_does_one_with_two_ranks(tmp_path: Path) -> None:
    """The data as `fit` and its like take it; what was measured is in the directory, as elsewhere it would be
    lost with the process."""
    pid = runs_and_dies(
        """
        from fleet_support import train_loader, valid_loader
        from test_detach_and_die import on_ranks
        from notebook_learner import Paused
        learner = on_ranks(Path({run}))
        learner.start(train_loader(), valid_loader())
        learner.pause()
        engines = [each.pid for each in learner.devices][1:]
        report = learner.detach()
        import psutil
        assert not any(map(psutil.pid_exists, engines)), "they were let go"
        """,
        run=str(tmp_path / "run"),
    )
    ended = until_it_ends(tmp_path / "run", pid)
    assert ended.ended == "finished", printed_in(tmp_path / "run")
    straight = on_ranks(tmp_path / "straight")
    straight.fit(train_loader(), valid_loader())
    found, wanted = on_ranks(tmp_path / "run", resume=True), straight.capture().parts
    mine = found.capture().parts
    of_both = ("model", "optimizer", "scheduler", "rng", "loop")
    assert [each for name in of_both for each in differences(mine[name], wanted[name])] == []
    assert (
        list(differences(found.history.snapshot()[-1].finals, straight.history.snapshot()[-1].finals)) == []
    )
    steps = [part.steps for part in Artifacts(tmp_path / "run").history.snapshot()]
    assert steps == [part.steps for part in straight.history.snapshot()]


@pytest.mark.soak
def test_a_run_in_the_background_is_handed_over_too(tmp_path: Path) -> None:
    setup = replace(FULL, seed=7)
    pid = runs_and_dies(
        """
        from exactness import Setup
        learner = {setup}.learner(Path({run}))
        learner.start()
        report = learner.detach() if learner.status != "finished" else None
        """,
        setup=setup,
        run=str(tmp_path / "run"),
    )
    until_it_ends(tmp_path / "run", pid)
    assert_ends_as_the_straight_run(setup, tmp_path / "run", tmp_path)


def test_the_process_is_told_to_end_and_saves_exactly_where_it_stands(tmp_path: Path) -> None:
    """And a new kernel goes on from there."""
    run, setup = tmp_path / "run", replace(FULL, seed=7, files=False)  # without .checkpoints()
    pid = runs_and_dies(
        """
        from exactness import Setup
        from detach_support import Gate
        learner = {setup}.learner(Path({run}))
        learner.step(2)
        gate = learner._supplies.origin.settings.loss = Gate(Path({gate}), after=2)
        learner._supplies.renew()
        report = learner.detach()
        """,
        setup=setup,
        run=str(run),
        gate=str(tmp_path / "open"),
    )
    os.kill(pid, signal.SIGTERM)
    (tmp_path / "open").touch()
    ended = until_it_ends(run, pid)
    assert ended.ended == "stopped", printed_in(run)
    learner = replace(setup, files=True).learner(run, "latest")
    assert 3 <= learner.position.iteration < 7
    learner.fit()
    final, written = straight(setup, tmp_path / "straight")
    assert list(differences(everything(learner), final)) == []
    assert values_in(run) == written


@pytest.mark.soak
def test_of_a_process_that_is_killed_the_last_checkpoint_is_left(tmp_path: Path) -> None:
    run, setup = tmp_path / "run", replace(FULL, seed=7)
    pid = runs_and_dies(
        """
        from exactness import Setup
        from detach_support import Gate
        learner = {setup}.learner(Path({run}))
        learner.step(2)
        gate = learner._supplies.origin.settings.loss = Gate(Path({gate}), after=3)
        learner._supplies.renew()
        report = learner.detach()
        """,
        setup=setup,
        run=str(run),
        gate=str(tmp_path / "open"),
    )
    os.kill(pid, signal.SIGKILL)
    assert until_it_ends(run, pid).ended == ""
    learner = resumed(setup, run)
    assert learner.position.iteration == 2
    learner.fit()
    final, written = straight(setup, tmp_path / "straight")
    assert list(differences(everything(learner), final)) == []
    assert values_in(run) == written
