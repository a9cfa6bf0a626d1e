"""`notebook-learner ctl` in a shell: what it prints, and its exit status."""

from __future__ import annotations

import gc
import json
import subprocess
import sys

import pytest
from remote_support import learner_in

from notebook_learner.command import main


@pytest.fixture
def learner(tmp_path):
    learner = learner_in(tmp_path)
    learner.step(2)
    return learner


def test_it_prints_what_came_of_it(learner, tmp_path, capsys):
    assert main(["ctl", str(tmp_path), "step", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 steps taken, now at epoch 1, train, step 5 of 8")
    assert main(["ctl", str(tmp_path), "set", "lr=0.5", "num_epochs=4"]) == 0
    assert learner.num_epochs == 4
    assert main(["ctl", str(tmp_path), "status"]) == 0
    assert (
        capsys.readouterr().out.splitlines()[-1].startswith("paused at epoch 1, train, step 5 of 8 (of 4 ep")
    )


def test_status_can_be_had_as_json(learner, tmp_path, capsys):
    assert main(["ctl", "--json", str(tmp_path), "status"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["step"], told["num_epochs"]) == ("paused", 2, 2)


def test_a_refusal_is_one_line_on_stderr_and_status_1(learner, tmp_path, capsys):
    learner.fit()
    assert main(["ctl", str(tmp_path), "resume"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("notebook-learner: training is finished")


@pytest.mark.parametrize(
    "words", [["fly"], ["step", "x"], ["step", "0"], ["set"], ["set", "lr"], ["pause", "1"]]
)
def test_a_wrong_command_exits_with_2_before_anybody_is_asked(tmp_path, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["ctl", str(tmp_path / "nowhere"), *words])
    assert caught.value.code == 2
    assert "usage: notebook-learner ctl" in capsys.readouterr().err


def test_where_no_run_is_alive_it_says_so(tmp_path, capsys):
    learner_in(tmp_path).step()
    gc.collect()
    (tmp_path / "empty").mkdir()
    for directory, told in (
        (tmp_path, "no run is alive"),
        (tmp_path / "empty", "holds no run"),
        (tmp_path / "nowhere", "there is no directory"),
        (tmp_path / "experiment.log", "is a file"),
    ):
        assert main(["ctl", str(directory), "pause"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["ctl", "--help"])
    out = capsys.readouterr().out
    for word in (
        "status",
        "pause",
        "resume",
        "step [N]",
        "stop",
        "save",
        "set lr=",
        "set lr[1]=",
        "set num_epochs=",
    ):
        assert f"\n  {word}" in out


def test_it_works_from_a_shell_of_its_own(learner, tmp_path):
    command = [sys.executable, "-m", "notebook_learner.command", "ctl", str(tmp_path), "step"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert learner.position.step == 3
