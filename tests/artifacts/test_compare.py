"""`Artifacts.compare`: several runs side by side."""

import numpy as np
import pytest
from artifacts_run import Run

from notebook_learner.artifacts import Artifacts
from notebook_learner.errors import StoreError


@pytest.fixture
def two(tmp_path):
    for name, rate, loss in (("a", "0.1", 0.5), ("b", "0.01", 0.25)):
        run = Run(tmp_path / name, settings={"seed": "42", "lr": rate})
        run.epoch(1, loss=loss)
        run.epoch(2, loss=2 * loss)
        run.status("finished")
    return tmp_path


def test_a_row_a_run_with_best_and_last_values_and_the_settings_that_differ(two):
    rows = Artifacts.compare([two / "a", str(two / "b")]).table
    assert [row["run"] for row in rows] == ["a", "b"]
    assert [row["epochs"] for row in rows] == [2, 2]
    assert [row["valid Loss best"] for row in rows] == [0.5, 0.25]
    assert [row["valid Loss last"] for row in rows] == [1.0, 0.5]
    assert [row["train Top-1 Accuracy best"] for row in rows] == [2.0, 2.0]
    assert [row["lr"] for row in rows] == ["0.1", "0.01"]
    assert "seed" not in rows[0]


def test_a_metric_that_only_one_run_has_is_empty_in_the_other(two, tmp_path):
    run = Run(tmp_path / "c")
    run.emit(run.block(1, "train", 1, 3))
    rows = Artifacts.compare([Artifacts(two / "a"), Artifacts(tmp_path / "c")]).table
    assert rows[1]["valid Loss best"] is None
    assert rows[1]["epochs"] == 0


def test_it_prints_as_a_table_and_is_one_for_pandas(two, monkeypatch):
    monkeypatch.setattr("notebook_learner.artifacts.compare._WIDEST", 1000)
    comparison = Artifacts.compare([two / "a", two / "b"])
    lines = str(comparison).splitlines()
    assert lines[0].startswith("run")
    assert lines[2].startswith("a")
    assert comparison.to_pandas()["valid Loss best"].tolist() == [0.5, 0.25]
    assert comparison._repr_html_().count("<tr>") == 3


def test_a_table_too_wide_for_a_window_has_a_column_a_run(two):
    comparison = Artifacts.compare([two / "a", two / "b"])
    assert len(comparison._shown().text().splitlines()[0]) > 120
    lines = [line.split() for line in str(comparison).splitlines()]
    assert lines[0] == ["run", "a", "b"]
    assert ["valid", "Loss", "best", "0.5000", "0.2500"] in lines
    assert len(lines) == len(comparison.table[0]) + 1  # and the rule below the first


def test_of_many_runs_there_is_a_row_each_however_wide(two):
    lines = str(Artifacts.compare([two / name for name in "ab" * 8])).splitlines()
    assert len(lines) == 2 + 16


def test_epochs_are_whole_numbers_below_the_curves(two):
    (axes,) = Artifacts.compare([two / "a", two / "b"]).plot("Loss", "valid").axes
    assert all(tick == int(tick) for tick in axes.get_xticks())


def test_curves_are_laid_over_each_other(two):
    figure = Artifacts.compare([two / "a", two / "b"]).plot("Loss", "valid")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["a", "b"]
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [0.25, 0.5])
    assert axes.get_xlabel() == "epoch"


def test_an_unknown_metric_lists_those_that_exist(two):
    with pytest.raises(KeyError, match="there are: Loss"):
        Artifacts.compare([two / "a"]).plot("Accuracy", "valid")


def test_nothing_to_compare_is_an_error():
    with pytest.raises(StoreError, match="needs runs"):
        Artifacts.compare([])


def test_settings_from_strangers_are_escaped(tmp_path):
    for name in ("a", "b"):
        Run(tmp_path / name, settings={"<b>": f"<i>{name}"})
    html = Artifacts.compare([tmp_path / "a", tmp_path / "b"])._repr_html_()
    assert "<b>" not in html
    assert "&lt;i&gt;a" in html
