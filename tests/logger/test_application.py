import errno
import logging
import os
import re

import pytest

from notebook_learner.event import (
    EpochEnded,
    MetricInfo,
    Notice,
    Rewound,
    RunOpened,
    SplitEnded,
    SplitStarted,
    StatusChanged,
)
from notebook_learner.logger import ApplicationLogger
from notebook_learner.logger.application import describe

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  (INFO |WARN |ERROR) (\S.*)")


def test_a_line_an_event_with_time_and_level(tmp_path):
    path = tmp_path / "run" / "experiment.log"
    logger = ApplicationLogger(path)
    for event in (SplitStarted(1, "train", 240, 10), Notice("odd", "warning"), Notice("bad", "error")):
        logger.handle(event)
    lines = [LINE.fullmatch(line) for line in path.read_text().splitlines()]
    assert [(line[1].strip(), line[2]) for line in lines] == [
        ("INFO", "epoch 1, train: started, 240 batches"),
        ("WARN", "odd"),
        ("ERROR", "bad"),
    ]
    logger.close()


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (SplitStarted(2, "valid", None, 10), ("info", "epoch 2, valid: started, of unknown length")),
        (
            SplitEnded(1, "train", 240, {"Loss": 0.5, "Accuracy": 84.375}),
            ("info", "epoch 1, train: ended after 240 steps; Loss 0.5, Accuracy 84.375"),
        ),
        (SplitEnded(1, "train", 0, {}), ("info", "epoch 1, train: ended after 0 steps")),
        (EpochEnded(1, 10), ("info", "epoch 1 of 10: ended")),
        (
            StatusChanged("paused", 3, "train", 117, 240, "by the user"),
            ("info", "paused at epoch 3, train, step 117 of 240: by the user"),
        ),
        (
            StatusChanged("failed", 3, "valid", 7, None, "CUDA out of memory"),
            ("error", "failed at epoch 3, valid, step 7: CUDA out of memory"),
        ),
        (Rewound(3, "train", 100, (), 0, 0), ("info", "rewound to epoch 3, train, step 100")),
        (
            RunOpened("runs/x", "Net", 1234, 10, (MetricInfo("Loss", "train"),), {"seed": "42"}),
            (
                "info",
                "run opened in runs/x; Net with 1234 parameters; 10 epochs; train metrics: Loss; seed: 42",
            ),
        ),
        (object(), None),
    ],
)
def test_every_event_in_words(event, line):
    assert describe(event) == line


def test_texts_of_several_lines_stay_on_one(tmp_path):
    path = tmp_path / "experiment.log"
    logger = ApplicationLogger(str(path))
    logger.handle(StatusChanged("failed", 1, "train", 1, 9, "Traceback:\n  File x\r\nError\n"))
    assert path.read_text().count("\n") == 1
    assert path.read_text().endswith("step 1 of 9: Traceback:   File x Error\n")
    logger.close()


def test_two_runs_in_one_process_write_two_files(tmp_path):
    paths = [tmp_path / name / "experiment.log" for name in "ab"]
    loggers = [ApplicationLogger(path) for path in paths]
    for number in range(3):
        for name, logger in zip("ab", loggers, strict=True):
            logger.handle(Notice(f"{name}{number}"))
    for name, path in zip("ab", paths, strict=True):
        assert [line[-2:] for line in path.read_text().splitlines()] == [f"{name}{n}" for n in range(3)]
    for logger in loggers:
        logger.close()


def test_a_later_run_appends(tmp_path):
    for text in ("first", "second"):
        logger = ApplicationLogger(tmp_path / "experiment.log")
        logger.handle(Notice(text))
        logger.close()
    assert [line.split()[-1] for line in (tmp_path / "experiment.log").read_text().splitlines()] == [
        "first",
        "second",
    ]


def test_a_logger_of_ones_own_gets_the_lines(caplog):
    with caplog.at_level(logging.INFO, "mine"):
        logger = ApplicationLogger(logging.getLogger("mine"))
        logger.handle(SplitStarted(1, "train", 240, 10))
        logger.handle(Notice("100 % odd", "warning"))
        logger.close()
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "epoch 1, train: started, 240 batches"),
        ("WARNING", "100 % odd"),
    ]


def test_a_full_disk_keeps_the_lines_for_later(tmp_path, monkeypatch):
    path, real = tmp_path / "experiment.log", os.write
    logger = ApplicationLogger(path)

    def full(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    for text in ("one", "two"):
        with pytest.raises(OSError, match="No space left"):
            logger.handle(Notice(text))
    monkeypatch.setattr(os, "write", real)
    logger.flush()
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["one", "two"]
    logger.close()
