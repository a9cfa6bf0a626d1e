"""`fit`: trains, goes on after whatever stopped it, and says so when there is nothing left to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from driver_support import (
    A_TRAIN,
    A_VALID,
    EPOCHS,
    Trouble,
    assert_ended_like,
    assert_stands_like,
    bench,
    by_hand,
    disturb,
    loaders,
    steps_taken,
)
from torch import nn

from notebook_learner import ConfigurationError, LearnerBuilder, MemoryCheckpointer, Paused, Position
from notebook_learner.event import RunOpened, SplitStarted
from notebook_learner.metric import Loss


def test_fit_returns_the_trained_model(tmp_path: Path) -> None:
    b = bench(tmp_path)
    model = b.learner.model

    assert b.learner.fit() is model

    assert_ended_like(b, by_hand())


def test_fit_takes_the_loaders_that_build_was_not_given(tmp_path: Path) -> None:
    b = bench(tmp_path, data=(None, None))

    b.learner.fit(*loaders())

    assert_ended_like(b, by_hand())


def test_without_any_loader_fit_says_what_to_write(tmp_path: Path) -> None:
    b = bench(tmp_path, data=(None, None))

    with pytest.raises(ConfigurationError, match=r"fit\(train_loader, valid_loader\)"):
        b.learner.fit()

    assert b.learner.status == "ready"
    b.learner.fit(*loaders())
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("place", ["forward", "valid_step"])
def test_a_pause_raises_paused_and_fit_again_goes_on_from_that_step(place: str, tmp_path: Path) -> None:
    trouble = Trouble()
    b = bench(tmp_path, trouble)
    at = (2, "train", 3) if place == "forward" else (1, "valid", 1)
    trouble.where = at
    trouble.calls[place] = lambda: b.learner.pause() if trouble.here() else None

    with pytest.raises(Paused) as paused:
        b.learner.fit()

    behind = Position(at[0], at[1], at[2] + 1)  # type: ignore[arg-type]  # the step that asked is finished
    assert b.learner.position.key == behind.key
    assert b.learner.status == "paused"
    assert paused.value.where == str(b.learner.position)
    disturb()
    trouble.calls.clear()
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_a_stop_makes_fit_return_the_model_as_it_is(tmp_path: Path) -> None:
    trouble = Trouble(where=(1, "train", 4))
    b = bench(tmp_path, trouble)
    trouble.calls["forward"] = lambda: b.learner.stop() if trouble.here() else None

    model = b.learner.fit()

    assert model is b.learner.model
    assert b.learner.status == "stopped"
    assert steps_taken(b.learner) == 5
    assert_stands_like(b.learner, by_hand())


def test_after_a_stop_fit_can_go_on_all_the_same(tmp_path: Path) -> None:
    trouble = Trouble(where=(2, "train", 6))
    b = bench(tmp_path, trouble)
    trouble.calls["forward"] = lambda: b.learner.stop() if trouble.here() else None
    b.learner.fit()
    trouble.calls.clear()

    b.learner.fit()

    assert_ended_like(b, by_hand())


def test_the_request_that_stops_outranks_the_one_that_pauses(tmp_path: Path) -> None:
    trouble = Trouble(where=(1, "train", 2))
    b = bench(tmp_path, trouble)

    def both() -> None:
        if trouble.here():
            b.learner.stop()
            b.learner.pause()

    trouble.calls["forward"] = both

    b.learner.fit()  # does not raise Paused

    assert b.learner.status == "stopped"


# After the end -------------------------------------------------------------------------------------------


def test_fit_when_finished_returns_the_model_and_says_so(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.fit()
    events = len(b.tape.events)

    model = b.learner.fit()

    assert model is b.learner.model
    said = [event.text for event in b.tape.events[events:]]  # type: ignore[union-attr]
    assert said == [
        "nothing was left to do: all 2 epochs are over; fit(epochs=n) trains n more, or set "
        "learner.num_epochs = 4 and run fit() again"
    ]
    assert_ended_like(b, by_hand())


def test_after_the_end_more_epochs_train_on_and_the_curves_continue(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.fit()

    b.learner.fit(epochs=1)
    b.learner.fit(epochs=2)

    run = by_hand(epochs=5)
    assert_ended_like(b, run)
    assert b.learner.num_epochs == 5
    assert b.learner.history.epoch_numbers("valid").tolist() == [1, 2, 3, 4, 5]
    losses = [loss for epoch in range(1, 6) for loss in run.losses[epoch, "train"]]
    assert b.learner.history["train", "Loss"].tolist() == losses


def test_sinks_hear_of_the_number_of_epochs_that_fit_was_told(tmp_path: Path) -> None:
    b = bench(tmp_path)

    b.learner.fit(epochs=3)

    opened = [event for event in b.tape.events if isinstance(event, RunOpened)]
    assert [event.num_epochs for event in opened] == [3]
    assert {event.num_epochs for event in b.tape.events if isinstance(event, SplitStarted)} == {3}


def test_more_epochs_after_a_pause_count_the_running_one(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(3)

    b.learner.fit(epochs=3)

    assert_ended_like(b, by_hand(epochs=3))


@pytest.mark.parametrize("epochs", [0, -1])
def test_fewer_than_one_epoch_more_is_an_error_that_changes_nothing(epochs: int, tmp_path: Path) -> None:
    b = bench(tmp_path)
    with pytest.raises(ValueError, match=rf"fit\(epochs={epochs}\): train at least one epoch more"):
        b.learner.fit(epochs=epochs)
    assert (b.learner.status, b.learner.num_epochs) == ("ready", EPOCHS)


def test_when_early_stopping_ended_it_the_status_says_so_and_fit_too(tmp_path: Path) -> None:
    """The validation loss of a constant model never improves."""
    model = nn.Linear(6, 3)
    b = bench(tmp_path)
    learner = (
        LearnerBuilder(tmp_path / "early")
        .metrics(Loss())
        .loss(F.cross_entropy)
        .num_epochs(10)
        .early_stopping("Loss", patience=2)
        .renderer(b.tape)
        .build(model, torch.optim.SGD(model.parameters(), lr=0.0), None, *loaders())
    )

    learner.fit()

    assert b.tape.statuses == [("running", ""), ("finished", "early stopping")]
    assert learner.position == Position(3, "valid", A_VALID, 3 * A_TRAIN, A_VALID)
    learner.fit()
    assert b.tape.notices == [
        "nothing was left to do: early stopping ended it after epoch 3 of 10; fit(epochs=n) trains n more, "
        "or set learner.num_epochs = 6 and run fit() again"
    ]
    learner.fit(epochs=1)
    assert learner.position.epoch == 4
    learner.num_epochs = 8  # as the sentence says
    learner.fit()
    assert learner.position.epoch > 4


# Status and position ---------------------------------------------------------------------------------------


def test_plain_ends_need_no_reason(tmp_path: Path) -> None:
    trouble = Trouble(where=(1, "train", 5))
    b = bench(tmp_path, trouble)
    learner = b.learner
    assert learner.status == "ready"

    learner.step()
    trouble.calls["forward"] = lambda: learner.pause() if trouble.here() else None
    with pytest.raises(Paused):
        learner.fit()
    trouble.where = (2, "train", 1)
    trouble.calls["forward"] = lambda: learner.stop() if trouble.here() else None
    learner.fit()
    learner.fit()

    said = ["running", "paused", "running", "paused", "running", "stopped", "running", "finished"]
    assert b.tape.statuses == [(status, "") for status in said]
    assert learner.status == "finished"


def test_at_the_end_the_position_is_the_last_step_not_the_first_of_an_epoch_that_will_not_come(
    tmp_path: Path,
) -> None:
    b = bench(tmp_path)
    b.learner.fit()
    assert str(b.learner.position) == "epoch 2, valid, step 3 of 3"


def test_stop_marks_a_paused_learner_as_stopped_and_leaves_others_alone(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.stop()
    assert b.learner.status == "ready"
    b.learner.step()

    b.learner.stop()
    b.learner.stop()

    assert b.learner.status == "stopped"
    assert b.tape.statuses == [("running", ""), ("paused", ""), ("stopped", "")]


def test_a_jump_to_the_very_end_is_finished_and_one_to_the_start_is_ready(tmp_path: Path) -> None:
    b = bench(tmp_path)
    start = b.learner.capture()
    b.learner.step(3)
    middle = b.learner.capture()
    b.learner.fit()
    end = b.learner.capture()

    statuses = []
    for state in (start, middle, end):
        b.learner.restore(state)
        statuses.append(b.learner.status)

    assert statuses == ["ready", "paused", "finished"]
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_summary_says_how_many_of_how_many_epochs_are_done(tmp_path: Path) -> None:
    b = bench(tmp_path)
    assert b.learner.summary().settings["epochs"] == "0 of 2"
    b.learner.step_epoch()
    assert b.learner.summary().settings["epochs"] == "1 of 2"
    b.learner.fit(epochs=3)
    assert b.learner.summary().settings["epochs"] == "4 of 4"


# Checkpoints -----------------------------------------------------------------------------------------------


def test_fit_goes_on_from_the_checkpoint_that_build_was_told(tmp_path: Path) -> None:
    keeper = MemoryCheckpointer()
    bench(tmp_path, configure=lambda builder: builder.with_checkpointer(keeper)).learner.fit()

    again = bench(tmp_path, configure=lambda builder: builder.with_checkpointer(keeper).checkpoint(1))
    again.learner.fit()

    assert_ended_like(again, by_hand())


def test_a_checkpoint_goes_with_loaders_that_only_fit_is_given(tmp_path: Path) -> None:
    keeper = MemoryCheckpointer()
    bench(tmp_path, configure=lambda builder: builder.with_checkpointer(keeper)).learner.fit()

    again = bench(
        tmp_path,
        data=(None, None),
        configure=lambda builder: builder.with_checkpointer(keeper).checkpoint(1),
    )
    again.learner.fit(*loaders())

    assert_ended_like(again, by_hand())
