"""Sets that were evaluated, from the directory of a run: followed, compared, as data frames, in the shell
and in an exported file."""

import time

import h5py
import numpy as np
import pytest
from artifacts_run import Run, evaluated, finished

from notebook_learner.artifacts import Artifacts, Evaluation
from notebook_learner.command import main


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path / "a")
    run.epoch(1)
    return run


def told(news):
    return [(each.name, dict(each), each.place) for each in news if isinstance(each, Evaluation)]


# ----------------------------------------------------------------------------------------- follow


def test_a_set_is_told_with_its_values_and_the_place_of_its_weights(run):
    evaluated(run, "clean", Loss=0.375)
    evaluated(run, "noisy", Loss=1.5)
    run.status("finished")
    news = list(Artifacts(run.directory).follow(timeout=30))
    assert told(news) == [
        ("clean", {"Loss": 0.375}, (1, "valid", 6)),
        ("noisy", {"Loss": 1.5}, (1, "valid", 6)),
    ]
    assert isinstance(news[-1], Evaluation)  # after the steps that came before


def test_each_evaluation_is_told_once_and_a_later_one_of_that_name_again(run):
    evaluated(run, "clean", Loss=0.375)
    follower = Artifacts(run.directory).follow(poll=0.01, timeout=0.5)
    heard = [next(each for each in follower if isinstance(each, Evaluation))["Loss"]]
    evaluated(run, "clean", Loss=0.25)
    heard += [each["Loss"] for each in follower if isinstance(each, Evaluation)]
    assert heard == [0.375, 0.25]


def test_now_leaves_out_the_sets_that_were_there(run):
    evaluated(run, "clean", Loss=0.375)
    follower = Artifacts(run.directory).follow(poll=0.01, timeout=20, since="now")  # begins when first asked
    evaluated(run, "noisy", Loss=1.5)
    run.status("stopped")
    assert told(follower) == []


def test_a_run_has_ended_also_where_a_set_was_evaluated_afterwards(run):
    run.status("finished")
    evaluated(run, "clean", Loss=0.375)
    began = time.monotonic()
    assert told(Artifacts(run.directory).follow(timeout=60)) == [("clean", {"Loss": 0.375}, (1, "valid", 6))]
    assert time.monotonic() - began < 50  # it did not wait until nothing came for a minute


def test_logs_that_are_being_put_in_place_are_waited_for(run):
    evaluated(run, "clean", Loss=0.375)
    being_written = run.directory / "test" / ".clean.tmp"
    being_written.mkdir()
    follower = Artifacts(run.directory).follow(poll=0.01, timeout=5)
    assert told([next(follower) for _ in range(4)]) == []
    being_written.rmdir()
    assert told([next(follower)]) == [("clean", {"Loss": 0.375}, (1, "valid", 6))]


def test_without_an_application_log_the_values_come_without_a_place(tmp_path):
    run = Run(tmp_path / "bare", index=False)
    run.epoch(1)
    evaluated(run, "clean", Loss=0.375)
    (run.directory / "experiment.log").unlink()
    follower = Artifacts(run.directory).follow(poll=0.01, timeout=5)
    assert told([next(follower) for _ in range(5)]) == [("clean", {"Loss": 0.375}, None)]


def test_a_link_out_of_the_run_is_not_followed(run, tmp_path):
    other = Run(tmp_path / "other")
    evaluated(other, "secret", Loss=1.0)
    (run.directory / "test").mkdir()
    (run.directory / "test" / "clean").symlink_to(other.directory / "test" / "secret")
    run.status("finished")
    assert told(Artifacts(run.directory).follow(timeout=30)) == []


# ---------------------------------------------------------------------------------------- compare


@pytest.fixture
def two(run, tmp_path):
    other = Run(tmp_path / "b")
    other.epoch(1)
    evaluated(run, "clean", Loss=0.375)
    evaluated(run, "noisy", Loss=1.5)
    evaluated(other, "clean", Loss=0.25)
    return Artifacts.compare([run.directory, other.directory])


