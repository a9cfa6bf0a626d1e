"""A rank that hangs, alive: it cannot be told from a slow one, but a second interrupt ends the wait."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_support import TWO, bits, learner_on, train_loader, valid_loader
from torch.nn import functional as F

from notebook_learner import Learner
from notebook_learner.errors import RankDied
from notebook_learner.ranks import leader

posix = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


def learner_that_hangs(directory: Path, where: str, seconds: float = 600.0, strategy: str = "ddp") -> Learner:
    """On rank 1, at the fifth step of training or the second of validation, the first time."""
    here, flag = os.getpid(), directory / "hangs"
    directory.mkdir()
    seen = {"train": 0, "valid": 0}

    def step(split: str) -> Any:
        def taken(model: Any, batch: Any) -> Any:
            x, y = batch
            seen[split] += 1
            there = split == where and os.getpid() != here and seen[split] == {"train": 5, "valid": 2}[where]
            if there and flag.exists():
                flag.unlink()
                time.sleep(seconds)
            return F.cross_entropy(model(x), y)

        return taken

    def configure(builder: Any) -> None:
        builder._settings.loss, builder._settings.metrics = None, []
        builder.train_step(step("train")).valid_step(step("valid")).keyframes(every=3)
        builder.strategy(strategy)

    flag.touch()
    learner = learner_on(TWO, directory / "run", dropout=0.5, epochs=2, configure=configure)
    torch.manual_seed(5)
    return learner


def interrupted_twice(flag: Path) -> threading.Thread:
    """As a person does who sees that nothing moves."""

    def press() -> None:
        while flag.exists():
            time.sleep(0.05)
        for _ in range(2):
            time.sleep(1.0)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@posix
@pytest.mark.parametrize("where", ["train", "valid"])
@pytest.mark.rounds(1)
def test_a_second_interrupt_ends_the_rank_that_hangs_and_restart_goes_on(where, tmp_path, monkeypatch):
    monkeypatch.setattr(leader, "PATIENCE", 1.0)
    learner = learner_that_hangs(tmp_path / "hanging", where)
    person = interrupted_twice(tmp_path / "hanging" / "hangs")
    with pytest.raises(RankDied, match=r"for 1 s .*after the step was broken off, and was killed"):
        learner.fit(train_loader(), valid_loader())
    person.join()
    learner.devices.restart()
    learner.fit()
    straight = learner_that_hangs(tmp_path / "straight", where, seconds=0.0)
    straight.fit(train_loader(), valid_loader())
    assert bits(learner) == bits(straight)


@posix
@pytest.mark.soak
def test_a_rank_that_was_merely_slow_stays(tmp_path):
    learner = learner_that_hangs(tmp_path / "slow", "train", seconds=4.0)
    person = interrupted_twice(tmp_path / "slow" / "hangs")
    with pytest.raises(KeyboardInterrupt):
        learner.fit(train_loader(), valid_loader())
    person.join()
    assert [each.alive for each in learner.devices] == [True, True]
    learner.fit()
    straight = learner_that_hangs(tmp_path / "straight", "train", seconds=0.0)
    straight.fit(train_loader(), valid_loader())
    assert bits(learner) == bits(straight)
