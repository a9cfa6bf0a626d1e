"""`verify` finds every wrong byte and says what to do; `repair` puts right what can be."""

import json
import os
import time

import h5py
import numpy as np
import pytest
import torch
from artifacts_run import Run, finished, net
from torch import nn
from torch.optim import SGD

from notebook_learner import LearnerBuilder
from notebook_learner.artifacts import Artifacts
from notebook_learner.artifacts.verification import Report
from notebook_learner.errors import StoreError
from notebook_learner.remote.owner import DirectoryLock


@pytest.fixture
def run(tmp_path):
    made, _ = finished(tmp_path / "run")
    return made


def aged(directory):
    """As if nothing had been written for a while."""
    for path in directory.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1e9, 1e9))
    return Artifacts(directory)


def one_problem(report):
    assert not report
    (problem,) = report.problems
    assert f"! {problem}" in str(report)
    return problem


def test_a_sound_run_is_clean(run):
    report = aged(run.directory).verify()
    assert report, report
    assert "2 of 2 checkpoints complete" in str(report)
    assert "2 epochs and 12 training steps" in str(report)


@pytest.mark.parametrize("part", ["model", "optim", "scheduler", "state"])
def test_a_flipped_bit_in_a_checkpoint_is_found(run, part):
    path = run.directory / "checkpoint" / f"{part}-2.h5"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    assert path.name in one_problem(Artifacts(run.directory).verify())


def test_a_missing_part_is_found(run):
    (run.directory / "checkpoint" / "optim-1.h5").unlink()
    assert "optim-1.h5: it is missing" in one_problem(Artifacts(run.directory).verify())


def test_leftovers_are_found_and_cleared_away(run):
    left = run.directory / "checkpoint" / ".model-3.h5.0123abcd.tmp"
    left.write_bytes(b"half")
    artifacts = aged(run.directory)
    assert left.name in one_problem(artifacts.verify())
    report = artifacts.repair()
    assert report, report
    assert any(left.name in note for note in report.notes)
    assert not left.exists()


def test_half_a_line_is_found_and_cut_off(run):
    log = run.directory / "valid" / "epoch-2" / "Loss.log"
    whole = log.read_bytes()
    log.write_bytes(whole + b"0.12")
    artifacts = aged(run.directory)
    assert "half a line" in one_problem(artifacts.verify())
    assert artifacts.repair()
    assert log.read_bytes() == whole


@pytest.mark.parametrize("damage", ["missing", "cut", "header", "foreign"])
def test_artifacts_h5_is_made_anew(run, damage):
    path = run.directory / "artifacts.h5"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-100])
    elif damage == "header":
        path.write_bytes(data[:60] + b"?" + data[61:])
    else:
        path.write_bytes(b"not ours")
    artifacts = aged(run.directory)
    assert "artifacts.h5" in one_problem(artifacts.verify())
    assert artifacts.repair()
    assert artifacts.verify()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["series/train/Loss/value"], run.history.values("Loss", "train"))
        assert set(file["checkpoints"]) == {"1", "2"}


