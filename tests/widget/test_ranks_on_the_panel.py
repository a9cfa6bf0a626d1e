"""A training on several devices has a table of its processes on the panel."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from page_of_messages import Page, learner_in, page_of

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
    assert [each["where"] for each in table] == [
        f"{each.host}, process {each.pid}" for each in learner.devices
    ]
    assert all(each["alive"] and each["memory"].endswith(("MB", "GB")) for each in table)

    learner.rewind(2)
    page.ask("resync")
    assert [each["step"] for each in page.board["ranks"]] == ["1", "1"]

    os.kill(learner.devices[1].pid, signal.SIGKILL)
    with pytest.raises(RankDied):
        learner.step(2)
    page.ask("resync")
    assert [each["alive"] for each in page.board["ranks"]] == [True, False]


def batch_on(page: Page) -> list[list[str]]:
    """The rows that the panel shows of the batch."""
    rows: list[list[str]] = next(
        each["rows"] for each in page.board["inspection"] if each["title"] == "Batch"
    )
    return rows


def test_a_page_looks_at_the_step_of_the_rank_it_chose(tmp_path: Path) -> None:
    learner = learner_in(tmp_path, devices=["cpu", "cpu"])
    page = page_of(learner)
    page.ask("hello")
    learner.step(3)
    assert page.board["inspected"] is None
    position = "epoch 1, train, step 3 of 10"
    seen = []
    for rank, place in ((0, position), (1, f"{position}, rank 1")):
        assert page.answer("inspect", rank=rank) == (True, f"inspected at {place}")
        page.until(lambda rank=rank: page.board["inspected"] == rank)
        page.until(lambda place=place: page.board["log"][-1].endswith(f"inspected at {place}"))
        seen.append(batch_on(page))
        assert (
            seen[-1] == dict((each["title"], each) for each in learner._last_seen.sections())["Batch"]["rows"]
        )
    assert seen[0] != seen[1], "each has its own part"
    learner.step(1)
    page.until(lambda: page.board["inspected"] is None and page.board["inspection"] == [])


def test_a_rank_that_cannot_tell_says_why_and_is_no_error_of_the_training(tmp_path: Path) -> None:
    learner = learner_in(tmp_path, devices=["cpu", "cpu"])
    batch = torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)
    learner._supplies.use(learner, "train", (batch for _ in range(3)))
    page = page_of(learner)
    page.ask("hello")
    ok, text = page.answer("inspect", rank=1)
    assert not ok and "another rank does not know the one to come" in text
    assert page.answer("inspect", rank=2) == (False, "there is no rank 2; the last one is 1")
    assert (page.board["error"], page.board["inspected"]) == (None, None)
    assert learner.status == "ready"


@pytest.mark.skipif(sys.platform == "win32", reason="kills as POSIX does")
def test_a_rank_that_died_is_told_of_where_it_is_chosen(tmp_path: Path) -> None:
    learner = learner_in(tmp_path, devices=["cpu", "cpu"])
    page = page_of(learner)
    page.ask("hello")
    learner.step(2)
    os.kill(learner.devices[1].pid, signal.SIGKILL)
    ok, text = page.answer("inspect", rank=1)
    assert not ok and text.startswith("rank 1 ")
    page.until(lambda: [each["alive"] for each in page.board["ranks"]] == [True, False])
    assert page.answer("inspect", rank=0)[0], "the others can be looked at"
    page.until(lambda: page.board["inspected"] == 0)


@pytest.mark.skipif(sys.platform == "win32", reason="stops as POSIX does")
def test_a_rank_that_answers_nobody_does_not_make_the_panel_wait(tmp_path: Path) -> None:
    learner = learner_in(tmp_path, devices=["cpu", "cpu"])
    page = page_of(learner)
    page.ask("hello")
    learner.step()
    process = learner.devices[1].pid
    os.kill(process, signal.SIGSTOP)
    try:
        page.ask("resync")  # one that asked the rank would wait for ever
        assert len(page.board["ranks"]) == 2
    finally:
        os.kill(process, signal.SIGCONT)
