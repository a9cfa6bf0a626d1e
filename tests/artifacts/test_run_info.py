import json
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.artifacts.clock import MOST, Clock
from notebook_learner.artifacts.run_info import RunInfo, git_commit
from notebook_learner.artifacts.timeline import KINDS, TimelineMark, mark_of, parse_timeline, read_timeline
from notebook_learner.errors import DamagedError
from notebook_learner.event import (
    MetricBlock,
    MetricInfo,
    Notice,
    Rewound,
    RunOpened,
    SplitEnded,
    StatusChanged,
)
from notebook_learner.logger.application import ApplicationLogger

OPENED = RunOpened(
    "runs/x",
    "Net",
    1290,
    10,
    (MetricInfo("Loss", "train", "", False), MetricInfo("GPU", "valid", kind="text", plotted=False)),
    {"device": "cuda:0", "seed": "7", "optimizer": "AdamW"},
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=5), each, max_size=4),
    max_leaves=10,
)


def block(first, count, seconds, epoch=1, split="train"):
    return MetricBlock(epoch, split, first, count, first + count - 1, {}, {}, seconds)


# ------------------------------------------------------------------------------------------- run


def test_a_run_survives_json():
    run = RunInfo.of(OPENED, 12.5)
    assert (run.device, run.seed, run.started, run.ended) == ("cuda:0", "7", 12.5, None)
    assert set(run.versions) == {"notebook_learner", "torch", "numpy", "python"}
    assert RunInfo.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_members_of_later_versions_are_ignored():
    told = RunInfo.of(OPENED, 1.0).to_json()
    told["metrics"][0]["colour"] = "blue"
    assert RunInfo.from_json({**told, "new": [1]}) == RunInfo.of(OPENED, 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"directory": 3}, "directory"),
        ({"parameters": -1}, "parameters"),
        ({"parameters": True}, "parameters"),
        ({"num_epochs": 1e30}, "num_epochs"),
        ({"num_epochs": 1 << 70}, "num_epochs"),
        ({"started": None}, "started"),
        ({"started": float("nan")}, "started"),
        ({"started": 10**400}, "started"),
        ({"ended": "soon"}, "ended"),
        ({"settings": {"seed": 1}}, "settings"),
        ({"metrics": {}}, "metrics"),
        ({"metrics": [{"name": "../Loss", "split": "train", "plotted": True}]}, "name"),
        ({"metrics": [{"name": "Loss", "split": "test", "plotted": True}]}, "split"),
        ({"metrics": [7]}, "a metric"),
    ],
)
def test_a_hostile_run_is_refused_by_name(change, named):
    with pytest.raises(DamagedError, match=named):
        RunInfo.from_json({**RunInfo.of(OPENED, 1.0).to_json(), **change})


@given(json_values)
def test_whatever_json_claims_is_refused_as_damaged(value):
    for take in (RunInfo.from_json, TimelineMark.from_json, Clock.from_json):
        try:
            take(value)
        except DamagedError:
            continue
        assert take == Clock.from_json and value == []


@given(st.dictionaries(st.sampled_from(sorted(RunInfo.of(OPENED, 1.0).to_json())), json_values))
def test_a_run_with_odd_members_is_a_run_or_damaged(changes):
    try:
        run = RunInfo.from_json({**RunInfo.of(OPENED, 1.0).to_json(), **changes})
    except DamagedError:
        return
    assert RunInfo.from_json(run.to_json()) == run


# ------------------------------------------------------------------------------------------- git


def git(folder, *arguments):
    command = ("git", "-c", "user.name=x", "-c", "user.email=x@y.z", *arguments)
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_the_one_that_git_names(tmp_path):
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    assert git_commit(tmp_path / "nowhere") is None
    git(home, "init", "-q", "-b", "feature/one")
    assert git_commit(home) is None
    for name in ("one", "two"):
        git(home, "commit", "-q", "--allow-empty", "-m", name)
    head = git(home, "rev-parse", "HEAD")
    assert git_commit(home) == git_commit(home / "deep") == head
    git(home, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"), "HEAD~1")
    assert git_commit(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD") != head
    git(home, "pack-refs", "--all")
    assert git_commit(home) == head
    git(home, "checkout", "-q", "--detach", "HEAD~1")
    assert git_commit(home) == git(home, "rev-parse", "HEAD") != head


@pytest.mark.parametrize("head", ["", "ref: refs/../../secret", "ref: /etc/passwd", "\0" * 40, "g" * 40])
def test_a_damaged_repository_has_no_commit(tmp_path, head):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    assert git_commit(tmp_path) is None


# ------------------------------------------------------------------------------------------ clock


def test_a_pause_between_two_blocks_belongs_to_no_step():
    clock = Clock()
    clock.add(block(1, 10, 10.0), 10.0)
    clock.add(block(11, 10, 10.0), 1010.0)
    assert clock.times(1, "train", np.arange(9, 13)).tolist() == [9, 10, 1001, 1002]


def test_many_blocks_are_thinned_and_the_ends_stay():
    clock = Clock()
    for first in range(1, 10_001, 10):
        clock.add(block(first, 10, 1.0), (first + 9) / 10)
    (row,) = clock.to_json()
    assert MOST // 4 < len(row[3]) <= MOST
    times = clock.times(1, "train", np.arange(1, 10_001))
    np.testing.assert_allclose(times, np.arange(1, 10_001) / 10, atol=0.2)


def test_cutting_keeps_what_came_before():
    clock = Clock()
    clock.add(block(1, 11, 11.0), 11.0)
    clock.add(block(1, 5, 5.0, split="valid"), 20.0)
    clock.add(block(1, 5, 5.0, epoch=2), 30.0)
    clock.cut(1, "train", 6)
    assert clock.times(1, "train", np.arange(5, 8)).tolist()[:2] == [5, 6]
    assert np.isnan(clock.times(1, "train", np.array([7]))).all()
    assert np.isnan(clock.times(1, "valid", np.array([1]))).all()
    assert np.isnan(clock.times(2, "train", np.array([1]))).all()
    clock.cut(1, "train", 0)
    assert clock.to_json() == []


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 5)), max_size=100), st.integers(0, 200))
def test_a_clock_survives_json_and_cuts(blocks, step):
    clock, first, now = Clock(), 1, 1.7e9
    for count, seconds in blocks:
        now += seconds
        clock.add(block(first, count, seconds), now)
        first += count
    steps = np.arange(1, first + 1)
    before = clock.times(1, "train", steps)
    again = Clock.from_json(json.loads(json.dumps(clock.to_json())))
    np.testing.assert_allclose(again.times(1, "train", steps), before, atol=2e-3, rtol=0)
    clock.cut(1, "train", step)
    after = clock.times(1, "train", steps)
    np.testing.assert_allclose(after[:step], before[:step], atol=1e-5, rtol=0)
    assert np.isnan(after[step:]).all()