def test_the_best_checkpoints_run_is_known_after_artifacts_h5_is_lost(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    about = Artifacts(tmp_path).run.to_json()
    commit = run.folder.commit
    run.folder.commit = lambda label, parts, told: commit(label, parts, {**told, "run": about})
    run.save("1", net())
    (tmp_path / "artifacts.h5").unlink()
    assert Artifacts(tmp_path).run.to_json() == about
    assert Artifacts(tmp_path).metrics("train")[1] == "Top-1 Accuracy"


def test_links_that_leave_the_directory_are_reported_and_not_followed(run, tmp_path):
    secret = tmp_path / "secret.log"
    secret.write_text("1,2\n")
    (run.directory / "train" / "epoch-1" / "Secret.log").symlink_to(secret)
    artifacts = aged(run.directory)
    report = artifacts.verify()
    assert any("Secret.log is a link that leads out" in problem for problem in report.problems)
    assert "Secret" not in artifacts.metrics("train")


def test_a_checkpoint_folder_that_leads_elsewhere_is_reported(tmp_path):
    finished(tmp_path / "a")
    made, _ = finished(tmp_path / "b")
    for path in (made.directory / "checkpoint").iterdir():
        path.unlink()
    (made.directory / "checkpoint").rmdir()
    (made.directory / "checkpoint").symlink_to(tmp_path / "a" / "checkpoint")
    report = Artifacts(made.directory).verify()
    assert any("leads out" in problem for problem in report.problems)


def test_nothing_is_repaired_while_a_run_lives(run):
    lock = DirectoryLock(run.directory)
    assert lock.take()
    log = run.directory / "train" / "epoch-1" / "Loss.log"
    log.write_bytes(log.read_bytes() + b"0.1")
    with pytest.raises(StoreError, match="running process"):
        Artifacts(run.directory).repair()
    assert log.read_bytes().endswith(b"0.1")
    lock.close()
    assert Artifacts(run.directory).repair()


def test_a_line_being_written_this_moment_is_no_problem(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    log = tmp_path / "train" / "epoch-1" / "Loss.log"
    log.write_bytes(log.read_bytes() + b"0.1")
    os.utime(log, (time.time(), time.time()))
    assert Artifacts(tmp_path).verify()


def test_verifying_writes_nothing(run):
    before = {path: path.stat().st_mtime_ns for path in run.directory.rglob("*")}
    Artifacts(run.directory).verify()
    assert {path: path.stat().st_mtime_ns for path in run.directory.rglob("*")} == before


def test_a_report_in_html_is_escaped():
    assert "<b>" not in Report("verify", "<b>", (), ("<b>",))._repr_html_()


def test_logs_behind_a_link_that_leaves_the_directory_are_not_touched(tmp_path):
    finished(tmp_path / "other")
    made, _ = finished(tmp_path / "run")
    outside = tmp_path / "other" / "train"
    log = outside / "epoch-1" / "Loss.log"
    log.write_bytes(log.read_bytes() + b"0.1")
    before = log.read_bytes()
    for path in (made.directory / "train").rglob("*.log"):
        path.unlink()
    for path in [*(made.directory / "train").iterdir(), made.directory / "train"]:
        path.rmdir()
    (made.directory / "train").symlink_to(outside)
    assert not Artifacts(made.directory).repair()
    assert log.read_bytes() == before


# The state that a run began with, and what it has left -------------------------------------------------


@pytest.fixture
def branched(tmp_path):
    """The directory of a run that has left two branches, the second one of its first."""
    builder = LearnerBuilder(tmp_path / "run").num_epochs(3).renderer("silent").with_file_checkpointer()
    model = net()
    data = [(torch.randn(4, 4), torch.randint(2, (4,))) for _ in range(4)]
    builder.loss(nn.functional.cross_entropy)
    learner = builder.build(model, SGD(model.parameters(), lr=0.1), None, data)
    learner.fit()
    for rate in (0.2, 0.3):
        learner.rewind(to=6)
        learner.optimizer.param_groups[0]["lr"] = rate
        learner.fit()
    assert len(learner.branches) == 2
    return learner.artifacts.directory


def test_a_run_with_branches_is_clean(branched):
    report = aged(branched).verify()
    assert report, report
    assert "start: 1 of 1 states complete" in str(report)
    assert "2 branches that it has left" in str(report)


def test_a_flipped_bit_in_the_state_that_a_run_began_with_is_found(branched):
    path = next(branched.glob("start/model-*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    assert f"start/{path.name}" in one_problem(aged(branched).verify())


def test_a_damaged_branch_is_found(branched):
    (branched / "branches" / "2" / "branch.json").write_text("{")
    assert "branches/2/branch.json" in one_problem(aged(branched).verify())


def test_a_branch_whose_parent_is_gone_is_found(branched):
    about = branched / "branches" / "2" / "branch.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "parent": "7"}))
    assert "branch 7 of the run is not there" in one_problem(aged(branched).verify())


def test_half_a_line_in_the_log_of_a_branch_is_found_and_cut_off(branched):
    path = next(branched.glob("branches/1/train/epoch-*/Loss.log"))
    whole = path.read_bytes()
    path.write_bytes(whole + b"0.25,")
    problem = one_problem(aged(branched).verify())
    assert "branches/1" in problem and "half a line" in problem
    report = aged(branched).repair()
    assert report and path.read_bytes() == whole


def test_leftovers_beside_the_state_that_a_run_began_with_are_cleared_away(branched):
    left = branched / "start" / ".model-3.h5.0123abcd.tmp"
    left.write_bytes(b"half")
    assert "belongs to no checkpoint" in one_problem(aged(branched).verify())
    assert aged(branched).repair() and not left.exists()


def test_a_branch_that_leads_elsewhere_is_reported_and_not_touched(branched, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (branched / "branches" / "1").rename(elsewhere)
    (branched / "branches" / "1").symlink_to(elsewhere)
    log = next(elsewhere.glob("train/epoch-*/Loss.log"))
    log.write_bytes(log.read_bytes() + b"0.25,")
    before = log.read_bytes()
    assert any("leads out of the run's directory" in each for each in aged(branched).verify().problems)
    aged(branched).repair()
    assert log.read_bytes() == before
