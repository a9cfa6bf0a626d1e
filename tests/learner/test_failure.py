"""What an exception keeps alive, and what is written below its traceback."""

from __future__ import annotations

import traceback
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from driver_support import (
    bench,
    note_of,
)
from torch import nn

from notebook_learner.run.failure import explain, release_device_memory

IN_TRAINING = ["forward", "forward's end", "backward", "metric"]
WINDOWS_END = [(1, "train", 1), (1, "train", 5), (1, "train", 6), (2, "train", 3)]  # 6 is a short window


def raised(error: BaseException, holding: Any = None) -> BaseException:
    """An exception that came out of a frame that holds something."""

    def step(held: Any) -> None:
        raise error

    try:
        step(holding)
    except BaseException as caught:
        return caught
    raise AssertionError


def names_held(error: BaseException) -> list[str]:
    return [name for frame, _ in traceback.walk_tb(error.__traceback__) for name in frame.f_locals]


@pytest.mark.parametrize(
    "holding",
    [
        torch.empty(2, device="meta"),
        [torch.empty(2, device="meta")],
        {"x": (torch.empty(2, device="meta"), 1)},
        type("Out", (), {"loss": torch.empty(2, device="meta")})(),
    ],
    ids=["tensor", "list", "nested", "output"],
)
def test_frames_that_hold_memory_of_the_device_are_cleared(holding: Any) -> None:
    error = raised(ValueError("x"), holding)
    release_device_memory(error, torch.device("meta"))
    assert "held" not in names_held(error)


def test_what_a_failed_function_held_is_let_go_and_what_a_cell_holds_stays() -> None:
    cell: dict[str, Any] = {"torch": torch, "weakref": weakref}
    source = """
kept = torch.empty(2, device="meta")
def step():
    activations = torch.empty(2, device="meta")
    global gone
    gone = weakref.ref(activations)
    raise ValueError("x")
step()
"""
    with pytest.raises(ValueError) as caught:
        exec(source, cell)
    assert cell["gone"]() is not None  # the traceback holds it
    release_device_memory(caught.value, torch.device("meta"))
    assert cell["gone"]() is None and cell["kept"].device.type == "meta"


class Odd:
    """An object whose attributes are out for trouble."""

    @property
    def loss(self) -> Any:
        raise ZeroDivisionError

    @property
    def item(self) -> Any:
        return self


def test_frames_that_hold_none_stay_whole_whatever_else_they_hold() -> None:
    ring: list[Any] = []
    ring.append(ring)
    for holding in (None, 3, "text", ring, Odd(), torch.zeros(2), [None] * 10**6, nn.Linear(2, 2)):
        error = raised(ValueError("x"), holding)
        release_device_memory(error, torch.device("meta"))
        assert "held" in names_held(error)


def test_on_the_cpu_frames_stay_whole_for_the_debugger() -> None:
    error = raised(ValueError("x"), torch.zeros(2))
    release_device_memory(error, torch.device("cpu"))
    assert "held" in names_held(error)


def test_the_frames_of_the_cause_are_cleared_too() -> None:
    error = ValueError("outer")
    error.__cause__ = raised(ValueError("inner"), torch.empty(2, device="meta"))
    error.__cause__.__cause__ = error  # a ring is no reason to hang
    release_device_memory(error, torch.device("meta"))
    assert "held" not in names_held(error.__cause__)


def test_a_broken_off_step_has_no_cause_to_fix(tmp_path: Path) -> None:
    error = KeyboardInterrupt()
    explain(error, bench(tmp_path).learner.position, "")
    assert note_of(error) == "The learner stands at epoch 1, train, step 0 of 7. fit() goes on from there."


def test_notes_of_others_stay(tmp_path: Path) -> None:
    error = ValueError("x")
    error.__notes__ = ["a user's own"]
    for _ in range(2):
        explain(error, bench(tmp_path).learner.position, "more")
    assert error.__notes__ == [
        "a user's own",
        "The learner stands at epoch 1, train, step 0 of 7. (more) Fix the cause and call fit() to go on.",
    ]
