import errno
import logging
import os
import re
import subprocess

import pytest

from notebook_learner.event import (
    EpochEnded,
    Evaluated,
    Marked,
    MetricInfo,
    Notice,
    Rewound,
    RunOpened,
    SplitEnded,
    SplitRecord,
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


EVIL = [
    "run;touch pwned",
    "run; touch pwned",
    "run\ntouch pwned\n",
    "run $(touch pwned)",
    "run `touch pwned`",
    "it's $(touch pwned)",
    "it's;touch pwned;'",
    """a'";touch pwned;"'""",
    'two" ;touch pwned; "quotes',
    "run && touch pwned || touch pwned",
    "run | touch pwned",
    "run > pwned",
    "back\\';touch pwned",
    "# ;\rtouch pwned",
    "\x1b]0;title\x07 \u202e",
]
"""What a directory, a set, a metric, another machine or an error may be called."""


def lines_with(name):
    metric = MetricInfo(name, "train")
    record = SplitRecord(1, "valid", (), {name: 0.5})
    return [
        RunOpened(name, name, 3, 1, (metric,), {"parent": f"{name} at epoch 1", "devices": f"2 on {name}"}),
        Evaluated(name, 1, "train", 2, record),
        SplitEnded(1, "train", 2, {name: 0.5}),
        StatusChanged("failed", 1, "train", 2, None, f"the run's host {name} is gone: {name!r}"),
        Rewound(1, "train", 1, (), 0, 0, name),
        Marked("forked", 1, "train", 2, f"from {name}"),
        Notice(f"this run's directory {name!r} isn't there; put it back", "warning"),
    ]


@pytest.mark.parametrize("name", EVIL)
def test_a_shell_and_a_terminal_do_nothing_with_a_name_in_a_line(name, tmp_path):
    for event in lines_with(name):  # each line alone: a quote that one leaves open would hide the next
        script = tmp_path / "experiment.log"
        logger = ApplicationLogger(script)
        logger.handle(event)
        logger.close()
        line = script.read_text()
        assert line.count("\n") == 1 and line[:-1].isprintable()
        subprocess.run(["bash", "--rcfile", script, "-i", "-c", "true"], cwd=tmp_path, capture_output=True)
        subprocess.run(["bash", script], cwd=tmp_path, capture_output=True)
        script.unlink()
        assert not list(tmp_path.iterdir()), line


def test_a_name_that_a_shell_leaves_alone_is_written_as_it_is(tmp_path):
    (opened, *_) = lines_with("Top-K Accuracy @ TopK(5)")
    assert "train metrics: Top-K Accuracy @ TopK(5);" in describe(opened)[1]
    assert describe(lines_with("run;touch pwned")[0])[1].startswith("run opened in 'run;touch pwned'; ")
