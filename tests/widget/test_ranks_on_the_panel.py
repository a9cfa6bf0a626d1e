"""A training on several devices has a table of its processes on the panel."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from page_of_messages import learner_in, page_of

from notebook_learner import RankDied
from notebook_learner.widget.board import ranks

EVIL = "<img src=x\nonerror=alert(1)>"


def rank(number: int, **more: object) -> SimpleNamespace:
    known = {"rank": number, "host": "box", "device": "cpu", "pid": 40 + number, "alive": True}
    told = {"step": 1200, "memory": 210_000_000, "device_memory": None, "rate": 212.4}
    return SimpleNamespace(**known | told | more)


def test_a_row_says_where_a_rank_is_how_far_and_how_large() -> None:
    assert ranks([rank(0), rank(1, alive=False, step=None, memory=None, rate=None)]) == [
        {
            "rank": 0,
            "device": "cpu",
            "where": "box, process 40",
            "step": "1,200",
            "rate": "212 steps/s",
            "memory": "210 MB",
            "alive": True,
        },
        {
            "rank": 1,
            "device": "cpu",
            "where": "box, process 41",
            "step": "",
            "rate": "",
            "memory": "",
            "alive": False,
        },
    ]


def test_on_an_accelerator_the_memory_is_the_devices() -> None:
    told = ranks([rank(0, device="cuda:0", device_memory=3_000_000_000), rank(1, device="cuda:1")])
    assert [each["memory"] for each in told] == ["3 GB", "210 MB"]


def test_a_name_is_one_line() -> None:
    assert ranks([rank(0, host=EVIL), rank(1)])[0]["where"] == "<img src=x onerror=alert(1)>, process 40"


def test_one_device_has_no_table(tmp_path: Path) -> None:
    learner = learner_in(tmp_path)
    page = page_of(learner)
    page.ask("hello")
    learner.step(2)
    assert page.board["ranks"] == []


@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_the_table_follows_the_ranks_until_one_dies(tmp_path: Path) -> None:
    learner = learner_in(tmp_path, devices=["cpu", "cpu"])
    page = page_of(learner)
    page.ask("hello")
    learner.step(3)
    page.ask("resync")
    table = page.board["ranks"]
    assert [each["rank"] for each in table] == [0, 1]
    assert [each["step"] for each in table] == ["3", "3"]
    assert [each["where"] for each in table] == [f"{each.host}, process {each.pid}" for each in learner.fleet]
    assert all(each["alive"] and each["memory"].endswith(("MB", "GB")) for each in table)

    learner.rewind(2)
    page.ask("resync")
    assert [each["step"] for each in page.board["ranks"]] == ["1", "1"]

    os.kill(learner.fleet[1].pid, signal.SIGKILL)
    with pytest.raises(RankDied):
        learner.step(2)
    page.ask("resync")
    assert [each["alive"] for each in page.board["ranks"]] == [True, False]


@pytest.mark.skipif(sys.platform == "win32", reason="stops as POSIX does")
def test_a_rank_that_answers_nobody_does_not_make_the_panel_wait(tmp_path: Path) -> None:
    learner = learner_in(tmp_path, devices=["cpu", "cpu"])
    page = page_of(learner)
    page.ask("hello")
    learner.step()
    process = learner.fleet[1].pid
    os.kill(process, signal.SIGSTOP)
    try:
        page.ask("resync")  # one that asked the rank would wait for ever
        assert len(page.board["ranks"]) == 2
    finally:
        os.kill(process, signal.SIGCONT)
