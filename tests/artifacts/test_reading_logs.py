import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from notebook_learner.artifacts.read_record import read_record
from notebook_learner.event import Column, MetricBlock, MetricInfo, SplitEnded, SplitStarted
from notebook_learner.event.record import same_pass
from notebook_learner.logger.file import FileMetricLogger
from notebook_learner.logger.history import History

NUMERIC = ("Loss", "Top-K Accuracy @ TopK(5)")
INFOS = tuple(
    MetricInfo(name, split, kind="text" if name == "GPU Memory" else "numeric")
    for name in (*NUMERIC, "CPU Usage", "GPU Memory")
    for split in ("train", "valid")
)

texts = st.one_of(
    st.sampled_from(["", "3", "0.5,final", "1,2", "GPU 0: 3 GB"]),
    st.text(
        st.characters(codec="utf-8", exclude_characters="\0\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), max_size=8
    ),
)


@st.composite
def blocks_of_a_pass(draw, epoch, split, trained):
    first, blocks = 1, []
    for count in draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)):
        last = first + count - 1
        numbers = st.lists(st.floats(), min_size=count, max_size=count).map(lambda v: np.array(v, np.float64))
        weights = st.lists(st.floats(0, 1e9), min_size=count, max_size=count).map(np.array)
        columns = {name: Column(draw(numbers), draw(weights)) for name in NUMERIC}
        columns["CPU Usage"] = Column(draw(numbers))
        iteration = trained + (last if split == "train" else 0)
        gpu = {"GPU Memory": draw(texts)}
        blocks.append(MetricBlock(epoch, split, first, count, iteration, columns, gpu, 0.1))
        first = last + 1
    return blocks


@st.composite
def runs(draw):
    """The events of a run with some epochs, the last pass of which may be cut short."""
    events, trained = [], 0
    epochs = draw(st.integers(1, 3))
    for epoch in range(1, epochs + 1):
        for split in ("train", "valid"):
            events.append(SplitStarted(epoch, split, None, 9))
            blocks = draw(blocks_of_a_pass(epoch, split, trained))
            events += blocks
            trained += blocks[-1].last if split == "train" else 0
            if epoch == epochs and draw(st.booleans()):
                return events
            finals = {name: draw(st.floats()) for name in NUMERIC}
            events.append(SplitEnded(epoch, split, blocks[-1].last, finals))
    return events


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def read(directory, infos=()):
    problems = []
    return read_record(directory, infos, problems), problems


@settings(deadline=None, max_examples=60)
@given(runs())
def test_what_the_logger_wrote_reads_back_as_the_history_it_was(tmp_path_factory, events):
    directory = tmp_path_factory.mktemp("run")
    logger, history = FileMetricLogger(directory), History()
    for event in events:
        logger.handle(event)
        history.handle(event)
    logger.close()

    record, problems = read(directory, INFOS)

    ours = history.snapshot()
    assert problems == []
    assert [(past.epoch, past.split) for past in record] == [(past.epoch, past.split) for past in ours]
    assert all(map(same_pass, record, ours))
    again = History()
    again.restore(record)
    for split in ("train", "valid"):
        assert again.iterations(split).tolist() == history.iterations(split).tolist()
        assert again.steps(split).tolist() == history.steps(split).tolist()


def test_passes_come_epoch_by_epoch_and_train_first(tmp_path):
    for epoch in (1, 2, 10):
        for split in ("valid", "train"):
            write(tmp_path / split / f"epoch-{epoch}" / "Loss.log", "1,1\n")
    record, problems = read(tmp_path)
    assert [(past.epoch, past.split) for past in record] == [
        (epoch, split) for epoch in (1, 2, 10) for split in ("train", "valid")
    ]
    assert [past.blocks[0].iteration for past in record] == [1, 1, 2, 2, 3, 3]
    (problem,) = problems
    assert "has no logs of epochs 3 to 9" in problem


def test_a_killed_pass_is_cut_to_its_shortest_log(tmp_path):
    write(tmp_path / "train/epoch-1/Accuracy.log", "50,2\n75,2\n100,2\n")
    write(tmp_path / "train/epoch-1/Loss.log", "3,2\n2,2\n1")
    write(tmp_path / "train/epoch-1/CPU.log", "17.5\n18\n19\n")
    write(tmp_path / "train/epoch-1/Empty.log", "")
    (past,), problems = read(tmp_path)
    assert problems == []
    assert past.steps == 2 and past.finals is None
    assert past.blocks[0].columns["Loss"].values.tolist() == [3, 2]
    assert past.blocks[0].columns["Accuracy"].values.tolist() == [50, 75]
    assert past.blocks[0].columns["CPU"].weights is None
    assert "Empty" not in past.blocks[0].columns


def test_finals_need_the_last_line_of_every_weighted_metric(tmp_path):
    write(tmp_path / "train/epoch-1/Accuracy.log", "50,2\n50,final\n")
    write(tmp_path / "train/epoch-1/Loss.log", "3,2\n")
    assert read(tmp_path)[0][0].finals is None
    write(tmp_path / "train/epoch-1/Loss.log", "3,2\n3,final\n")
    assert read(tmp_path)[0][0].finals == {"Accuracy": 50, "Loss": 3}


