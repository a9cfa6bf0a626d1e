"""The panel tells of sets that were evaluated, and how far one is gone through."""

from __future__ import annotations

import numpy as np

from notebook_learner.event import (
    Column,
    Evaluated,
    MetricBlock,
    MetricInfo,
    RunOpened,
    SetProgress,
    SplitRecord,
)
from notebook_learner.widget.board import Board

LOSS = Column(np.array([0.5, 0.25]), np.array([4.0, 4.0]))
SAID = {"Confusion Matrix": "cat 100 %,\ndog 50 %"}
BLOCK = MetricBlock(3, "valid", 1, 2, 40, {"Loss": LOSS}, SAID, 0.1)
FINALS = {"Loss": 0.375, "Accuracy": 91.25}
CLEAN = Evaluated(
    "clean",
    3,
    "train",
    7,
    SplitRecord(3, "valid", (BLOCK,), FINALS),
    (MetricInfo("Loss", "valid"), MetricInfo("Accuracy", "valid", "%", True)),
)


def test_a_set_is_a_row_of_the_table_and_a_line_of_the_log() -> None:
    board = Board()
    board.handle(RunOpened("runs/a", "Net", 10, 3, ()))
    board.handle(CLEAN)
    board.handle(CLEAN)  # evaluated again: it takes the place of the first
    told = board.events()
    assert told["evaluated"] == [
        {
            "name": "clean",
            "values": [["Loss", "0.3750"], ["Accuracy", "91.25 %"]],
            "texts": [["Confusion Matrix", "cat 100 %, dog 50 %"]],
            "batches": "2",
            "where": "epoch 3, train, step 7",
        }
    ]
    assert told["log"][-1].endswith("evaluated clean · Loss 0.3750 · Accuracy 91.25 % · 2 batches")


def test_while_a_set_is_gone_through_the_panel_says_how_far() -> None:
    board = Board()
    board.handle(SetProgress("evaluate clean", 5, 20))
    assert board.moving()["reason"] == "evaluate clean: batch 5 of 20 (25 %)"
    board.handle(SetProgress("evaluate clean", 20, 20, over=True))
    assert board.moving()["reason"] == ""


def test_a_new_run_begins_with_no_sets() -> None:
    board = Board()
    board.handle(CLEAN)
    board.handle(RunOpened("runs/a", "Net", 10, 3, ()))
    assert board.events()["evaluated"] == []
