"""What displays fold from the events."""

from __future__ import annotations

import math

import numpy as np
import pytest
from renderer_run import block, one_epoch, one_pass, opened, play, record_of, status

from notebook_learner.event import Column, MetricBlock, Rewound, SplitEnded, SplitStarted
from notebook_learner.renderer.tally import Tally


def told(*events):
    tally = Tally()
    play(tally, events)
    return tally


def loss_block(values, weights, first=1):
    weights = None if weights is None else np.array(weights, float)
    column = Column(np.array(values, float), weights)
    return MetricBlock(1, "train", first, len(values), first, {"Loss": column}, {}, 0.1)


def test_the_average_is_weighted_by_samples():
    tally = told(opened(), loss_block([1, 4], [32, 16]), loss_block([7], [48], first=3))
    assert tally.average("Loss", "train") == pytest.approx((32 + 64 + 336) / 96)
    assert tally.last("Loss", "train") == 7


def test_steps_without_a_value_leave_no_trace():
    tally = told(opened(), loss_block([2, math.nan], [32, 0]), loss_block([math.nan], [0], first=3))
    assert tally.average("Loss", "train") == 2
    assert tally.last("Loss", "train") == 2


def test_a_loss_that_is_nan_is_shown_as_nan():
    tally = told(opened(), loss_block([2, math.nan], [32, 32]))
    assert math.isnan(tally.average("Loss", "train"))
    assert math.isnan(tally.last("Loss", "train"))


def test_unweighted_readings_count_alike():
    assert told(opened(), loss_block([1, 2, 6], None)).average("Loss", "train") == 3


def test_there_is_nothing_before_the_first_value():
    tally = told(opened())
    assert tally.last("Loss", "train") is None
    assert tally.average("Loss", "valid") is None
    assert tally.best("Loss") is None


def test_the_best_epoch_follows_the_direction_of_the_metric():
    events = [
        SplitEnded(e, "valid", 1, {"Loss": v, "Accuracy": v}) for e, v in ((1, 3.0), (2, math.nan), (3, 1.0))
    ]
    tally = told(opened(), *events)
    assert tally.best("Loss") == (1.0, 3)
    assert tally.best("Accuracy") == (3.0, 1)


def test_the_best_epoch_is_true_whenever_it_is_asked():
    record = (record_of(1), record_of(1, "valid", 10), record_of(2, steps=20, ended=False))
    ends = [SplitEnded(epoch, "valid", 1, {"Loss": value}) for epoch, value in ((1, 3.0), (2, 1.0), (3, 2.0))]
    events = [opened(), *ends, Rewound(2, "train", 20, record, 2, 20), ends[1], opened(), ends[2]]
    asked, found = Tally(), []
    for number, event in enumerate(events, start=1):
        asked.handle(event)
        found.append(asked.best("Loss"))
        assert found[-1] == told(*events[:number]).best("Loss")
    assert found[1:4] == [(3.0, 1), (1.0, 2), (1.0, 2)] and found[-2:] == [None, (2.0, 3)]


def test_the_valid_column_keeps_the_last_epoch_until_the_next_validation():
    tally = told(opened(), *one_epoch(1), *one_pass(2, "train")[:2])
    assert tally.average("Loss", "valid") == 1.5
    assert tally.average("Loss", "train") == 0.5


def test_an_average_of_a_whole_epoch_is_told_from_one_so_far():
    tally = told(opened(), *one_pass(1, "train")[:3])
    assert tally.open("train") and not tally.open("valid")
    tally = told(opened(), *one_epoch(1), *one_pass(2, "train")[:2])
    assert tally.open("train") and not tally.open("valid")
    tally = told(opened(), *one_epoch(1))
    assert not tally.open("train") and not tally.open("valid")


def test_time_left_counts_validation_once_it_was_seen():
    tally = told(opened(), status("running"), *one_epoch(1), SplitStarted(2, "train", 40, 3), block(2))
    # 30 training steps and 10 of validation in this epoch, 50 in the next, at 100 steps a second
    assert tally.seconds_left() == pytest.approx(0.9)


def test_progress_never_runs_back():
    events = [event for epoch in (1, 2, 3) for event in one_epoch(epoch)]
    tally, seen = told(opened()), [0.0]
    for event in events:
        tally.handle(event)
        seen.append(tally.progress)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_the_rate_speaks_of_the_last_seconds():
    slow = [block(1, first=1 + 10 * i, seconds=2.0) for i in range(5)]
    fast = [block(1, first=51 + 10 * i, seconds=0.5) for i in range(12)]
    assert told(opened(), *slow, *fast).pace.steps_per_second == pytest.approx(20)


def test_samples_are_counted_by_the_weights_of_the_loss():
    assert told(opened(), block(1)).pace.samples_per_second == pytest.approx(3200)
    assert told(opened(), block(1, names=["Accuracy"])).pace.samples_per_second is None


def test_after_a_rewind_everything_measured_is_the_record():
    tally = told(opened(), status("running"), *one_epoch(1), *one_epoch(2), *one_pass(3, "train"))
    record = (record_of(1), record_of(1, "valid", 10), record_of(2, steps=20, ended=False))
    tally.handle(Rewound(2, "train", 20, record, 2, 20))
    fresh = told(opened(), status("running"), *one_epoch(1), *one_pass(2, "train")[:3])
    assert tally.place() == fresh.place() == "epoch 2, train, step 20 of 40"
    for split in ("train", "valid"):
        assert tally.average("Loss", split) == fresh.average("Loss", split)
        np.testing.assert_array_equal(tally.epochs("Loss", split), fresh.epochs("Loss", split))
    assert tally.pace.elapsed == pytest.approx(fresh.pace.elapsed)
