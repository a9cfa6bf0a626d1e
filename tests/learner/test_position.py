"""Where training stands: a value that sorts, and reads as a sentence."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner import Position

positions = st.builds(
    Position, st.integers(1, 5), st.sampled_from(["train", "valid"]), st.integers(0, 9), st.integers(0, 99)
)


def test_a_position_says_epoch_split_and_step_and_of_how_many_where_that_is_known() -> None:
    assert str(Position(3, "train", 117, 597, 240)) == "epoch 3, train, step 117 of 240"
    assert str(Position(1, "valid", 0)) == "epoch 1, valid, step 0"


def test_training_begins_at_the_first_step_of_the_first_epoch() -> None:
    assert Position() == Position(1, "train", 0, 0, None)


def test_time_runs_through_training_then_validation_then_the_next_epoch() -> None:
    order = [
        Position(1, "train", 0),
        Position(1, "train", 9),
        Position(1, "valid", 0),
        Position(1, "valid", 1),
        Position(2, "train", 0),
    ]
    for early, late in itertools.combinations(order, 2):
        assert early < late and late > early and early <= late and late >= early
        assert not (late < early or early > late or late <= early or early >= late)


@given(st.lists(positions))
def test_positions_sort_by_their_key(unsorted: list[Position]) -> None:
    assert [p.key for p in sorted(unsorted)] == sorted(p.key for p in unsorted)


@given(positions)
def test_the_number_of_batches_does_not_change_the_place(position: Position) -> None:
    known = Position(position.epoch, position.split, position.step, position.iteration, 240)
    assert known <= position <= known


def test_a_position_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Position().step = 3  # type: ignore[misc]


def test_at_is_another_step_of_the_same_pass() -> None:
    assert Position(2, "valid", 1, 14, 3).at(2, 14) == Position(2, "valid", 2, 14, 3)
