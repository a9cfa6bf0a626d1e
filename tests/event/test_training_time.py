"""How long the steps of a run took, without its pauses."""

from __future__ import annotations

import numpy as np
import pytest

from notebook_learner.event import MetricBlock, SplitRecord
from notebook_learner.event.training_time import MOST, TrainingTime, between, timed


def block(first, count, seconds, *, epoch=1, split="train", before=0):
    at = before + (first + count - 1 if split == "train" else 0)
    return MetricBlock(epoch, split, first, count, at, {}, {}, seconds)


def test_nothing_is_known_of_a_run_without_times():
    time = TrainingTime()
    assert time.knots() is None and time.now is None
    time.add(block(1, 10, 0.0))
    assert time.knots() is None and time.now is None


def test_steps_without_a_time_count_as_long_as_the_others():
    time = TrainingTime()
    time.add(block(1, 10, 0.0))
    time.add(block(11, 10, 3.0))
    assert time.knots() == ([0.0, 10.0, 20.0], [0.0, 3.0, 6.0])
    assert time.now == 6.0


def test_a_long_run_of_two_speeds_is_told_by_few_places_and_the_newest_is_exact():
    time = TrainingTime()
    for first in range(1, 100_001, 10):
        time.add(block(first, 10, 1.0 if first <= 50_000 else 3.0))
    steps, times = time.knots()
    assert MOST // 4 < len(steps) <= MOST
    assert (steps[-1], times[-1]) == (100_000.0, 20_000.0)
    wanted = np.interp([25_000, 75_000], [0, 50_000, 100_000], [0, 5000, 20_000])
    assert np.interp([25_000, 75_000], steps, times) == pytest.approx(wanted, rel=0.02)


def test_a_part_begins_and_ends_where_it_was_asked_to():
    knots = ([0.0, 10.0, 20.0], [0.0, 2.0, 4.5])
    assert between(knots, 5.0, 15.0, 32) == ([5.0, 10.0, 15.0], [1.0, 2.0, 3.25])
    steps, _ = between((list(range(1000)), list(range(1000))), 0.5, 998.5, 32)
    assert len(steps) <= 32 and (steps[0], steps[-1]) == (0.5, 998.5)


def test_a_record_of_logs_takes_the_times_that_are_known():
    record = (SplitRecord(1, "train", (block(1, 4, 0.0),), {}), SplitRecord(1, "valid", (), {}))
    (train, valid) = timed(record, lambda each: each.count / 2)
    assert train.blocks[0].seconds == 2.0 and train.finals == {} and valid == record[1]