def test_compared_runs_have_a_column_for_each_value_of_each_set(two):
    assert [row["test/clean Loss"] for row in two.table] == [0.375, 0.25]
    assert [row["test/noisy Loss"] for row in two.table] == [1.5, None]
    assert two.to_pandas()["test/clean Loss"].tolist() == [0.375, 0.25]
    # So many columns would be too wide for a line: there is one for each run.
    shown = {line[:24].rstrip(): line.split()[-2:] for line in str(two).splitlines()}
    assert shown["test/clean Loss"] == ["0.3750", "0.2500"] and shown["test/noisy Loss"] == ["1.500", "-"]


def test_a_set_is_drawn_with_a_bar_a_run(two):
    (axes,) = two.plot("Loss", "test/clean").axes
    assert [bar.get_width() for bar in axes.patches] == [0.375, 0.25]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.texts] == ["0.3750", "0.2500"]
    (axes,) = two.plot("Loss", "test/noisy").axes  # which only one of them has
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a"]


@pytest.mark.parametrize("which", [("Accuracy", "test/clean"), ("Loss", "test/rain"), ("Loss", "clean")])
def test_a_set_that_no_run_has_lists_those_that_exist(two, which):
    with pytest.raises(KeyError, match=r"'Loss' in test/clean, 'Loss' in test/noisy"):
        two.plot(*which)


# ------------------------------------------------------------------------------------- data frames


def test_a_data_frame_has_the_steps_of_sets_under_their_split(run):
    values = evaluated(run, "clean", 3, Loss=0.375)
    history = Artifacts(run.directory)
    wide = history.to_pandas()
    rows = wide[wide.split == "test/clean"]
    np.testing.assert_array_equal(rows["Loss"], values)
    assert rows["step"].tolist() == [1, 2, 3] and set(rows["epoch"]) == {1} and set(rows["iteration"]) == {6}
    long = history.to_pandas("long")
    rows = long[long.split == "test/clean"]
    np.testing.assert_array_equal(rows["value"], values)
    assert rows["weight"].tolist() == [4.0] * 3
    assert run.history.to_pandas().equals(run.history.to_pandas("wide"))
    assert (run.history.to_pandas().split == "test/clean").sum() == 3


def test_sets_as_a_data_frame_have_a_row_each(run):
    evaluated(run, "clean", Loss=0.375)
    evaluated(run, "noisy", 5, Loss=1.5, Accuracy=50.0)
    frame = Artifacts(run.directory).evaluations.to_pandas()
    assert list(frame.columns) == ["set", "Loss", "Accuracy", "batches", "epoch", "split", "step"]
    assert frame["set"].tolist() == ["clean", "noisy"]
    assert frame["Loss"].tolist() == [0.375, 1.5]
    assert np.isnan(frame["Accuracy"][0]) and frame["Accuracy"][1] == 50.0
    assert frame[["batches", "epoch", "step"]].to_numpy().tolist() == [[2, 1, 6], [5, 1, 6]]


def test_without_sets_the_frame_is_empty_and_has_its_columns(run):
    frame = Artifacts(run.directory).evaluations.to_pandas()
    assert len(frame) == 0 and list(frame.columns) == ["set", "batches", "epoch", "split", "step"]


# --------------------------------------------------------------------------------- shell, one file


def test_show_has_a_table_of_the_sets(run, capsys):
    evaluated(run, "clean", Loss=0.375)
    assert main(["show", str(run.directory)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["set", "Loss", "batches", "weights", "of"] in lines
    assert ["clean", "0.3750", "2", "epoch", "1,", "valid,", "step", "6"] in lines


def test_compare_in_a_shell_has_the_sets(two, capsys):
    assert main(["compare", *(str(run.directory) for run in two.runs)]) == 0
    assert "test/noisy Loss" in capsys.readouterr().out


def test_an_exported_file_holds_the_sets(tmp_path):
    run, _ = finished(tmp_path / "whole")
    values = evaluated(run, "clean", Loss=0.375)
    with h5py.File(Artifacts(run.directory).export(tmp_path / "run.h5")) as file:
        np.testing.assert_array_equal(file["series/test/clean/Loss/value"], values)
        assert file["epochs/test/clean/Loss/value"][()].tolist() == [0.375]
