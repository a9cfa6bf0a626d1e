import shutil
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest

from notebook_learner.artifacts import live_index
from notebook_learner.artifacts.clock import Clock
from notebook_learner.artifacts.index import read_header
from notebook_learner.artifacts.live_index import LiveIndex
from notebook_learner.artifacts.read_record import read_record
from notebook_learner.checkpoint.info import CheckpointInfo
from notebook_learner.event import (
    Column,
    EpochEnded,
    MetricBlock,
    MetricInfo,
    Notice,
    Rewound,
    RunOpened,
    Sink,
    SplitEnded,
    SplitStarted,
    StatusChanged,
    cut,
)
from notebook_learner.logger.file import FileMetricLogger
from notebook_learner.logger.history import History

INFOS = tuple(
    MetricInfo("Learning Rate" if n else "Loss", split) for n in (0, 1) for split in ("train", "valid")
)


class Process:
    """A training process in a directory: its history, its logs, its index, and jobs that wait."""

    def __init__(self, directory, time):
        self.directory, self.time, self.jobs, self.checkpoints = directory, time, [], []
        self.history, self.logs = History(), FileMetricLogger(directory)
        self.index = LiveIndex(
            directory,
            self.history.snapshot,
            lambda: self.checkpoints,
            self.jobs.append,
            now=lambda: self.time,
        )
        self.emit(RunOpened(str(directory), "Net", 10, 3, INFOS))

    def emit(self, event):
        for sink in (self.history, self.logs, self.index):
            sink.handle(event)

    def train(self, epoch, split="train", steps=4, ended=True):
        trained = len(self.history)
        self.emit(SplitStarted(epoch, split, steps, 3))
        for step in range(1, steps + 1):
            self.time += 1
            value = np.array([float(epoch * 100 + step)])
            columns = {"Loss": Column(value, np.array([8.0])), "Learning Rate": Column(value / 1000)}
            iteration = trained + (step if split == "train" else 0)
            self.emit(MetricBlock(epoch, split, step, 1, iteration, columns, {}, 1.0))
        if ended:
            self.emit(SplitEnded(epoch, split, steps, {"Loss": epoch + 0.5}))

    def epoch(self, number):
        self.train(number)
        self.train(number, "valid", 2)
        self.emit(EpochEnded(number, 3))

    def rewind(self, epoch, split, step):
        record = cut(self.history.snapshot(), epoch, split, step)
        self.restore(record, epoch, split, step)

    def restore(self, record, epoch, split, step):
        self.emit(Rewound(epoch, split, step, record, *self.history.restore(record)))

    def status(self, name, epoch=1, split="train", step=0):
        self.emit(StatusChanged(name, epoch, split, step, None, "why"))

    def work(self):
        done = len(self.jobs)
        while self.jobs:
            self.jobs.pop(0)()
        return done

    def header(self):
        return read_header(self.directory / "artifacts.h5")

    def kinds(self):
        return [mark[0] for mark in self.header()["timeline"]]


@pytest.fixture
def process(tmp_path):
    return Process(tmp_path / "run", 1000.0)


def series(path):
    found = {}
    with h5py.File(path, "r") as file:
        for part in ("series", "epochs"):
            for split in file[part]:
                for metric, group in file[part][split].items():
                    found.update(
                        {f"{part}/{split}/{metric}/{name}": group[name][:].tolist() for name in group}
                    )
    return found


def test_it_is_a_sink_that_only_takes_notes(process):
    assert isinstance(process.index, Sink)
    process.epoch(1)
    assert not (process.directory / "artifacts.h5").exists()
    assert process.work() == 1
    assert series(process.directory / "artifacts.h5")["series/train/Loss/value"] == [101, 102, 103, 104]


def test_the_file_holds_what_the_logs_hold(process):
    process.epoch(1)
    process.train(2, steps=3, ended=False)
    process.status("paused", 2, "train", 3)
    process.work()
    live_one = series(process.directory / "artifacts.h5")
    other = Process(process.directory.with_name("other"), 0.0)
    other.history.restore(read_record(process.directory, INFOS))
    other.status("paused")
    other.work()
    rebuilt = series(other.directory / "artifacts.h5")
    assert rebuilt.keys() == live_one.keys()
    without_time = {name for name in live_one if not name.endswith("/time")}
    assert len(without_time) == len(live_one) - 4
    assert {name: rebuilt[name] for name in without_time} == {name: live_one[name] for name in without_time}
    assert live_one["series/train/Loss/time"] == [1001, 1002, 1003, 1004, 1007, 1008, 1009]


