import errno
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_events import block, play, record_of, tree

from notebook_learner.errors import ConfigurationError, LoggerError
from notebook_learner.event import (
    Column,
    FanOut,
    MetricBlock,
    Rewound,
    SplitEnded,
    SplitStarted,
    StatusChanged,
)
from notebook_learner.logger import FileMetricLogger, History
from notebook_learner.store import read_log
from notebook_learner.store.run_folder import RefusedError

NAN = float("nan")


def paused():
    return StatusChanged("paused", 1, "train", 3, None)


def straight(directory, record):
    """The directory of a run that measured `record` without a detour."""
    logger = FileMetricLogger(directory)
    play(logger, record)
    logger.close()
    return tree(directory)


def rewind(logger, history, record):
    kept = history.restore(record)
    event = Rewound(1, "train", 0, record, *kept)
    history.handle(event)
    logger.handle(event)
    return kept


# ------------------------------------------------------------------------------------------ writing


def test_the_files_are_burns(tmp_path):
    logger = FileMetricLogger(tmp_path)
    first = block(1, [0.5, NAN], extra=84.375, readings=17.5, texts={"Cuda": "GPU 0:\n3 GB"})
    play(logger, record_of((1, "train", [first], {"Loss": 0.5, "Top-K Accuracy @ TopK(5)": 84.375})))
    assert tree(tmp_path) == {
        "train": None,
        "train/epoch-1": None,
        "train/epoch-1/CPU_Usage.log": b"17.5\n17.5\n",
        "train/epoch-1/Cuda.log": b"GPU 0: 3 GB\nGPU 0: 3 GB\n",
        "train/epoch-1/Loss.log": b"0.5,32\nNaN,32\n0.5,final\n",
        "train/epoch-1/Top-K_Accuracy_@_TopK(5).log": b"84.375,32\n84.375,32\n84.375,final\n",
    }


