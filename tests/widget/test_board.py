"""What a panel says in words, event by event."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from notebook_learner.event import (
    CheckpointSaved,
    Column,
    EpochEnded,
    Event,
    Marked,
    MetricAdded,
    MetricBlock,
    MetricInfo,
    Notice,
    Rewound,
    RunOpened,
    SplitEnded,
    SplitRecord,
    SplitStarted,
    StatusChanged,
)
from notebook_learner.widget.board import BUTTONS, MOST_LINES, MOST_MARKS, Board, obstacles

EVIL = "<img src=x onerror=alert(1)>"
INFOS = (
    MetricInfo("Loss", "train", higher_is_better=False),
    MetricInfo("Loss", "valid", higher_is_better=False),
    MetricInfo("Accuracy", "valid", "%", True),
    MetricInfo("GPU", "train", kind="text"),
    MetricInfo("Rate", "train", plotted=False),
)


def block(epoch: int, first: int, values: list[float], trained: int, split: Any = "train") -> MetricBlock:
    columns = {"Loss": Column(np.array(values), np.ones(len(values)))}
    texts = {"GPU": "3 GB"} if split == "train" else {}
    return MetricBlock(epoch, split, first, len(values), trained, columns, texts, 0.5)


FIRST: list[Event] = [
    RunOpened("runs/digits", "Net", 52650, 3, INFOS, {"optimizer": "Adam"}),
    StatusChanged("running", 1, "train", 0, 4),
    SplitStarted(1, "train", 4, 3),
    block(1, 1, [4.0, 3.0], 2),
    block(1, 3, [2.0, 1.0], 4),
    SplitEnded(1, "train", 4, {"Loss": 2.5}),
    SplitStarted(1, "valid", 1, 3),
    block(1, 1, [0.5], 4, "valid"),
    SplitEnded(1, "valid", 1, {"Loss": 0.5, "Accuracy": 90.0}),
    EpochEnded(1, 3),
    CheckpointSaved("1", 1, "valid", 1, 12_345),
    SplitStarted(2, "train", 4, 3),
    block(2, 1, [0.75], 5),
    StatusChanged("paused", 2, "train", 1, 4),
]


def board_of(events: list[Event]) -> Board:
    board = Board()
    for event in events:
        board.handle(event)
    return board


def test_who_it_is() -> None:
    told = board_of(FIRST).fixed()
    assert (told["title"], told["directory"], told["model"]) == ("digits", "runs/digits", "Net")
    assert told["parameters"] == "52,650"
    assert told["settings"] == [["optimizer", "Adam"]]
    assert told["metrics"] == [
        {"name": "Loss", "unit": "", "better": "lower", "splits": ["train", "valid"]},
        {"name": "Accuracy", "unit": "%", "better": "higher", "splits": ["valid"]},
    ]


def test_where_it_stands() -> None:
    told = board_of(FIRST).moving()
    assert (told["status"], told["position"]) == ("paused", "epoch 2, train, step 1 of 4")
    assert told["progress"] == pytest.approx((1 + 1 / 4) / 3)
    assert told["rate"] == "3.3 steps/s"  # five training steps in 1.5 s
    assert told["left"] == "", "nothing runs"
    assert told["texts"] == [["GPU", "3 GB"]]
    rows = {(row["metric"], row["split"]): row for row in told["table"]}
    assert list(rows) == [("Loss", "train"), ("Loss", "valid"), ("Accuracy", "valid"), ("Rate", "train")]
    assert rows["Loss", "train"] == {
        "metric": "Loss",
        "unit": "",
        "split": "train",
        "last": "0.7500",
        "epoch": "0.7500",
        "so_far": True,
        "best": "2.500",
        "where": "(1)",
    }
    assert (rows["Accuracy", "valid"]["best"], rows["Accuracy", "valid"]["unit"]) == ("90.00", "%")
    assert rows["Rate", "train"]["last"] == ""
    assert not rows["Accuracy", "valid"]["so_far"], "its epoch is over"


def test_what_happened_stands_at_its_training_step() -> None:
    told = board_of(FIRST).events()
    assert [(mark["x"], mark["kind"], mark["text"]) for mark in told["marks"]] == [
        (4.0, "epoch", "epoch 1"),
        (4.0, "checkpoint", "checkpoint 1"),
        (5.0, "pause", "paused at epoch 2, train, step 1 of 4"),
    ]
    said = "\n".join(line.partition("  ")[2] for line in told["log"])
    for part in (
        "Net, 52,650 parameters",
        "epoch 1, valid: Loss 0.5000, Accuracy 90.00",
        "checkpoint 1 saved, 12.3 kB",
    ):
        assert part in said


def test_a_checkpoint_that_is_told_of_late_stands_where_it_was_taken() -> None:
    board = board_of([*FIRST, block(2, 2, [1.0, 1.0], 7), CheckpointSaved("2-1", 2, "train", 1, 5)])
    assert board.marks[-1].x == 5.0


def test_going_back_takes_marks_along_and_leaves_one() -> None:
    record = (SplitRecord(1, "train", (block(1, 1, [4.0, 3.0], 2),)),)
    board = board_of([*FIRST, Rewound(1, "train", 2, record, 0, 2)])
    assert [(mark.x, mark.kind) for mark in board.marks] == [(2.0, "rewind")]
    assert board.trained == 2
    assert board.moving()["position"].startswith("epoch 1, train, step 2")


def test_an_epoch_that_ends_again_has_one_mark() -> None:
    record = (SplitRecord(1, "train", (block(1, 1, [4.0, 3.0, 2.0, 1.0], 4),)),)
    into_validation = Rewound(1, "valid", 0, record, 0, 2)
    board = board_of([*FIRST, into_validation, EpochEnded(1, 3)])
    assert [mark.kind for mark in board.marks] == ["checkpoint", "rewind", "epoch"]
    assert {mark.x for mark in board.marks} == {4.0}


def test_an_error_stays_until_it_runs_again() -> None:
    board = board_of([*FIRST, StatusChanged("failed", 2, "train", 1, 4, "RuntimeError: boom")])
    assert board.error == {"title": "RuntimeError: boom", "text": ""}
    board.failed("RuntimeError: boom", "Traceback ...")
    assert board.events()["error"] == {"title": "RuntimeError: boom", "text": "Traceback ..."}
    board.handle(StatusChanged("running", 2, "train", 1, 4))
    assert board.events()["error"] is None


def test_it_stays_small_however_much_happens() -> None:
    board = board_of(FIRST)
    for k in range(3 * MOST_MARKS):
        board.handle(Notice(f"note {k}"))
        board.handle(EpochEnded(k, 3 * MOST_MARKS))
    told = board.events()
    assert (len(told["log"]), len(told["marks"])) == (MOST_LINES, MOST_MARKS)
    assert told["log"][-1].endswith(f"note {3 * MOST_MARKS - 1}")


def test_texts_of_users_stay_texts_on_one_line_and_all_is_json() -> None:
    infos = (MetricInfo(EVIL, "train"), MetricInfo("note", "train", kind="text"))
    column = {EVIL: Column(np.array([float("nan")]), np.ones(1))}
    board = board_of(
        [
            RunOpened(EVIL, EVIL + "\n\x1b[31m", 1, 1, infos, {EVIL: EVIL}),
            Notice(EVIL + "\nsecond"),
            MetricBlock(1, "train", 1, 1, 1, column, {"note": EVIL}, 0.1),
            StatusChanged("failed", 1, "train", 1, None, EVIL),
        ]
    )
    told = board.fixed() | board.moving() | board.events()
    assert json.loads(json.dumps(told)) == told
    assert told["metrics"][0]["name"] == EVIL
    assert "\x1b" not in json.dumps(told)
    assert told["error"]["title"] == EVIL


ALWAYS = {"save", "epochs", "set"}
GOES_BACK = {"rewind", "rewind_to", "go_to", "inspect", "verify", "restore"}
STANDING = {"run", "step", "step_epoch"} | GOES_BACK | ALWAYS


@pytest.mark.parametrize(
    ("status", "usable"),
    [
        ("ready", STANDING),
        ("running", {"pause", "stop"} | ALWAYS),
        ("paused", STANDING | {"stop"}),
        ("failed", STANDING | {"stop"}),
        ("stopped", STANDING),
        ("finished", GOES_BACK - {"verify"} | ALWAYS),
    ],
)
def test_buttons_that_make_no_sense_say_why(status: Any, usable: set[str]) -> None:
    found = obstacles(status, begun=True, saved=True)
    assert set(found) == set(BUTTONS)
    assert {name for name, why in found.items() if not why} == usable


def test_what_is_not_there_yet_is_said() -> None:
    found = obstacles("ready", begun=False, saved=False, lacks="there is nothing to train on")
    assert found["rewind"] == found["rewind_to"] == "no step was taken yet"
    assert found["inspect"] == "there is nothing to train on"
    assert found["restore"] == "there is no checkpoint"
    assert found["run"] == found["step"] == "there is nothing to train on"
    assert obstacles("paused", begun=True, saved=True, kept=False)["rewind_to"] == "no earlier step is kept"


def test_a_pause_by_a_breakpoint_says_so_and_another_pause_there_does_not() -> None:
    hit = Marked("breakpoint", 2, "train", 1, "NonFinite(): the loss is NaN")
    board = board_of([*FIRST, hit, StatusChanged("paused", 2, "train", 1, 4, "NonFinite(): the loss is NaN")])
    told = board.moving()
    assert (told["reason"], told["stopped"]) == ("stopped by NonFinite(): the loss is NaN", True)
    assert [mark.kind for mark in board.marks][-2:] == ["pause", "breakpoint"]
    board.handle(StatusChanged("running", 2, "train", 1, 4))
    assert board.moving()["stopped"] is False
    board.handle(StatusChanged("paused", 2, "train", 1, 4, "KeyboardInterrupt"))
    assert (board.moving()["reason"], board.moving()["stopped"]) == ("KeyboardInterrupt", False)


def test_a_metric_that_a_step_logged_is_one_of_them() -> None:
    board = board_of([*FIRST, MetricAdded(MetricInfo("aux", "train"))])
    assert board.fixed()["metrics"][-1] == {"name": "aux", "unit": "", "better": None, "splits": ["train"]}


def test_a_training_without_validation_has_no_empty_row_for_it_after_its_first_epoch() -> None:
    def rows(events: list[Event]) -> list[tuple[str, str]]:
        return [(row["metric"], row["split"]) for row in board_of(events).moving()["table"]]

    both = [("Loss", "train"), ("Loss", "valid"), ("Accuracy", "valid"), ("Rate", "train")]
    train = [("Loss", "train"), ("Rate", "train")]
    alone: list[Event] = [*FIRST[:6], EpochEnded(1, 3)]
    assert rows([*alone, StatusChanged("paused", 1, "train", 4, 4)]) == both, "it may be just before its pass"
    assert rows([*alone, SplitStarted(2, "train", 4, 3)]) == train
    assert rows([*alone, StatusChanged("finished", 1, "train", 4, 4)]) == train
    assert rows([*alone, SplitStarted(2, "train", 4, 3), SplitStarted(2, "valid", 1, 3)]) == both
    assert rows(FIRST) == both
