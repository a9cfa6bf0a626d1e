"""However large the files of a run are, every reading verb takes little memory and few bytes of them."""

import contextlib
import io
import os
import tracemalloc

import numpy as np
import pytest
from artifacts_run import finished
from hypothesis import given, settings
from hypothesis import strategies as st

import notebook_learner.artifacts.read_record as reading
import notebook_learner.artifacts.timeline as timeline
from notebook_learner import Artifacts
from notebook_learner.artifacts.read_record import read_record
from notebook_learner.artifacts.timeline import read_timeline
from notebook_learner.artifacts.watch_panel import watched
from notebook_learner.command import main
from notebook_learner.errors import NotebookLearnerError
from notebook_learner.event.record import text_runs
from notebook_learner.logger.file import FileMetricLogger
from notebook_learner.store import files

HUGE = 10 << 30
LINE = b"2026-11-21T05:47:00.123Z  INFO  paused at epoch 1, train, step 1: x\n"

VERBS = {
    "history": lambda run: run.history.values("Loss", "train"),
    "series": lambda run: run.series("Loss"),
    "summary": lambda run: repr(run.summary()),
    "repr": repr,
    "html": lambda run: run._repr_html_(),
    "verify": lambda run: run.verify(),
    "repair": lambda run: run.repair(),
    "renew": lambda run: run.renew(),
    "timeline": lambda run: (run.timeline, run.status),
    "compare": lambda run: Artifacts.compare([run])._repr_html_(),
    "follow": lambda run: list(run.follow(timeout=0.0)),
    "export": lambda run: run.export(run.directory.parent / "exported.h5"),
    "checkpoints": lambda run: repr(run.checkpoints),
    "show": lambda run: main(["show", str(run.directory)]),
    "ls": lambda run: main(["ls", str(run.directory)]),
    "ctl": lambda run: main(["ctl", str(run.directory), "status"]),
    "panel": lambda run: watched(run),
}


