import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pandas
import pytest
from metric_events import block, play, record_of

from notebook_learner.event import (
    Column,
    MetricBlock,
    MetricInfo,
    Rewound,
    RunOpened,
    SplitEnded,
    SplitStarted,
    StatusChanged,
)
from notebook_learner.logger import Best, History, InMemoryMetricLogger

NAN = float("nan")


def opened(*infos):
    return RunOpened("runs/x", "Net", 10, 9, infos)


def epochs_of_loss(*finals, split="valid", name="Loss"):
    return record_of(*((n, split, [], {name: value}) for n, value in enumerate(finals, 1)))


def history_of(*records):
    history = History()
    for record in records:
        play(history, record)
    return history


@pytest.fixture
def two_epochs():
    return history_of(
        record_of(
            (1, "train", [block(1, [4, 3]), block(3, [2], weight=16)], {"Loss": 3.2}),
            (1, "valid", [block(1, [2.5], "valid")], {"Loss": 2.5}),
            (2, "train", [block(1, [1, 0.5, 0.25], epoch=2)], {"Loss": 0.6}),
            (2, "valid", [block(1, [2.75], "valid", 2)], {"Loss": 2.75}),
        )
    )


# ------------------------------------------------------------------------------------------ reading


def test_values_weights_and_positions_line_up(two_epochs):
    assert two_epochs.values("Loss", "train").tolist() == [4, 3, 2, 1, 0.5, 0.25]
    assert two_epochs.weights("Loss", "train").tolist() == [32, 32, 16, 32, 32, 32]
    assert two_epochs.steps("train").tolist() == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert two_epochs.steps("train")["epoch"].tolist() == [1, 1, 1, 2, 2, 2]
    assert two_epochs["train", "Loss"].tolist() == [4, 3, 2, 1, 0.5, 0.25]
    assert two_epochs["train", "Loss", 2].tolist() == [1, 0.5, 0.25]
    assert two_epochs.values("Loss", "valid", epoch=1).tolist() == [2.5]
    assert len(two_epochs) == 6


def test_epochs_finals_and_best(two_epochs):
    assert two_epochs.epochs("Loss", "valid").tolist() == [2.5, 2.75]
    assert two_epochs.epoch_numbers("valid").tolist() == [1, 2]
    assert two_epochs.final("Loss", "valid") == 2.75
    assert two_epochs.final("Loss", "valid", epoch=1) == 2.5
    assert two_epochs.best("Loss", "valid", mode="min") == Best(1, 2.5)
    assert two_epochs.best("Loss", "valid", mode="max") == Best(2, 2.75)


def test_the_arrays_belong_to_the_caller(two_epochs):
    for take in (two_epochs.values, two_epochs.weights):
        take("Loss", "train")[:] = -1
        assert (take("Loss", "train") > 0).all()


def test_the_repr_is_one_line(two_epochs):
    assert repr(two_epochs) == "History(2 epochs, 6 training steps; train: Loss; valid: Loss)"
    assert repr(History()) == "History(0 epochs, 0 training steps)"
    assert History()


def test_steps_without_a_metric_are_nan_with_no_weight():
    history = history_of(record_of((1, "train", [block(1, [1, 2]), block(3, [3], extra=50.0)], None)))
    assert np.isnan(history.values("Top-K Accuracy @ TopK(5)", "train")).tolist() == [True, True, False]
    assert history.weights("Top-K Accuracy @ TopK(5)", "train").tolist() == [0, 0, 32]


def test_readings_weigh_one():
    history = history_of(record_of((1, "train", [block(1, [1, 2], readings=17.5)], None)))
    assert history.values("CPU Usage", "train").tolist() == [17.5, 17.5]
    assert history.weights("CPU Usage", "train").tolist() == [1, 1]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda h: h.values("Acuracy", "valid"), "no metric 'Acuracy' in valid; there are: Loss"),
        (lambda h: h.best("Acuracy", "valid"), "no metric 'Acuracy' in valid; there are: Loss"),
        (lambda h: h.running("Acuracy", "valid"), "no metric 'Acuracy' in valid; there are: Loss"),
        (lambda h: h.values("Loss", "test"), "no split 'test'; there are: train, valid"),
        (lambda h: h.values("Loss", "train", 7), "no epoch 7 in train; there are: 1 to 2"),
        (
            lambda h: h.final("Loss", "valid", 7),
            "epoch 7 has no final value of 'Loss' in valid; ended epochs: 1 to 2",
        ),
        (lambda h: h["Loss"], 'ask for history["train", "Loss"]'),
        (lambda h: History().values("Loss", "train"), "there are: none yet"),
    ],
)
def test_a_question_without_an_answer_names_what_exists(two_epochs, ask, message):
    with pytest.raises(KeyError) as error:
        ask(two_epochs)
    assert message in error.value.args[0]


