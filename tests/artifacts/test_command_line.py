"""`notebook-learner` in a shell: what it prints, and its exit status."""

import subprocess
import sys

import h5py
import pytest
from artifacts_run import Run, finished

from notebook_learner.command import main


@pytest.fixture
def runs(tmp_path):
    finished(tmp_path / "good")
    finished(tmp_path / "deep" / "bad")
    (tmp_path / "data" / "train").mkdir(parents=True)  # not every folder of this name is a run's
    (tmp_path / "deep" / "bad" / "checkpoint" / "model-2.h5").unlink()
    return tmp_path


def test_ls_lists_the_runs_below_a_directory(runs, capsys):
    assert main(["ls", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "status", "epochs", "best", "loss", "checkpoints", "size"]
    assert [line.split()[:4] for line in lines[2:]] == [
        [str(runs / "deep" / "bad"), "finished", "2", "0.5000"],
        [str(runs / "good"), "finished", "2", "0.5000"],
    ]


def test_ls_of_a_directory_without_runs_says_so(tmp_path, capsys):
    assert main(["ls", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no runs\n"


def test_show_tells_settings_epochs_and_checkpoints(runs, capsys):
    assert main(["show", str(runs / "good")]) == 0
    out = capsys.readouterr().out
    assert "Net · 23 parameters" in out
    assert "end of epoch 2" in out


def test_verify_exits_with_1_where_there_is_damage(runs, capsys):
    assert main(["verify", str(runs / "good")]) == 0
    assert "clean" in capsys.readouterr().out
    assert main(["verify", str(runs / "good"), str(runs / "deep" / "bad")]) == 1
    assert "model-2.h5" in capsys.readouterr().out


def test_repair_makes_a_missing_artifacts_h5(runs, capsys):
    path = runs / "good" / "artifacts.h5"
    path.unlink()
    assert main(["repair", str(runs / "good")]) == 0
    assert "made again" in capsys.readouterr().out
    assert h5py.is_hdf5(path)


def test_export_writes_a_file_and_refuses_to_overwrite_it(runs, tmp_path, capsys):
    target = tmp_path / "out.h5"
    assert main(["export", str(runs / "good"), str(target)]) == 0
    assert h5py.is_hdf5(target)
    assert main(["export", str(runs / "good"), str(target)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("notebook-learner: ")
    assert main(["export", str(runs / "good"), str(target), "--overwrite"]) == 0


def test_compare_prints_a_column_a_run(runs, capsys):
    assert main(["compare", str(runs / "good"), str(runs / "deep" / "bad")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["run", "good", "deep/bad"]
    assert ["valid", "Loss", "best", "0.5000", "0.5000"] in lines


def test_an_error_is_one_line_on_stderr(tmp_path, capsys):
    assert main(["show", str(tmp_path / "nowhere")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert "there is no directory" in line


@pytest.mark.parametrize("arguments", [[], ["fly"], ["verify"], ["export", "a"]])
def test_a_wrong_command_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_strangers_names_cannot_command_the_terminal(tmp_path, capsys):
    Run(tmp_path, settings={"name": "\x1b]0;evil\x07[bold]x[/bold]"})
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]x[/bold]" in out


def test_it_runs_as_a_module_into_a_pipe(runs):
    command = [sys.executable, "-m", "notebook_learner.command", "ls", str(runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("finished") == 2
    assert done.stderr == ""