def sparse(path, head=b"", tail=b""):
    """A file of 10 GB that holds nothing but its ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head)
    os.truncate(path, HUGE)
    with path.open("ab") as file:
        file.write(tail)


def with_head(name):
    return lambda directory: sparse(directory / name, (directory / name).read_bytes())


HOSTILE = {
    "metric log": lambda d: sparse(d / "train/epoch-2/Loss.log", b"0.5,32\n"),
    "metric log with an end": lambda d: sparse(d / "train/epoch-2/Loss.log", b"0.5,32\n", b"0.5,final\n"),
    "text log": lambda d: sparse(d / "train/epoch-2/GPU.log", b"3 GB\n"),
    "experiment.log": lambda d: sparse(d / "experiment.log", LINE),
    "experiment.log with an end": lambda d: sparse(d / "experiment.log", LINE, b"\n" + LINE),
    "log of a set": lambda d: sparse(d / "test/clean/Loss.log", b"0.5,32\n"),
    "artifacts.h5": with_head("artifacts.h5"),
    "artifacts.h5 of nothing": lambda d: sparse(d / "artifacts.h5"),
    "state": with_head("checkpoint/state-2.h5"),
    "another state": lambda d: sparse(
        d / "checkpoint/state-9.h5", (d / "checkpoint/state-2.h5").read_bytes()
    ),
    "model": with_head("checkpoint/model-1.h5"),
    "detached.json": lambda d: sparse(d / "detached.json", b"{"),
    "a line without end": lambda d: (d / "train/epoch-2/Loss.log").write_bytes(b"1" * (40 << 20)),
    "an event without end": lambda d: (d / "experiment.log").write_bytes(LINE[:-1] + b"x" * (40 << 20)),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run") / "run"
    finished(directory)
    return directory


@pytest.fixture
def directory(original, tmp_path):
    import shutil

    return shutil.copytree(original, tmp_path / "run")


@pytest.fixture
def taken(monkeypatch):
    """How many bytes were read so far."""
    read, bytes_read = files.read_at, [0]

    def counted(descriptor, buffers, offset):
        count = read(descriptor, buffers, offset)
        bytes_read[0] += count
        return count

    monkeypatch.setattr(files, "read_at", counted)
    return bytes_read


@pytest.mark.parametrize("what", HOSTILE)
def test_10_gb_cost_no_verb_more_than_100_mb(directory, taken, what):
    HOSTILE[what](directory)
    old = 1.7e9  # nothing is being written here
    for path in directory.rglob("*"):
        os.utime(path, (old, old))
    for name, verb in VERBS.items():
        taken[0] = 0
        tracemalloc.start()
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                verb(Artifacts(directory))
        except (NotebookLearnerError, KeyError):
            pass  # refused, in words
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert taken[0] < 200 << 20 and peak < 150 << 20, (name, taken, peak)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(), max_size=12),
    st.lists(st.floats(0, 1e6), min_size=12, max_size=12),
    st.sampled_from(["", "0.5,final\n", "0.25"]),
    st.lists(st.text("ab \u00e4", max_size=3), max_size=12),
    st.integers(1, 64),
)
def test_blocks_of_any_size_give_the_same_record(tmp_path_factory, values, weights, end, texts, block):
    directory = tmp_path_factory.mktemp("run")
    folder = directory / "train/epoch-1"
    folder.mkdir(parents=True)
    rows = zip(values, weights, strict=False)
    (folder / "Loss.log").write_text("".join(f"{value!r},{weight!r}\n" for value, weight in rows) + end)
    (folder / "Plain.log").write_text("".join(f"{value!r}\n" for value in values))
    (folder / "Text.log").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    whole = read_record(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "BLOCK", block)
        parts = read_record(directory)
    assert len(whole) == len(parts)
    for one, other in zip(whole, parts, strict=True):
        assert (one.steps, one.finals) == (other.steps, other.finals)
        for mine, yours in zip(one.blocks, other.blocks, strict=True):
            assert mine.columns.keys() == yours.columns.keys() and mine.texts == yours.texts
            for name, column in mine.columns.items():
                assert np.array_equal(column.values, yours.columns[name].values, equal_nan=True)
                assert np.array_equal(column.weights is None, yours.columns[name].weights is None)
                if column.weights is not None:
                    assert np.array_equal(column.weights, yours.columns[name].weights)
            assert all(text_runs(mine, name) == text_runs(yours, name) for name in mine.texts)


def test_numbers_take_in_memory_what_numpy_takes_for_them(tmp_path):
    rows = 200_000
    (tmp_path / "train/epoch-1").mkdir(parents=True)
    (tmp_path / "train/epoch-1/Loss.log").write_text("0.5,32\n" * rows)
    assert peak_of(tmp_path) < 2 * 16 * rows + (40 << 20)


def test_a_log_in_which_no_line_is_like_another_takes_three_times_its_bytes(tmp_path):
    (tmp_path / "train/epoch-1").mkdir(parents=True)
    log = tmp_path / "train/epoch-1/Text.log"
    log.write_text("".join(f"{number} MB of memory\n" for number in range(100_000)))
    assert peak_of(tmp_path) < 3 * log.stat().st_size + (24 << 20)


def peak_of(directory):
    tracemalloc.start()
    try:
        record = read_record(directory)
        assert record
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_log_that_is_too_large_is_passed_over_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 20)
    (tmp_path / "train/epoch-1").mkdir(parents=True)
    (tmp_path / "train/epoch-1/Loss.log").write_text("0.5,32\n" * 3)
    (tmp_path / "train/epoch-1/Small.log").write_text("0.5\n")
    problems = []
    (past,) = read_record(tmp_path, problems=problems)
    assert list(past.blocks[0].columns) == ["Small"]
    assert "Loss.log" in problems[0] and "has 21 bytes; one of over 20 is not read" in problems[0]


def test_who_is_about_to_cut_logs_does_not_take_one_that_is_too_large_for_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 5)
    (tmp_path / "train/epoch-1").mkdir(parents=True)
    (tmp_path / "train/epoch-1/Loss.log").write_text("0.5,32\n")
    with pytest.raises(OSError, match="is not read"):
        read_record(tmp_path, strict=True)


def test_of_a_large_application_log_the_first_line_and_the_end_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "_WHOLE", 1000)
    monkeypatch.setattr(timeline, "_LAST", 500)
    log = tmp_path / "experiment.log"
    opened = b"2026-11-21T05:47:00.123Z  INFO  run opened in runs/a; Net with 9 parameters; 3 epochs\n"
    lines = [LINE.replace(b"step 1:", b"step %d:" % step) for step in range(1, 31)]
    log.write_bytes(opened + b"".join(lines))
    problems = []
    marks = read_timeline(log, problems)
    assert marks[0].kind == "opened" and [mark.step for mark in marks[1:]] == list(range(24, 31))
    assert "of those before the last 500 only the first line is read" in problems[0]


def test_a_timeline_has_room_for_the_latest_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "MOST_MARKS", 3)
    (tmp_path / "experiment.log").write_bytes(
        b"".join(LINE.replace(b"step 1:", b"step %d:" % step) for step in range(9))
    )
    assert [mark.step for mark in read_timeline(tmp_path / "experiment.log")] == [6, 7, 8]


def test_repair_cuts_a_log_of_10_gb_where_its_lines_end(directory, taken):
    log = directory / "train/epoch-2/Loss.log"
    sparse(log, b"0.5,32\n0.25")
    os.utime(log, (1.7e9, 1.7e9))
    assert Artifacts(directory).repair()
    assert log.read_bytes() == b"0.5,32\n" and taken[0] < 50 << 20


def test_a_log_of_10_gb_is_cut_after_the_lines_that_are_kept(tmp_path):
    from notebook_learner.store.appender import LineAppender

    log = tmp_path / "Loss.log"
    sparse(log, b"0.5,32\n0.25,32\n")
    file = LineAppender(log)
    file.keep(1)
    assert log.read_bytes() == b"0.5,32\n"
    sparse(log, b"0.5,32\n")
    with log.open("rb") as opened:
        size = os.fstat(opened.fileno()).st_blocks
    file.keep(2)  # it has one
    assert not log.exists() and size < 1000


def test_a_text_is_written_no_longer_than_it_is_read(tmp_path):
    from notebook_learner.event import MetricBlock

    logger = FileMetricLogger(tmp_path)
    text = "\U0001f600" * (5 << 20)
    logger.handle(MetricBlock(1, "train", 1, 1, 1, {}, {"Text": text}, 0.0))
    logger.close()
    problems = []
    (past,) = read_record(tmp_path, problems=problems)
    assert problems == [] and past.blocks[0].texts["Text"] == text[: 1 << 20]