def test_a_metric_registered_but_not_measured_yet_is_known():
    history = History()
    history.handle(
        opened(MetricInfo("Loss", "valid", higher_is_better=False), MetricInfo("GPU", "valid", kind="text"))
    )
    assert history.metrics("valid") == ("Loss",)
    assert [info.name for info in history.infos] == ["Loss", "GPU"]
    assert history.values("Loss", "valid").tolist() == []
    assert history.best("Loss", "valid") is None
    assert history.running("Loss", "valid") is None
    with pytest.raises(KeyError, match="no metric 'GPU'"):
        history.values("GPU", "valid")


# --------------------------------------------------------------------------------------------- best


def test_best_takes_its_direction_from_the_metric():
    history = history_of(epochs_of_loss(3, 1, 2), epochs_of_loss(10, 30, 20, name="Accuracy", split="train"))
    history.handle(
        opened(
            MetricInfo("Loss", "valid", higher_is_better=False),
            MetricInfo("Accuracy", "train", higher_is_better=True),
        )
    )
    assert history.best("Loss", "valid") == (2, 1)
    assert history.best("Accuracy", "train") == (2, 30)
    assert history.best("Loss", "valid", mode="max") == (1, 3)


@pytest.mark.parametrize(
    ("finals", "best"),
    [
        ((NAN, 2, NAN, 1), (4, 1)),
        ((2, 1, 1), (2, 1)),
        ((NAN, NAN), None),
        ((NAN, float("inf")), (2, float("inf"))),
    ],
)
def test_nan_never_wins_and_the_first_of_equals_does(finals, best):
    assert history_of(epochs_of_loss(*finals)).best("Loss", "valid", mode="min") == best


def test_a_metric_without_a_direction_has_no_best_unless_told():
    history = history_of(epochs_of_loss(1))
    with pytest.raises(ValueError, match=r"does not say which way is better.*mode='min'"):
        history.best("Loss", "valid")
    with pytest.raises(ValueError, match="must be 'min' or 'max'"):
        history.best("Loss", "valid", mode="lowest")


# ------------------------------------------------------------------------------------------ running


def test_the_running_mean_weighs_and_skips_rows_without_a_value():
    history = History()
    history.handle(SplitStarted(1, "train", 9, 9))
    history.handle(block(1, [4, 3]))
    assert history.running("Loss", "train") == 3.5
    history.handle(block(3, [NAN], weight=0.0))
    history.handle(block(4, [1], weight=64.0))
    assert history.running("Loss", "train") == (4 * 32 + 3 * 32 + 1 * 64) / 128
    history.handle(SplitEnded(1, "train", 4, {"Loss": 2.25}))
    assert history.running("Loss", "train") is None


def test_the_running_mean_looks_at_every_row_once_whatever_is_joined():
    history, values = History(), np.random.default_rng(0).standard_normal(1000)
    for step, value in enumerate(values, 1):
        history.handle(block(step, [value], readings=value))
        if step % 7 == 0 or step == 1000:
            assert history.running("Loss", "train") == pytest.approx(values[:step].mean(), abs=1e-12)
    assert history.running("CPU Usage", "train") == pytest.approx(values.mean(), abs=1e-12)


def test_the_running_mean_goes_back_with_a_rewind():
    history = History()
    history.handle(block(1, [4, 3]))
    before = history.snapshot()
    history.handle(block(3, [100]))
    assert history.running("Loss", "train") > 30
    history.restore(before)
    assert history.running("Loss", "train") == 3.5


# --------------------------------------------------------------------------------- snapshot, restore


def test_a_snapshot_does_not_change_while_the_run_goes_on():
    history, taken = History(), []
    for step in range(1, 300):
        history.handle(block(step, [step]))
        taken.append(history.snapshot())
    history.handle(SplitEnded(1, "train", 299, {"Loss": 150.0}))
    for count, record in enumerate(taken, 1):
        assert record[0].steps == count and record[0].finals is None
        values = np.concatenate([each.columns["Loss"].values for each in record[0].blocks])
        assert values.tolist() == list(range(1, count + 1))


def test_restoring_a_snapshot_takes_back_what_came_after():
    history = history_of(record_of((1, "train", [block(1, [1, 2])], {"Loss": 1.5}), (2, "train", [], None)))
    history.handle(block(1, [3], epoch=2))
    record = history.snapshot()
    history.handle(block(2, [4, 5], epoch=2))
    history.handle(SplitEnded(2, "train", 3, {"Loss": 4.0}))
    assert history.restore(record) == (1, 1)
    assert history.values("Loss", "train").tolist() == [1, 2, 3]
    assert history.epoch_numbers("train").tolist() == [1]
    history.handle(block(2, [9], epoch=2))
    assert history.values("Loss", "train").tolist() == [1, 2, 3, 9]