def test_a_step_without_a_value_has_its_line_too(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.handle(block(1, [1]))
    logger.handle(block(2, [NAN, NAN], weight=0.0))
    logger.handle(block(4, [4]))
    log = read_log(tmp_path / "train/epoch-1/Loss.log")
    assert log.weights.tolist() == [32, 0, 0, 32] and log.values[3] == 4


def test_a_metric_that_comes_late_starts_with_blank_lines(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.handle(block(1, [1, 2]))
    logger.handle(block(3, [3], extra=50.0, readings=9.0, texts={"Cuda": "x"}))
    folder = tmp_path / "train/epoch-1"
    assert (folder / "Top-K_Accuracy_@_TopK(5).log").read_text() == "NaN,0\nNaN,0\n50,32\n"
    assert (folder / "CPU_Usage.log").read_text() == "NaN\nNaN\n9\n"
    assert (folder / "Cuda.log").read_text() == "\n\nx\n"


def test_what_was_handed_in_is_in_the_file_at_once(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.handle(SplitStarted(1, "train", 2, 1))
    assert tree(tmp_path) == {}
    logger.handle(block(1, [0.5]))
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "0.5,32\n"
    logger.handle(paused())
    logger.handle(block(2, [0.25]))
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "0.5,32\n0.25,32\n"


def test_a_pass_that_starts_again_overwrites_its_files(tmp_path):
    for value in (1, 2):
        logger = FileMetricLogger(tmp_path)
        play(logger, record_of((1, "train", [block(1, [value])], {"Loss": value})))
        play(logger, record_of((1, "train", [block(1, [value + 5])], None)))
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "7,32\n"


def test_a_new_run_replaces_the_logs_of_an_earlier_one(tmp_path):
    first = FileMetricLogger(tmp_path)
    play(first, record_of(*[(epoch, "train", [block(1, [1])], {"Loss": 1}) for epoch in (1, 2, 3)]))
    first.close()
    (tmp_path / "train/epoch-3/notes.txt").write_text("mine")
    play(FileMetricLogger(tmp_path), record_of((1, "train", [block(1, [9])], None)))
    files = {path: data for path, data in tree(tmp_path).items() if data is not None}
    assert files == {"train/epoch-1/Loss.log": b"9,32\n", "train/epoch-3/notes.txt": b"mine"}


def test_only_the_running_pass_holds_descriptors(tmp_path):
    def held():
        links = (os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd"))
        below = f"{tmp_path}{os.sep}"  # the run's directory itself stays open
        return sorted(
            os.readlink(link) for link in links if os.path.islink(link) and below in os.readlink(link)
        )

    if not os.path.isdir("/proc/self/fd"):
        return
    logger = FileMetricLogger(tmp_path)
    for epoch in (1, 2):
        play(logger, record_of((epoch, "train", [block(1, [1], epoch=epoch)], {"Loss": 1.0})))
        assert held() == []
    logger.handle(block(1, [1], epoch=3, extra=2.0))
    assert len(held()) == 2
    logger.close()
    assert held() == []
    logger.handle(block(2, [2], epoch=3, extra=2.0))
    assert (tmp_path / "train/epoch-3/Loss.log").read_text() == "1,32\n2,32\n"
    logger.close()


def test_a_name_that_would_leave_the_directory_writes_nothing(tmp_path):
    logger = FileMetricLogger(tmp_path / "run")
    bad = MetricBlock(1, "train", 1, 1, 1, {"../../evil": Column(np.ones(1))}, {}, 0.1)
    with pytest.raises(ConfigurationError, match="would leave the run's directory"):
        logger.handle(bad)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ rewinding


@pytest.fixture
def run(tmp_path):
    logger, history = FileMetricLogger(tmp_path / "run"), History()

    def both(event):
        history.handle(event)
        logger.handle(event)

    both.logger, both.history, both.directory = logger, history, tmp_path / "run"
    return both


def test_a_rewind_within_a_pass_cuts_its_files(run):
    for event in (SplitStarted(1, "train", 5, 2), block(1, [1, 2])):
        run(event)
    record = run.history.snapshot()
    for event in (block(3, [3, 4]), SplitEnded(1, "train", 4, {"Loss": 2.5}), block(1, [9], "valid")):
        run(event)
    assert rewind(run.logger, run.history, record) == (0, 2)
    assert tree(run.directory) == {
        "train": None,
        "train/epoch-1": None,
        "train/epoch-1/Loss.log": b"1,32\n2,32\n",
    }
    run(block(3, [30]))
    run(SplitEnded(1, "train", 3, {"Loss": 11.0}))
    assert (run.directory / "train/epoch-1/Loss.log").read_text() == "1,32\n2,32\n30,32\n11,final\n"


def test_a_rewind_to_the_start_of_a_pass_leaves_no_trace_of_it(run):
    before = run.history.snapshot()
    run(SplitStarted(1, "train", 5, 2))
    at_start = run.history.snapshot()
    run(block(1, [1, 2]))
    rewind(run.logger, run.history, at_start)
    assert tree(run.directory) == {}
    run(block(1, [3]))
    rewind(run.logger, run.history, before)
    assert tree(run.directory) == {}


def test_a_rewind_drops_a_final_line(run):
    run(block(1, [1, 2]))
    record = run.history.snapshot()
    run(SplitEnded(1, "train", 2, {"Loss": 1.5}))
    assert rewind(run.logger, run.history, record) == (0, 2)
    assert (run.directory / "train/epoch-1/Loss.log").read_text() == "1,32\n2,32\n"
    rewind(run.logger, run.history, record_of((1, "train", record[0].blocks, {"Loss": 1.5})))
    assert (run.directory / "train/epoch-1/Loss.log").read_text() == "1,32\n2,32\n1.5,final\n"


def test_kept_passes_are_not_touched(run):
    run(block(1, [1]))
    run(SplitEnded(1, "train", 1, {"Loss": 1.0}))
    record = run.history.snapshot()
    path = run.directory / "train/epoch-1/Loss.log"
    before = path.stat()
    run(block(1, [1], epoch=2))
    assert rewind(run.logger, run.history, record) == (1, 0)
    after = path.stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert sorted(p.name for p in (run.directory / "train").iterdir()) == ["epoch-1"]


def test_a_restored_learner_rebuilds_a_directory_that_a_kill_left_torn(tmp_path):
    record = record_of(
        (1, "train", [block(1, [1, 2])], {"Loss": 1.5}),
        (2, "train", [block(1, [3, 4], epoch=2)], None),
    )
    straight(tmp_path / "run", record)
    (tmp_path / "run/train/epoch-1/Loss.log").write_text("1,32\n2,3")
    (tmp_path / "run/train/epoch-2/Loss.log").write_text("3,32\n4,32\n5,32\n6,")
    (tmp_path / "run/valid/epoch-2").mkdir(parents=True)
    (tmp_path / "run/valid/epoch-2/Loss.log").write_text("1,32\n")
    logger = FileMetricLogger(tmp_path / "run")
    logger.handle(Rewound(2, "train", 2, record, 0, 0))
    assert tree(tmp_path / "run") == straight(tmp_path / "straight", record)
    logger.handle(block(3, [7], epoch=2))
    assert (tmp_path / "run/train/epoch-2/Loss.log").read_text() == "3,32\n4,32\n7,32\n"


def test_a_learner_that_goes_on_in_the_middle_of_a_pass_in_a_new_directory(tmp_path):
    record = record_of(
        (1, "train", [block(1, [1, 2])], {"Loss": 1.5}), (1, "valid", [block(1, [3], "valid")], None)
    )
    logger = FileMetricLogger(tmp_path)
    logger.handle(Rewound(1, "valid", 1, record, 0, 0))
    logger.handle(block(2, [4], "valid"))
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "1,32\n2,32\n1.5,final\n"
    assert (tmp_path / "valid/epoch-1/Loss.log").read_text() == "3,32\n4,32\n"


def test_a_file_that_somebody_shortened_is_rewritten_from_the_record(run):
    run(block(1, [1, 2, 3]))
    record = run.history.snapshot()
    run(block(4, [4]))
    (run.directory / "train/epoch-1/Loss.log").write_text("1,32\n")
    assert rewind(run.logger, run.history, record) == (0, 3)
    assert (run.directory / "train/epoch-1/Loss.log").read_text() == "1,32\n2,32\n3,32\n"


def test_foreign_files_survive_a_rewind(run):
    run(block(1, [1], epoch=2))
    (run.directory / "train/epoch-2/notes.txt").write_text("mine")
    (run.directory / "train/plot.log").write_text("mine too")
    rewind(run.logger, run.history, ())
    assert {path for path, content in tree(run.directory).items() if content} == {
        "train/epoch-2/notes.txt",
        "train/plot.log",
    }


def test_a_metric_that_pauses_is_cut_where_it_stood(run):
    run(block(1, [1, 2], extra=5.0))
    run(block(3, [3, 4]))
    record = run.history.snapshot()
    run(block(5, [5], extra=6.0))
    path = run.directory / "train/epoch-1/Top-K_Accuracy_@_TopK(5).log"
    assert path.read_text() == "5,32\n5,32\nNaN,0\nNaN,0\n6,32\n"
    assert rewind(run.logger, run.history, record) == (0, 4)
    assert path.read_text() == "5,32\n5,32\n"


def test_passes_after_the_one_that_is_cut_are_written_anew(run):
    run(block(1, [1, 2]))
    for values, wrong in (([3], 7), ([30, 31], 8)):
        run(block(3, values))
        run(SplitEnded(1, "train", 2 + len(values), {"Loss": 1.0}))
        run(block(1, [wrong, wrong, wrong], "valid"))
        record = run.history.snapshot()
        if len(values) == 1:
            first = record
            start = record_of((1, "train", [block(1, [1, 2])], None))
            assert rewind(run.logger, run.history, start) == (0, 2)
    assert rewind(run.logger, run.history, first) == (0, 2)
    assert tree(run.directory) == straight(run.directory.parent / "straight", first)


def test_a_rewind_to_a_pass_that_was_left_open_goes_on_there(run):
    run(SplitStarted(1, "train", 9, 9))
    run(block(1, [1, 2]))
    record = run.history.snapshot()
    run(SplitStarted(1, "valid", 9, 9))
    run(block(1, [5], "valid"))
    assert rewind(run.logger, run.history, record) == (1, 0)
    run(block(3, [3]))
    assert tree(run.directory) == straight(run.directory.parent / "straight", run.history.snapshot())


def test_steps_that_are_handed_in_twice_are_written_once(tmp_path):
    logger = FileMetricLogger(tmp_path)
    logger.handle(block(1, [1, 2], texts={"Cuda": "a"}))
    logger.handle(block(2, [2, 3], texts={"Cuda": "b"}))
    logger.handle(block(1, [1, 2, 3]))
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "1,32\n2,32\n3,32\n"
    assert (tmp_path / "train/epoch-1/Cuda.log").read_text() == "a\na\nb\n"


NUMBERS = st.floats(width=32) | st.sampled_from([0.0, -0.0, NAN, 1e-7])
ROWS = st.lists(NUMBERS, min_size=1, max_size=4)
MOVES = st.one_of(
    st.tuples(st.just("block"), ROWS, st.sampled_from([None, "a", "b,final"]), st.booleans()),
    st.tuples(st.just("end"), NUMBERS),
    st.tuples(st.just("rewind"), st.integers(-4, 1000)),
    st.tuples(st.just("pause")),
    st.tuples(st.just("restart")),
)


class Detour:
    """A run that goes to and fro, and beside it a plain list of what a straight run would have measured."""

    def __init__(self, directory):
        self.directory = directory
        self.logger, self.history = FileMetricLogger(directory), History()
        self.model = []  # [epoch, split, blocks, finals], small blocks as they came
        self.saved = [((), [])]

    def emit(self, event):
        self.history.handle(event)
        self.logger.handle(event)

    def save(self):
        copy = [[epoch, split, list(blocks), finals] for epoch, split, blocks, finals in self.model]
        self.saved.append((self.history.snapshot(), copy))

    def block(self, values, text, odd):
        if not self.model or self.model[-1][3] is not None:
            number = len(self.model)
            self.model.append([number // 2 + 1, ("train", "valid")[number % 2], [], None])
            self.emit(SplitStarted(*self.model[-1][:2], None, 9))
            self.save()
        epoch, split, blocks, _ = self.model[-1]
        first = 1 + sum(each.count for each in blocks)
        texts = {} if text is None else {"Cuda": text}
        new = block(first, values, split, epoch, texts=texts, extra=7.0 if odd else None, readings=first / 3)
        blocks.append(new)
        self.emit(new)
        self.save()

    def end(self, final):
        if self.model and self.model[-1][3] is None:
            epoch, split, blocks, _ = self.model[-1]
            self.model[-1][3] = {"Loss": final}
            self.emit(SplitEnded(epoch, split, sum(each.count for each in blocks), {"Loss": final}))
            self.save()

    def rewind(self, number):
        record, model = self.saved[number % len(self.saved)]
        self.model = [[epoch, split, list(blocks), finals] for epoch, split, blocks, finals in model]
        rewind(self.logger, self.history, record)
        self.check()

    def pause(self):
        self.logger.handle(paused())
        self.logger.close()

    def restart(self):
        """Another process: nothing is known to be on the disk already."""
        self.logger.close()
        record, self.history = self.history.snapshot(), History()
        self.logger = FileMetricLogger(self.directory)
        rewind(self.logger, self.history, record)

    def check(self):
        plain = self.directory.parent / "straight"
        shutil.rmtree(plain, ignore_errors=True)
        assert tree(self.directory) == straight(plain, record_of(*self.model))


@given(st.lists(MOVES, max_size=40))
@settings(deadline=None, max_examples=300)
def test_after_any_detour_the_directory_is_that_of_a_straight_run(tmp_path_factory, moves):
    run = Detour(tmp_path_factory.mktemp("detour") / "run")
    for verb, *arguments in moves:
        getattr(run, verb)(*arguments)
    run.check()
    run.logger.close()


# ----------------------------------------------------------------------------------- a failing disk


class SmallDisk:
    """`os.write` as on a disk with so many bytes free: short at the end, then ENOSPC."""

    def __init__(self, monkeypatch, free):
        self.real, self.free = os.write, free
        monkeypatch.setattr(os, "write", self.write)

    def write(self, descriptor, data):
        if not self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self.real(descriptor, bytes(data)[: self.free])
        self.free -= taken
        return taken


RUN = record_of(
    (1, "train", [block(1, [0.5, 0.25], extra=50.0), block(3, [0.125], extra=51.0)], {"Loss": 0.3}),
    (1, "valid", [block(1, [0.75], "valid")], {"Loss": 0.75}),
    (2, "train", [block(1, [1, 2, 3], epoch=2)], None),
)


@pytest.mark.parametrize("free", range(0, 160, 3))
def test_nothing_is_lost_or_repeated_when_the_disk_was_full(tmp_path, monkeypatch, free):
    expected = straight(tmp_path / "straight", RUN)
    disk, logger, failures = SmallDisk(monkeypatch, free), FileMetricLogger(tmp_path / "run"), 0

    class Stubborn:
        def handle(self, event):
            nonlocal failures
            try:
                logger.handle(event)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failures += 1

    play(Stubborn(), RUN)
    assert failures or disk.free
    disk.free = 1 << 20
    logger.flush()
    assert tree(tmp_path / "run") == expected


def test_the_next_event_writes_what_waits(tmp_path, monkeypatch):
    disk, logger = SmallDisk(monkeypatch, 10), FileMetricLogger(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        logger.handle(block(1, [0.5, 0.25]))
    with pytest.raises(OSError, match="No space left"):
        logger.handle(paused())
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "0.5,32\n0.2"
    disk.free = 1000
    logger.handle(StatusChanged("running", 1, "train", 2, None))
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "0.5,32\n0.25,32\n"


@pytest.mark.parametrize("free", range(0, 84, 3))
def test_a_rewind_on_a_full_disk_is_done_when_there_is_room(tmp_path, monkeypatch, free):
    expected = straight(tmp_path / "straight", RUN)
    logger = FileMetricLogger(tmp_path / "run")
    play(logger, record_of((1, "train", [block(1, [0.5]), block(2, [9, 9, 9])], None)))
    disk = SmallDisk(monkeypatch, free)
    with pytest.raises(OSError, match="No space left"):
        logger.handle(Rewound(2, "train", 3, RUN, 0, 0))
    with pytest.raises(OSError, match="No space left"):
        logger.handle(block(4, [4], epoch=2))
    disk.free = 1 << 20
    logger.flush()
    expected["train/epoch-2/Loss.log"] += b"4,32\n"
    assert tree(tmp_path / "run") == expected


def test_a_rewind_takes_back_lines_that_never_reached_the_disk(tmp_path, monkeypatch):
    disk, logger, history = SmallDisk(monkeypatch, 10), FileMetricLogger(tmp_path), History()
    first = block(1, [0.5])
    history.handle(first)
    logger.handle(first)
    record = history.snapshot()
    second = block(2, [0.25, 0.125])
    history.handle(second)
    with pytest.raises(OSError, match="No space left"):
        logger.handle(second)
    disk.free = 1000
    rewind(logger, history, record)
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "0.5,32\n"


def test_a_rewind_takes_back_a_whole_pass_that_never_reached_the_disk(tmp_path, monkeypatch):
    disk, logger, history = SmallDisk(monkeypatch, 3), FileMetricLogger(tmp_path), History()
    for event in (block(1, [0.5]), SplitEnded(1, "train", 1, {"Loss": 0.5}), block(1, [0.25], "valid")):
        history.handle(event)
        with pytest.raises(OSError, match="No space left"):
            logger.handle(event)
    disk.free = 1000
    rewind(logger, history, ())
    assert tree(tmp_path) == {}


def test_the_learner_sees_a_logger_error_and_everybody_else_the_event(tmp_path, monkeypatch):
    disk, history = SmallDisk(monkeypatch, 0), History()
    fan_out = FanOut([FileMetricLogger(tmp_path), history])
    with pytest.raises(LoggerError, match=r"FileMetricLogger failed: OSError: .*No space left"):
        fan_out.emit(block(1, [0.5]))
    assert len(history) == 1
    disk.free = 1000
    fan_out.emit(paused())
    assert (tmp_path / "train/epoch-1/Loss.log").read_text() == "0.5,32\n"


def test_a_real_limit_of_the_file_system_loses_nothing(tmp_path):
    """The kernel itself refuses: a limit on file sizes, lifted later. No patched `write`."""
    pytest.importorskip("resource", reason="limits on file sizes are POSIX")
    code = """
        import resource, signal, sys
        sys.path.insert(0, sys.argv[2])
        from metric_events import block
        from notebook_learner.logger import FileMetricLogger
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1001, hard))
        logger, failures = FileMetricLogger(sys.argv[1]), 0
        for step in range(1, 301):
            if step == 250:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            try:
                logger.handle(block(step, [step]))
            except OSError as error:
                failures += 1
        print(failures)
    """
    here = os.path.dirname(__file__)
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path), here]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 50
    lines = (tmp_path / "train/epoch-1/Loss.log").read_text()
    assert lines == "".join(f"{step},32\n" for step in range(1, 301))


def test_a_directory_removed_under_the_run_is_told_and_line_k_stays_step_k(tmp_path):
    logger = FileMetricLogger(tmp_path / "run")
    logger.handle(block(1, [1, 2], extra=5.0))
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="removed while the run wrote to it"):
        logger.handle(block(3, [3], extra=6.0))
    logger.handle(block(4, [4], extra=7.0))
    folder = tmp_path / "run/train/epoch-1"
    assert (folder / "Loss.log").read_text() == "NaN,0\nNaN,0\n3,32\n4,32\n"
    assert (folder / "Top-K_Accuracy_@_TopK(5).log").read_text() == "NaN,0\nNaN,0\n6,32\n7,32\n"


def test_a_directory_removed_between_two_passes_is_told_once(tmp_path):
    logger = FileMetricLogger(tmp_path / "run")
    play(logger, RUN[:1])
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="moved or removed"):
        logger.handle(block(1, [1], "valid"))
    logger.flush()
    assert list(tree(tmp_path / "run")) == ["valid", "valid/epoch-1", "valid/epoch-1/Loss.log"]
    logger.close()


def test_no_log_of_another_run_is_deleted_that_was_put_in_the_place_of_the_one_written_to(tmp_path):
    run, aside, other = tmp_path / "run", tmp_path / "aside", tmp_path / "other"
    logger, history = FileMetricLogger(run), History()
    for sink in (logger, history):
        play(sink, RUN)
    straight(other, RUN)
    run.rename(aside)
    other.rename(run)
    before = tree(run), tree(aside)
    assert len(before[0]) > 4 and before[0] == before[1]
    with pytest.raises(RefusedError, match="another one put in its place"):
        rewind(logger, history, ())
    assert (tree(run), tree(aside)) == before
