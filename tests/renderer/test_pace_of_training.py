"""How fast a run goes and how long it will take: by its training steps, whatever it does at the moment."""

from __future__ import annotations

import io

import pytest
from renderer_run import block, finals, one_epoch, one_pass, opened, play, record_of, status
from rich.console import Console

from notebook_learner.event import EpochEnded, MetricBlock, Rewound, SplitEnded, SplitRecord, SplitStarted
from notebook_learner.renderer.frame import frame
from notebook_learner.renderer.plain import PlainRenderer
from notebook_learner.renderer.tally import Tally
from notebook_learner.widget.board import Board

EPOCHS = 10
TRAIN, VALID = 0.25, 0.01
"""Seconds of a step: 4 and 100 steps a second."""
STEPS = 40 * TRAIN + 10 * VALID
"""Seconds of an epoch."""


def run(first=1, last=EPOCHS):
    """Epochs, 40 steps each and 10 of validation, step by step."""
    for epoch in range(first, last + 1):
        for split, steps, seconds in (("train", 40, TRAIN), ("valid", 10, VALID)):
            yield SplitStarted(epoch, split, steps, EPOCHS)
            for step in range(1, steps + 1):
                yield block(epoch, split, step, 1, seconds=seconds)
            yield SplitEnded(epoch, split, steps, finals(epoch, split))
        yield EpochEnded(epoch, EPOCHS)


def resumed(epochs=7, step=13):
    """How a new kernel is told of what an earlier one did: how long that took is not known."""

    def untimed(part):
        blocks = tuple(
            MetricBlock(b.epoch, b.split, b.first, b.count, b.iteration, b.columns, b.texts, 0.0)
            for b in part.blocks
        )
        return SplitRecord(part.epoch, part.split, blocks, part.finals)

    record = [
        untimed(record_of(epoch, split, steps))
        for epoch in range(1, epochs + 1)
        for split, steps in (("train", 40), ("valid", 10))
    ]
    record.append(untimed(record_of(epochs + 1, "train", step, ended=False)))
    return Rewound(epochs + 1, "train", step, tuple(record), 0, 0, "checkpoint latest")


def shown(tally):
    """The rate and the time left of the run, where a page and a terminal show them."""
    console = Console(file=io.StringIO(), width=140, color_system=None)
    console.print(frame(tally, 140, 30))
    return console.file.getvalue()


def told(*events):
    tally = Tally()
    play(tally, events)
    return tally


def test_validation_changes_neither_the_rate_nor_the_time_left():
    board, before = Board(), None
    play(board, [opened(EPOCHS), status("running", total=40), *run(1, 1)])
    for event in run(2, 4):
        board.handle(event)
        moving, left = board.moving(), board.tally.seconds_left()
        assert moving["rate"] == "4.0 steps/s"
        if before is not None:
            assert -TRAIN * 1.001 <= left - before <= 0.001
        before = left
    assert before == pytest.approx(6 * STEPS)


def test_before_the_first_validation_has_begun_nothing_is_known_of_it():
    tally = told(opened(EPOCHS), status("running", total=40), *list(run())[:12])
    assert tally.seconds_left() == pytest.approx((400 - 11) * TRAIN)


def test_each_renderer_says_what_the_rate_of_a_validation_is_of():
    events = [opened(EPOCHS), status("running", total=40), *list(run())[:47]]
    tally = told(*events)
    assert (tally.split, tally.step) == ("valid", 4)
    assert "training 4.0 steps/s" in shown(tally) and "valid" in shown(tally)
    lines = io.StringIO()
    play(PlainRenderer(lines, progress_seconds=0), events)
    assert lines.getvalue().splitlines()[-1].endswith(" · training 4.0 steps/s · < 1 s left")
    assert "100 steps/s" not in lines.getvalue() + shown(tally)


def test_after_a_resume_in_a_new_kernel_steps_of_the_earlier_one_do_not_count_as_fast():
    tally = told(opened(EPOCHS), resumed(), status("running", 8, step=13, total=40))
    assert tally.pace.steps_per_second is None and tally.seconds_left() is None
    tally.handle(block(8, first=14, count=1, seconds=TRAIN))
    assert tally.pace.steps_per_second == pytest.approx(4)
    true = (40 - 14) * TRAIN + 10 * VALID + 2 * STEPS
    assert tally.seconds_left() == pytest.approx(true, rel=0.4)  # how long validation takes is a guess so far
    play(tally, [block(8, first=15, count=26, seconds=26 * TRAIN), *list(run(8, 8))[42:]])
    assert tally.seconds_left() == pytest.approx(2 * STEPS)


@pytest.mark.parametrize("record", [(record_of(1),), (), (record_of(1), record_of(1, "valid", 10))])
def test_a_rewind_leaves_rate_and_time_left_as_true_as_they_were(record):
    tally = told(opened(EPOCHS), status("running", total=40), *run(1, 3))
    epoch, step = (2, 0) if len(record) == 2 else (1, 40 * len(record))
    play(tally, [Rewound(epoch, "train", step, record, 0, 0), status("running", epoch, step=step, total=40)])
    assert tally.pace.steps_per_second == pytest.approx(4)
    assert tally.seconds_left() == pytest.approx((40 - step) * TRAIN + 10 * VALID + (EPOCHS - epoch) * STEPS)


def test_a_pause_leaves_them_too():
    tally = told(opened(EPOCHS), status("running", total=40), *list(run())[:12])
    play(tally, [status("paused", step=11), status("running", step=11)])
    assert tally.seconds_left() == pytest.approx((400 - 11) * TRAIN)


# ------------------------------------------------------------------------------- a position and its total


def test_the_total_is_that_of_the_split_that_is_named():
    tally = told(opened(3), status("running"), *one_epoch(1), *one_epoch(2))
    assert tally.place() == "epoch 2, valid, step 10 of 10"
    record = (record_of(1), record_of(1, "valid", 10), record_of(2, steps=39, ended=False))
    tally.handle(Rewound(2, "train", 39, record, 2, 39))
    assert tally.place() == "epoch 2, train, step 39 of 40"


def test_a_total_that_nobody_has_told_is_not_taken_from_another_pass():
    tally = told(opened(3), status("running"), *one_epoch(1), status("paused", 2, "train", 0, None))
    assert tally.place() == "epoch 2, train, step 0 of 40"
    tally = told(opened(3), *one_pass(1, "valid"), status("paused", 2, "train", 3, None))
    assert tally.place() == "epoch 2, train, step 3"
    # Followed files tell of blocks, and of no start.
    tally = told(opened(3), *one_pass(1, "valid"), block(2, "train", 11, 10))
    assert tally.place() == "epoch 2, train, step 20"