@pytest.mark.parametrize(
    ("theirs", "kept"),
    [
        (
            [
                (1, "train", [block(1, [1, NAN, 3])], {"Loss": NAN}),
                (2, "train", [block(1, [4, 5], epoch=2)], None),
            ],
            (2, 0),
        ),
        ([(1, "train", [block(1, [1]), block(2, [NAN, 3])], {"Loss": NAN})], (1, 0)),
        ([(1, "train", [block(1, [1, NAN, 3])], {"Loss": 2.0})], (0, 3)),
        ([(1, "train", [block(1, [1, NAN, 3])], None)], (0, 3)),
        ([(1, "train", [block(1, [1, NAN])], None)], (0, 2)),
        ([(1, "train", [block(1, [1, 2, 3])], {"Loss": NAN})], (0, 1)),
        ([(1, "train", [block(1, [1, NAN, 3], weight=31.0)], {"Loss": NAN})], (0, 0)),
        ([(1, "train", [block(1, [1, NAN, 3], extra=1.0)], {"Loss": NAN})], (0, 0)),
        ([(1, "train", [block(1, [1, NAN, 3], texts={"GPU": "x"})], {"Loss": NAN})], (0, 0)),
        ([(1, "valid", [block(1, [1, NAN, 3], "valid")], {"Loss": NAN})], (0, 0)),
        ([], (0, 0)),
    ],
)
def test_restore_tells_how_much_was_there_already(theirs, kept):
    ours = record_of(
        (1, "train", [block(1, [1, NAN]), block(3, [3])], {"Loss": NAN}),
        (2, "train", [block(1, [4, 5], epoch=2)], None),
    )
    history, record = history_of(ours), record_of(*theirs)
    assert history.restore(record) == kept
    assert history.snapshot() == record


def test_zero_and_minus_zero_are_not_the_same():
    history = history_of(record_of((1, "train", [block(1, [1, 0.0])], {"Loss": 0.0})))
    assert history.restore(record_of((1, "train", [block(1, [1, -0.0])], {"Loss": 0.0}))) == (0, 1)


def test_texts_count_up_to_the_row_where_they_differ():
    def told(*texts):
        return record_of(
            (1, "train", [block(n, [0], texts={"GPU": t}) for n, t in enumerate(texts, 1)], None)
        )

    history = history_of(told(*"aabbb"))
    assert history.restore(told(*"aabcb")) == (0, 3)


def test_a_learner_that_restores_first_and_a_plain_sink_end_alike(two_epochs):
    record = two_epochs.snapshot()[:1]
    sink = InMemoryMetricLogger()
    play(sink, two_epochs.snapshot())
    rewound = Rewound(1, "train", 3, record, *two_epochs.restore(record), "asked")
    two_epochs.handle(rewound)
    sink.handle(rewound)
    assert two_epochs.snapshot() == sink.history.snapshot() == record
    assert two_epochs.marks == sink.history.marks == [("rewound", 1, "train", 3, "asked")]


def test_a_pass_that_starts_again_replaces_the_first_try(two_epochs):
    two_epochs.handle(SplitStarted(1, "train", 3, 9))
    two_epochs.handle(block(1, [8]))
    assert two_epochs["train", "Loss", 1].tolist() == [8]


def test_steps_that_come_twice_without_a_rewind_are_a_mistake():
    history = History()
    history.handle(block(1, [1, 2, 3]))
    with pytest.raises(ValueError, match=r"steps 2 to 2 of epoch 1, train came after step 3.*Rewound"):
        history.handle(block(2, [9]))


def test_a_stop_and_a_failure_leave_marks():
    history = History()
    for status in ("running", "paused", "failed", "stopped", "finished"):
        history.handle(StatusChanged(status, 1, "train", 4, 10, "because"))
    assert [mark.kind for mark in history.marks] == ["paused", "failed", "stopped"]
    assert history.marks[0].step == 4 and history.marks[0].text == "because"


def test_the_in_memory_logger_keeps_every_event():
    logger = InMemoryMetricLogger()
    logger.handle(block(1, [1, 2]))
    assert len(logger.events) == 1 and logger.history["train", "Loss"].tolist() == [1, 2]
    assert repr(logger).startswith("InMemoryMetricLogger(1 events, History(1 epoch, 2 training steps")


# ----------------------------------------------------------------------------------- size and threads


def blocks_of_two_metrics(steps, rows):
    random = np.random.default_rng(0)
    for first in range(1, steps + 1, rows):
        weights = np.full(rows, 32.0)
        columns = {name: Column(random.random(rows), weights.copy()) for name in ("Loss", "Accuracy")}
        yield MetricBlock(1, "train", first, rows, first + rows - 1, columns, {"GPU": "3 GB"}, 0.1)