@pytest.mark.parametrize("status", ["paused", "failed", "stopped", "finished"])
def test_standing_still_writes_also_after_a_rewind(process, status):
    process.work()
    process.train(1)
    process.status("running")
    process.emit(Notice("hello"))
    assert process.work() == 0
    process.status(status)
    process.rewind(1, "train", 2)
    process.status("paused")
    assert process.work() == 2
    assert process.kinds() == ["opened", status, "rewound", "paused"]


def test_a_large_file_is_not_made_for_a_rewind_before_its_time_has_passed(process, monkeypatch):
    now = [1.0]
    monkeypatch.setattr(live_index.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(live_index, "LARGE", 1)

    def slow(*arguments, **more):
        now[0] += 2.0
        return live_encode(*arguments, **more)

    live_encode = live_index.encode_index
    monkeypatch.setattr(live_index, "encode_index", slow)
    process.work()
    process.train(1)
    process.status("paused")
    assert process.work() == 1, "steps were measured"
    process.rewind(1, "train", 2)
    process.status("paused")
    assert process.work() == 0
    now[0] += 2.0 * live_index.REST
    process.rewind(1, "train", 1)
    process.status("paused")
    assert process.work() == 1
    assert process.kinds() == ["opened", "paused", "rewound", "paused", "rewound", "paused"]
    process.status("running")
    process.status("finished")
    assert process.work() == 1, "it has run, whether or not anything was measured"


@pytest.mark.parametrize("large", [False, True])
def test_going_on_with_a_run_leaves_the_file_of_the_earlier_process_if_it_is_large(
    process, monkeypatch, large
):
    process.work()
    process.train(1)
    process.status("paused")
    process.work()
    if large:
        monkeypatch.setattr(live_index, "LARGE", process.index.path.stat().st_size)
    later = Process(process.directory, 2000.0)
    later.rewind(1, "train", 2)
    later.status("paused")
    assert later.work() == (0 if large else 1)
    later.train(1)
    later.status("running")
    later.status("paused")
    assert later.work() == 1
    assert later.kinds() == ["opened", "paused", "opened", "rewound", "paused", "paused"]


def test_a_run_ends_and_goes_on(process):
    process.status("finished")
    process.work()
    assert process.header()["run"]["ended"] == 1000.0
    process.status("running")
    process.status("paused")
    process.work()
    assert process.header()["run"]["ended"] is None


def test_epochs_are_left_out_while_a_file_waits_or_costs_too_much(process, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(live_index.time, "monotonic", lambda: now[0])

    def slow(*arguments, **more):
        now[0] += 2.0
        return live_encode(*arguments, **more)

    live_encode = live_index.encode_index
    monkeypatch.setattr(live_index, "encode_index", slow)
    process.emit(EpochEnded(1, 3))
    assert process.work() == 1, "the epoch's file was already on its way since the run was opened"
    now[0] += 199.0
    process.emit(EpochEnded(2, 3))
    assert process.work() == 0
    process.status("paused")
    assert process.work() == 1
    now[0] += 201.0
    process.emit(EpochEnded(3, 3))
    assert process.work() == 1


def test_a_rewind_cuts_the_times_and_keeps_the_timeline(process):
    process.epoch(1)
    process.train(2)
    process.rewind(1, "train", 3)
    process.work()
    assert process.kinds() == ["opened", "rewound"]
    found = series(process.directory / "artifacts.h5")
    assert found["series/train/Loss/time"] == [1001, 1002, 1003]
    assert [row[:2] for row in process.header()["clock"]] == [[1, "train"]]


def test_a_resumed_process_takes_over_what_happened_before(process):
    process.epoch(1)
    process.train(2, steps=3, ended=False)
    process.status("paused", 2, "train", 3)
    process.work()
    before = process.history.snapshot()
    resumed = Process(process.directory, 5000.0)
    assert resumed.work() == 0, "a learner that was only built has nothing to say"
    resumed.restore(cut(before, 2, "train", 2), 2, "train", 2)
    resumed.train(3, steps=1)
    resumed.status("finished")
    resumed.work()
    assert resumed.header()["run"]["started"] == 1000.0
    assert resumed.kinds() == ["opened", "paused", "opened", "rewound", "finished"]
    found = series(process.directory / "artifacts.h5")
    assert found["series/train/Loss/time"] == [1001, 1002, 1003, 1004, 1007, 1008, 5001]


def test_a_new_run_in_the_directory_starts_afresh(process):
    process.epoch(1)
    process.status("finished")
    process.work()
    second = Process(process.directory, 5000.0)
    second.emit(SplitStarted(1, "train", 4, 3))
    assert second.work() == 1, "the earlier run's numbers leave at once"
    assert series(process.directory / "artifacts.h5") == {}
    assert second.header()["run"]["started"] == 5000.0
    assert second.kinds() == ["opened"]
    second.epoch(1)
    second.status("finished")
    second.work()
    assert series(process.directory / "artifacts.h5")["series/train/Loss/time"] == [5001, 5002, 5003, 5004]


def test_a_first_epoch_that_comes_again_in_one_process_is_no_new_run(process):
    process.train(1)
    process.rewind(1, "train", 0)
    process.epoch(1)
    process.work()
    assert process.kinds() == ["opened", "rewound"]


@pytest.mark.parametrize("damage", [b"", b"NBLINDEX", b"\0" * 4096])
def test_a_damaged_file_of_before_is_made_anew(process, damage):
    process.directory.mkdir()
    (process.directory / "artifacts.h5").write_bytes(damage)
    again = Process(process.directory, 2000.0)
    again.work()
    assert again.header()["run"]["started"] == 2000.0


def test_checkpoints_that_were_deleted_stay_on_the_timeline(process):
    files = {"model": "model-1.h5", "state": "state-1.h5"}
    process.checkpoints.append(CheckpointInfo("1", 1, 4, 4, saved_at=1005.0, files=files))
    process.status("paused", 2)
    process.work()
    with h5py.File(process.directory / "artifacts.h5", "r") as file:
        links = [file["checkpoints/1"].get(name, getlink=True).filename for name in ("model", "state")]
    assert links == ["checkpoint/model-1.h5", "checkpoint/state-1.h5"]
    process.checkpoints.clear()
    process.status("paused", 3)
    process.work()
    assert process.kinds() == ["opened", "paused", "paused", "checkpoint"]
    with h5py.File(process.directory / "artifacts.h5", "r") as file:
        assert list(file["checkpoints"]) == []


def test_a_failing_write_is_the_submitters_to_deal_with(process, monkeypatch):
    process.work()
    before = (process.directory / "artifacts.h5").read_bytes()

    def full(descriptor, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live_index.files, "allocate", full)
    process.status("paused")
    with pytest.raises(OSError, match="No space left"):
        process.work()
    assert (process.directory / "artifacts.h5").read_bytes() == before
    assert [path.name for path in process.directory.iterdir()] == ["artifacts.h5"]
    monkeypatch.undo()
    process.status("stopped")
    process.work()
    assert process.kinds() == ["opened", "paused", "stopped"]


def test_jobs_on_another_thread_see_whole_states(process, monkeypatch):
    monkeypatch.setattr(live_index, "LARGE", float("inf"))  # else a slow disk has some of the jobs left out
    process.jobs.clear()
    futures = []
    with ThreadPoolExecutor(2) as pool:
        process.index._submit = lambda job: futures.append(pool.submit(job))
        for number in range(1, 30):
            process.train(number, steps=3)
            process.status("paused", number, "train", 3)
            process.rewind(number, "train", 2)
            process.status("paused", number, "train", 2)
    assert len(futures) == 58 and [future.result() for future in futures] == [None] * 58
    process.index._submit = process.jobs.append
    process.status("finished")
    process.work()
    assert series(process.directory / "artifacts.h5")["series/train/Loss/value"] == [
        100.0 * number + step for number in range(1, 30) for step in (1, 2)
    ]


def test_a_submitter_that_refuses_is_asked_again(process):
    process.work()
    process.index._submit = lambda job: exec("raise RuntimeError('no thread')")
    with pytest.raises(RuntimeError, match="no thread"):
        process.index.handle(StatusChanged("paused", 1, "train", 0, None))
    process.index._submit = process.jobs.append
    process.index._built_at = process.index._cost = 0.0
    process.index.handle(EpochEnded(1, 3))
    assert process.work() == 1


def test_a_directory_that_has_gone_is_not_made_again(process):
    process.work()
    shutil.rmtree(process.directory)
    process.index.handle(StatusChanged("paused", 1, "train", 0, None))
    with pytest.raises(FileNotFoundError):
        process.work()
    assert not process.directory.exists()


def test_nothing_is_written_before_the_run_opened(tmp_path):
    jobs = []
    index = LiveIndex(tmp_path, tuple, tuple, jobs.append)
    index.handle(EpochEnded(1, 1))
    index.handle(StatusChanged("paused", 1, "train", 0, None))
    assert jobs == []


def test_a_pass_that_starts_over_loses_its_times(process):
    process.train(1, ended=False)
    process.emit(SplitStarted(1, "train", 4, 3))
    process.status("paused")
    process.work()
    assert Clock.from_json(process.header()["clock"]).to_json() == []