PASSES = st.tuples(st.integers(1, 3), st.sampled_from(["train", "valid"]))


@given(st.lists(st.tuples(st.sampled_from(["add", "begin", "cut"]), PASSES, st.integers(0, 40)), max_size=30))
def test_a_clock_that_was_asked_before_says_what_one_that_was_not_does(changes):
    asked, silent = Clock(), Clock()
    for number, (verb, (epoch, split), step) in enumerate(changes):
        for clock in (asked, silent):
            if verb == "add":
                clock.add(block(step + 1, 7, 3.0, epoch, split), 10.0 * number)
            elif verb == "begin":
                clock.begin(epoch, split)
            else:
                clock.cut(epoch, split, step)
        asked.to_json()
    assert asked.to_json() == asked.copy().to_json() == silent.to_json()


def test_steps_that_come_again_take_the_place_of_the_earlier_ones():
    clock = Clock()
    clock.add(block(1, 10, 10.0), 10.0)
    clock.add(block(6, 5, 5.0), 105.0)
    assert clock.times(1, "train", np.array([5, 6, 10])).tolist() == [5, 101, 105]


# --------------------------------------------------------------------------------------- timeline


def test_the_application_log_gives_the_marks_back(tmp_path):
    events = [
        OPENED,
        StatusChanged("running", 1, "train", 0, 240),
        StatusChanged("paused", 3, "train", 117, 240, "asked: to\nwait"),
        Rewound(2, "valid", 5, (), 0, 0, "one look back"),
        Notice("something else"),
        Notice("checkpoint 3-valid-5 saved, 12 MB"),
        SplitEnded(3, "train", 240, {"Loss": 0.5}),
        StatusChanged("failed", 3, "valid", 6, None, "ValueError: x"),
        StatusChanged("finished", 10, "valid", 12, 12),
    ]
    logger = ApplicationLogger(tmp_path / "experiment.log")
    for event in events:
        logger.handle(event)
    logger.close()
    marks = read_timeline(tmp_path / "experiment.log")
    assert [(mark.kind, mark.epoch, mark.split, mark.step, mark.text) for mark in marks] == [
        ("opened", 1, "train", 0, "Net"),
        ("paused", 3, "train", 117, "asked: to wait"),
        ("rewound", 2, "valid", 5, "one look back"),
        ("checkpoint", 3, "valid", 5, "3-valid-5"),
        ("failed", 3, "valid", 6, "ValueError: x"),
        ("finished", 10, "valid", 12, ""),
    ]
    assert all(mark.when > 1.7e9 for mark in marks)


def test_live_marks_are_those_of_the_log():
    paused = StatusChanged("paused", 3, "train", 117, 240, "asked")
    assert mark_of(paused, 5.0) == TimelineMark("paused", 3, "train", 117, 5.0, "asked")
    assert mark_of(Notice("hello"), 5.0) is None
    assert mark_of(StatusChanged("running", 1, "train", 0, None), 5.0) is None


@given(st.lists(st.text(max_size=40)))
def test_any_lines_are_tolerated(lines):
    prefix = "2026-11-21T05:47:00.123Z  INFO  "
    for mark in parse_timeline([*lines, *(prefix + line for line in lines)]):
        assert mark.kind in KINDS


def test_damaged_lines_are_passed_over(tmp_path):
    log = tmp_path / "experiment.log"
    good = b"2026-11-21T05:47:00.123Z  INFO  paused at epoch 3, train, step 117\n"
    bad = (
        b"\0\0\0\n\xff\xfe\n",
        b"2026-02-31T05:47:00.123Z  INFO  paused at epoch 3, train, step 117\n",
        b"2026-11-21T05:47:00.123Z  INFO  paused at epoch " + b"9" * 99 + b", train, step 1\n",
    )
    log.write_bytes(b"".join(bad) + good + good[:-1])
    assert len(read_timeline(log)) == 1
    assert read_timeline(tmp_path / "none.log") == []
    problems = []
    (tmp_path / "link.log").symlink_to(log)
    assert read_timeline(tmp_path / "link.log", problems) == [] and len(problems) == 1