def memory_of(history, blocks):
    tracemalloc.start()
    try:
        for each in blocks:
            history.handle(each)
        open_pass = tracemalloc.get_traced_memory()[0]
        history.handle(SplitEnded(1, "train", len(history), {"Loss": 0.5, "Accuracy": 0.5}))
        return open_pass, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_million_steps_of_two_metrics_take_less_than_40_megabytes():
    history = History()
    while_open, closed = memory_of(history, blocks_of_two_metrics(1_000_000, 160))
    assert len(history) == 1_000_000
    assert while_open < 40e6 and closed < 40e6
    assert len(history.snapshot()[0].blocks) == 1


def test_stepping_one_at_a_time_stays_small():
    history = History()
    while_open, _ = memory_of(history, blocks_of_two_metrics(100_000, 1))
    assert while_open < 4e6
    assert history.values("Loss", "train").tolist() == [
        each.columns["Loss"].values[0] for each in blocks_of_two_metrics(100_000, 1)
    ]


def test_an_open_pass_is_few_blocks_however_it_came():
    history = History()
    for each in blocks_of_two_metrics(20_000, 1):
        history.handle(each)
        assert len(history._open.blocks) < 64 + 16


def test_texts_that_change_keep_their_rows_when_blocks_are_joined():
    history = History()
    for step in range(1, 201):
        history.handle(block(step, [step], texts={"GPU": f"{step // 50} GB"}))
    history.handle(SplitEnded(1, "train", 200, {}))
    (joined,) = history.snapshot()[0].blocks
    assert joined.texts == {"GPU": "4 GB"}
    assert joined.text_runs == {"GPU": ((49, "0 GB"), (50, "1 GB"), (50, "2 GB"), (50, "3 GB"), (1, "4 GB"))}
    assert joined.seconds == pytest.approx(20.0) and joined.iteration == 200


def test_reading_while_another_thread_trains_sees_whole_passes():
    history, done = History(), threading.Event()

    def train():
        for epoch in range(1, 40):
            history.handle(SplitStarted(epoch, "train", 200, 39))
            for step in range(1, 201):
                history.handle(block(step, [step], epoch=epoch))
            history.handle(SplitEnded(epoch, "train", 200, {"Loss": 100.5}))
        done.set()

    thread = threading.Thread(target=train)
    thread.start()
    while not done.is_set():
        steps = history.steps("train")["step"]
        assert (steps == np.arange(len(steps)) % 200 + 1).all()
    thread.join()
    assert len(history) == 39 * 200


# ------------------------------------------------------------------------------------------- pandas


def test_a_wide_frame_has_a_row_a_step(two_epochs):
    frame = two_epochs.to_pandas()
    assert list(frame.columns) == ["epoch", "split", "step", "iteration", "Loss"]
    assert frame["split"].tolist() == ["train"] * 3 + ["valid"] + ["train"] * 3 + ["valid"]
    assert frame.loc[frame["split"] == "train", "Loss"].tolist() == [4, 3, 2, 1, 0.5, 0.25]
    assert frame["iteration"].tolist() == [1, 2, 3, 0, 1, 2, 3, 0]


def test_a_long_frame_has_a_row_a_value(two_epochs):
    frame = two_epochs.to_pandas("long")
    assert list(frame.columns) == ["epoch", "split", "step", "iteration", "metric", "value", "weight"]
    assert len(frame) == 8 and set(frame["metric"]) == {"Loss"}
    with pytest.raises(ValueError, match="'wide'"):
        two_epochs.to_pandas("tall")


def test_frames_of_one_split_and_of_nothing():
    one = history_of(record_of((1, "train", [block(1, [1, 2], extra=3.0)], None)))
    assert one.to_pandas().shape == (2, 6) and one.to_pandas("long").shape == (4, 7)
    assert isinstance(History().to_pandas(), pandas.DataFrame)
    assert History().to_pandas().empty and History().to_pandas("long").empty


def test_without_pandas_the_error_says_what_to_do(monkeypatch, two_epochs):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install pandas.*history\.values"):
        two_epochs.to_pandas()


def test_importing_the_loggers_loads_nothing_heavy():
    code = (
        "import sys, notebook_learner.logger, notebook_learner.store, notebook_learner.event;"
        "print([m for m in ('pandas', 'matplotlib', 'h5py') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pass_that_ends_copies_none_of_those_before():
    history = History()
    play(history, record_of(*((epoch, "train", [], {}) for epoch in range(1, 2001))))
    history.handle(SplitStarted(2001, "train", 1, 3000))
    tracemalloc.start()
    try:
        history.handle(SplitEnded(2001, "train", 0, {}))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4000, "a place for each of 2,000 passes takes 16,000 bytes"
