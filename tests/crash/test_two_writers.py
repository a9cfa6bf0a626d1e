"""Two processes on one directory; `python -m tests.crash.two_writers 200` plays two hundred rounds of it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from rerun_support import a_run_in
from two_writers import Round, digest, play

from notebook_learner import Artifacts


def test_no_save_that_either_of_two_processes_announced_is_lost() -> None:
    wrong, seen = play(3, seed=11, mounts=False)
    assert wrong == [] and seen["rounds"] == 3 and seen["announced"] > 3


def test_a_round_finds_a_save_that_is_gone_and_one_that_has_other_weights(tmp_path: Path) -> None:
    played = Round(tmp_path, random.Random(1), mounts=False)
    a_run_in(played.run, files=True)
    info = Artifacts(played.run).checkpoints[-1]
    weights = digest(Artifacts(played.run).state_dict(info.label))
    played.announced = [("first", info.label, weights)]
    assert played.lost() == []
    played.announced += [("second", info.label, digest({})), ("second", "no such label", weights)]
    assert played.lost() == [f"second: {info.label}", "second: no such label"]
    shutil.rmtree(played.run)
    assert f"first: {info.label}" in played.lost()