def test_in_a_pass_that_ended_a_metric_that_stopped_early_has_no_value_at_the_last_steps(tmp_path):
    write(tmp_path / "train/epoch-1/Loss.log", "3,2\n2,2\n2.5,final\n")
    write(tmp_path / "train/epoch-1/Other.log", "1,2\n1,final\n")
    (past,), _ = read(tmp_path)
    other = past.blocks[0].columns["Other"]
    assert past.steps == 2
    np.testing.assert_array_equal(other.values, [1, np.nan])
    assert other.weights.tolist() == [2, 0]


def test_infos_restore_names_order_and_kinds(tmp_path):
    write(tmp_path / "train/epoch-1/Learning_Rate.log", "0.1\n")
    write(tmp_path / "train/epoch-1/A_Text.log", "3\n")
    write(tmp_path / "train/epoch-1/Unknown_One.log", "3\n")
    infos = (MetricInfo("Learning Rate", "train"), MetricInfo("A Text", "train", kind="text"))
    (past,), _ = read(tmp_path, infos)
    assert list(past.blocks[0].columns) == ["Learning Rate", "Unknown_One"]
    assert past.blocks[0].texts == {"A Text": "3"}


def test_nul_bytes_end_what_is_valid(tmp_path):
    write(tmp_path / "train/epoch-1/Loss.log", b"3,2\n2,2\n" + b"\0" * 4096 + b"1,2\n1,final\n")
    (past,), (problem,) = read(tmp_path)
    assert past.steps == 2 and past.finals is None
    assert "Loss.log' has NUL bytes from byte 8 on" in problem


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("Loss.log", b"3,2\nword\n", "holds lines that are no numbers"),
        ("Loss.log", b"3,2\n4\n", "holds lines that are no numbers"),
        ("Other.log", b"\xff\xfe\n", "is no text in UTF-8"),
        ("notes.txt", b"hello\n", "is no metric log"),
        (".hidden.log", b"1\n", "is no metric log"),
        (".log", b"1\n", "is no metric log"),
    ],
)
def test_what_is_no_log_is_passed_over_and_reported(tmp_path, name, content, why):
    write(tmp_path / "train/epoch-1/Accuracy.log", "50,2\n")
    write(tmp_path / "train/epoch-1" / name, content)
    (past,), (problem,) = read(tmp_path, (MetricInfo("Loss", "train"),))
    assert list(past.blocks[0].columns) == ["Accuracy"] and not past.blocks[0].texts
    assert why in problem and name in problem


def test_foreign_folders_pipes_and_files_in_the_way_are_reported(tmp_path):
    (tmp_path / "train/epoch-1/Loss.log").mkdir(parents=True)
    os.mkfifo(tmp_path / "train/epoch-1/Pipe.log")
    (tmp_path / "train/epoch-01").mkdir()
    write(tmp_path / "valid", "no folder")
    record, problems = read(tmp_path)
    assert record == ()
    assert len(problems) == 4
    assert sum("not a plain file" in problem for problem in problems) == 2


def test_a_link_out_of_the_directory_is_not_followed(tmp_path):
    write(tmp_path / "secret/epoch-1/Loss.log", "3,2\n")
    run = tmp_path / "run"
    write(run / "train/epoch-1/Accuracy.log", "50,2\n")
    (run / "valid").symlink_to(tmp_path / "secret")
    (run / "train/epoch-2").symlink_to(tmp_path / "secret/epoch-1")
    (run / "train/epoch-1/Loss.log").symlink_to(tmp_path / "secret/epoch-1/Loss.log")
    (run / "train/epoch-1/Again.log").symlink_to("Accuracy.log")
    (past,), problems = read(run)
    assert list(past.blocks[0].columns) == ["Accuracy", "Again"]
    assert len(problems) == 3
    assert all("leads out of the run's directory" in problem for problem in problems)


def test_a_directory_that_is_itself_a_link_is_read(tmp_path):
    write(tmp_path / "run/train/epoch-1/Loss.log", "3,2\n")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (past,), problems = read(tmp_path / "link")
    assert past.steps == 1 and problems == []


def test_an_empty_or_missing_directory_has_no_record(tmp_path):
    assert read(tmp_path) == ((), [])
    assert read(tmp_path / "nowhere") == ((), [])


@pytest.mark.parametrize("text", ["1\n", "1,1\n", "a\nb\n", "\n", "0.123456789,32\n"])
@pytest.mark.rounds(2)
def test_memory_stays_within_twenty_times_the_files(tmp_path, text):
    size = 2 << 20  # tracemalloc and coverage together make a line of a text log a hundred times dearer
    write(tmp_path / "train/epoch-1/Loss.log", text * (size // len(text)))
    tracemalloc.start()
    try:
        (past,), problems = read(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert past.steps == size // len(text) * text.count("\n") and problems == []
    assert peak < 20 * size


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from(["Loss.log", "A.log", "B.log"]), st.binary(max_size=60), min_size=1))
def test_any_bytes_give_a_record_whose_columns_line_up(tmp_path_factory, logs):
    directory = tmp_path_factory.mktemp("run")
    for name, data in logs.items():
        write(directory / "train/epoch-1" / name, data)
    for past in read(directory)[0]:
        for block in past.blocks:
            for column in block.columns.values():
                assert len(column.values) == block.count
                assert column.weights is None or len(column.weights) == block.count
            for runs in block.text_runs.values():
                assert sum(rows for rows, _ in runs) == block.count
