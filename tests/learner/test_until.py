"""The bounds of a run, asked at every boundary how far it may still go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner import Position
from notebook_learner.run.bounds import FAR, At, End, EpochDone, Steps, Until, WhenTrue, as_position, counted

HERE = Position(2, "train", 3)


def test_to_the_end_there_is_no_bound() -> None:
    end = End()
    end.took(10**9)
    assert end.allowance(HERE) == FAR


@pytest.mark.parametrize("n", [0, -1, 1.5, 2.0, "3", None, True, (1, 5), torch.tensor(1.5)])
def test_steps_are_counted_in_whole_numbers_and_whoever_gives_others_reads_what_to_give(n: object) -> None:
    with pytest.raises(ValueError, match=r"^rewind\(.+\): give a whole number of steps, from 1; or do that$"):
        counted("rewind", n, "or do that")


@pytest.mark.parametrize("n", [3, np.int64(3), torch.tensor(3)])
def test_any_whole_number_will_do(n: object) -> None:
    assert counted("step", n, "") == 3 and type(counted("step", n, "")) is int


@given(st.lists(st.integers(1, 5), max_size=10))
def test_steps_are_used_up_however_they_are_cut(blocks: list[int]) -> None:
    steps = Steps(sum(blocks))
    for taken in blocks:
        assert steps.allowance(HERE) >= taken
        steps.took(taken)
    assert steps.allowance(HERE) == 0


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        (Position(2, "train", 7), 4),
        (Position(2, "train", 3), 0),
        (Position(2, "train", 1), 0),
        (Position(1, "valid", 9), 0),
        (Position(2, "valid", 1), FAR),  # another split: its length is the loader's to know
        (Position(3, "train", 4), FAR),
    ],
)
def test_a_position_bounds_the_block_in_its_own_split_only(target: Position, allowed: int) -> None:
    assert At(target).allowance(HERE) == allowed


@pytest.mark.parametrize("here", [HERE, Position(2, "valid", 5)])
def test_an_epoch_is_done_where_the_next_begins(here: Position) -> None:
    until = EpochDone(here)
    assert until.allowance(here) == FAR
    assert until.allowance(Position(3, "train", 0)) == 0


def test_a_condition_is_asked_after_every_step_and_never_before_the_first() -> None:
    asked: list[bool] = []

    def condition() -> bool:
        asked.append(len(asked) == 1)
        return asked[-1]

    until = WhenTrue(condition)
    assert until.allowance(HERE) == 1
    assert asked == []
    until.took(1)
    assert until.allowance(HERE) == 1
    until.took(1)
    assert until.allowance(HERE) == 0
    assert asked == [False, True]


@pytest.mark.parametrize("until", [End(), Steps(1), At(HERE), EpochDone(HERE), WhenTrue(lambda: True)])
def test_every_bound_answers_with_a_number(until: Until) -> None:
    assert isinstance(until.allowance(HERE), int)


def test_positions_as_people_write_them() -> None:
    assert as_position(HERE) is HERE
    assert as_position((3, 117)) == Position(3, "train", 117)
    assert as_position((3, "valid", 0)) == Position(3, "valid", 0)
