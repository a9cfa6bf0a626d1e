"""Runs that are unusual, and machines that are short of something: read, or refused in words."""

import errno
import os
import resource
import shutil

import pytest
from artifacts_run import Run, finished, net

from notebook_learner import Artifacts
from notebook_learner.errors import NotebookLearnerError, StoreError
from notebook_learner.store import durable, files


def test_a_metric_without_rows_has_an_empty_series(tmp_path):
    run = Run(tmp_path / "run")
    run.emit(run.block(1, "train", 1, 3))
    series = Artifacts(tmp_path / "run").series("Loss", "valid")
    assert len(series) == 0 and len(series.time) == len(series.weight) == len(series.epoch) == 0
    assert repr(series) == "Series('Loss', 'valid', 0 steps)"


def test_runs_without_validation_are_compared_by_their_training(tmp_path):
    for name in ("a", "b"):
        run = Run(tmp_path / name)
        run.emit(run.block(1, "train", 1, 3))
    compared = Artifacts.compare([tmp_path / "a", tmp_path / "b"])
    (axes,) = compared.plot().axes
    assert axes.get_ylabel() == "Loss (train)" and [len(line.get_xdata()) for line in axes.lines] == [3, 3]
    (axes,) = compared.plot("Loss", "valid").axes
    assert [len(line.get_xdata()) for line in axes.lines] == [0, 0]


def test_where_one_run_was_validated_validation_is_compared(tmp_path):
    finished(tmp_path / "a")
    run = Run(tmp_path / "b")
    run.emit(run.block(1, "train", 1, 3))
    (axes,) = Artifacts.compare([tmp_path / "a", tmp_path / "b"]).plot().axes
    assert axes.get_ylabel() == "Loss (valid)"


@pytest.mark.parametrize("now", [-1.0, -86400.0 * 365 * 60, 0.0])
def test_a_checkpoint_of_a_clock_before_1970_is_read(tmp_path, monkeypatch, now):
    run = Run(tmp_path / "run")
    run.epoch(1)
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: now)
        run.save("1", net())
    (info,) = Artifacts(tmp_path / "run").checkpoints
    assert not info.damage and info.saved_at == now and info.when.year <= 1970
    assert "1" in repr(Artifacts(tmp_path / "run").checkpoints)


def test_a_file_named_checkpoint_is_told(tmp_path):
    finished(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoint")
    (tmp_path / "run/checkpoint").write_text("x")
    run = Artifacts(tmp_path / "run")
    assert "is a file, where" in repr(run) and "is a file, where" in run._repr_html_()
    for ask in (lambda: run.checkpoints, lambda: run.find("best"), lambda: run.load_model(net())):
        with pytest.raises(StoreError, match="checkpoint' is a file, where a run keeps"):
            ask()
    assert not run.verify()


@pytest.fixture
def none_left():
    """No descriptor is left while it is entered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    class NoneLeft:
        def __enter__(self):
            self.highest = os.dup(0)
            os.close(self.highest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.highest, hard))

        def __exit__(self, *error):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    yield NoneLeft()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


VERBS = {
    "checkpoints": lambda run: run.checkpoints,
    "find": lambda run: run.find("latest"),
    "load_model": lambda run: run.load_model(net()),
    "history": lambda run: run.history,
    "timeline": lambda run: run.timeline,
    "summary": lambda run: run.summary(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_without_descriptors_a_verb_says_what_to_do(tmp_path, none_left, verb):
    finished(tmp_path / "run")
    run = Artifacts(tmp_path / "run")
    VERBS[verb](run)  # what is imported on the way is there
    with (
        none_left,
        pytest.raises(
            NotebookLearnerError, match=r"as many files open as the system allows.*ulimit -n"
        ) as told,
    ):
        VERBS[verb](Artifacts(tmp_path / "run"))
    assert isinstance(told.value, StoreError)
    VERBS[verb](run)


def test_a_machine_that_may_open_no_more_is_told_from_a_process(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(StoreError, match="all processes of this machine have as many files open"):
        files.open_to_read(tmp_path / "a")


def test_a_file_that_does_not_fit_into_memory_is_told(tmp_path):
    path = tmp_path / "large"
    path.write_bytes(b"")
    os.truncate(path, 1 << 60 if _takes_holes(path, 1 << 60) else 1 << 43)
    with durable.opened(path) as file, pytest.raises(StoreError, match="do not fit into memory"):
        file.read(0, file.size)


def _takes_holes(path, size):
    try:
        os.truncate(path, size)
    except OSError:
        return False
    return True
