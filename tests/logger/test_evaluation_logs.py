"""The logs of a set take the place of earlier ones as a whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from notebook_learner.event import Column, Evaluated, MetricBlock, SplitRecord
from notebook_learner.logger.file import delete_evaluations, write_evaluation
from notebook_learner.store import RunLayout, files


def evaluated(name: str, value: float, *metrics: str) -> Evaluated:
    columns = {metric: Column(np.array([value]), np.array([2.0])) for metric in metrics}
    block = MetricBlock(1, "valid", 1, 1, 5, columns, {"Device": "cool"}, 0.1)
    return Evaluated(name, 1, "train", 5, SplitRecord(1, "valid", (block,), dict.fromkeys(metrics, value)))


def written(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*.log")}


def test_numbers_texts_and_metrics_that_came_late_have_a_line_a_batch(tmp_path: Path) -> None:
    first = MetricBlock(
        1, "valid", 1, 2, 5, {"Loss": Column(np.ones(2), np.ones(2))}, {"Device": "cool"}, 0.1
    )
    late = {"Loss": Column(np.ones(1), np.ones(1)), "Late": Column(np.array([7.0]))}
    second = MetricBlock(1, "valid", 3, 1, 5, late, {"Device": "hot"}, 0.1)
    record = SplitRecord(1, "valid", (first, second), {"Loss": 1.0})
    write_evaluation(RunLayout(tmp_path), Evaluated("a", 1, "train", 5, record))
    assert written(tmp_path / "test/a") == {
        "Loss.log": "1,1\n1,1\n1,1\n1,final\n",
        "Device.log": "cool\ncool\nhot\n",
        "Late.log": "NaN\nNaN\n7\n",
    }


@pytest.mark.parametrize("call", ["write_at", "sync"])
def test_where_the_disk_fails_the_earlier_logs_stay_as_they_are(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RunLayout(tmp_path)
    write_evaluation(layout, evaluated("a", 1.0, "Loss"))
    before = written(tmp_path / "test/a")
    left = [1]

    def failing(*arguments: Any) -> Any:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        return real(*arguments)

    real = getattr(files, call)
    with monkeypatch.context() as disk, pytest.raises(OSError, match="No space left"):
        disk.setattr(files, call, failing)
        write_evaluation(layout, evaluated("a", 2.0, "Loss", "Accuracy"))
    assert written(tmp_path / "test/a") == before
    assert [name for name, _ in layout.tests()] == ["a"]

    write_evaluation(layout, evaluated("a", 2.0, "Accuracy"))
    assert sorted(written(tmp_path / "test/a")) == ["Accuracy.log", "Device.log"]
    assert os.listdir(tmp_path / "test") == ["a"]


def test_a_process_killed_while_they_change_places_never_leaves_some_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = RunLayout(tmp_path)
    write_evaluation(layout, evaluated("a", 1.0, "Loss", "Accuracy"))

    def killed(source: Path, target: Path) -> None:
        if target.parent.name == "a":
            raise KeyboardInterrupt
        os.replace(source, target)

    with monkeypatch.context() as process, pytest.raises(KeyboardInterrupt):
        process.setattr(files, "rename", killed)
        write_evaluation(layout, evaluated("a", 2.0, "Loss", "Accuracy"))
    assert not any("1,2" in text for text in written(tmp_path / "test/a").values())
    write_evaluation(layout, evaluated("a", 3.0, "Loss"))
    assert written(tmp_path / "test/a") == {"Loss.log": "3,2\n3,final\n", "Device.log": "cool\n"}


def test_deleting_leaves_files_that_are_no_logs(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    for name in ("a", "b", "c"):
        write_evaluation(layout, evaluated(name, 1.0, "Loss"))
    (tmp_path / "test/b/notes.txt").write_text("mine")
    delete_evaluations(layout, keep=["c"])
    assert sorted(os.listdir(tmp_path / "test")) == ["b", "c"]
    assert os.listdir(tmp_path / "test/b") == ["notes.txt"]
