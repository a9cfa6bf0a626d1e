"""Forward and back by hand: `step`, `step_epoch`, `run_until`, `rewind`, and what they answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from driver_support import (
    A_TRAIN,
    A_VALID,
    AN_EPOCH,
    BATCH,
    STEPS,
    Boom,
    Trouble,
    assert_ended_like,
    assert_logged_like,
    assert_same_batch,
    assert_stands_like,
    bench,
    by_hand,
    disturb,
    steps_taken,
)

from notebook_learner import Learner, Paused, Position, StateError


def test_every_single_step_stands_where_the_hand_written_loop_stood(tmp_path: Path) -> None:
    b, run = bench(tmp_path), by_hand()
    for taken in range(1, STEPS):
        report = b.learner.step()
        assert (report.steps, report.why) == (1, "budget")
        assert steps_taken(b.learner) == taken
        assert_stands_like(b.learner, run)
        assert_same_batch(b.learner.batch, run.batches[taken - 1])
        disturb()
    b.learner.fit()
    assert_ended_like(b, run)


def test_a_step_says_where_it_went_and_what_it_measured(tmp_path: Path) -> None:
    b, run = bench(tmp_path), by_hand()

    report = b.learner.step(2)

    assert report.position == b.learner.position
    assert (report.steps, report.split, report.why) == (2, "train", "budget")
    assert report.values["Loss"] == run.losses[1, "train"][1]
    assert report.values["Samples Seen"] == 2 * BATCH
    loss, accuracy = report.values["Loss"], report.values["Accuracy"]
    assert str(report) == (
        "2 steps taken, now at epoch 1, train, step 2 of 7; "
        f"train: Loss {loss:.4g}, Accuracy {accuracy:.4g}, Samples Seen 8 (last step)"
    )


def test_stepping_through_validation_says_its_split(tmp_path: Path) -> None:
    b, run = bench(tmp_path), by_hand()
    b.learner.step(A_TRAIN)

    report = b.learner.step()

    assert (report.split, report.steps) == ("valid", 1)
    assert report.values["Loss"] == run.losses[1, "valid"][0]
    assert str(report).startswith("1 step taken, now at epoch 1, valid, step 1 of 3; valid: Loss ")
    assert not b.learner.model.training


def test_steps_cross_from_training_to_validation_and_into_the_next_epoch(tmp_path: Path) -> None:
    b = bench(tmp_path)

    report = b.learner.step(AN_EPOCH + 2)

    assert report.steps == AN_EPOCH + 2
    assert report.position.key == Position(2, "train", 2).key
    assert steps_taken(b.learner) == AN_EPOCH + 2
    assert_stands_like(b.learner, by_hand())


def test_more_steps_than_there_are_end_finished(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(STEPS - 1)

    report = b.learner.step(5)

    assert (report.steps, report.why) == (1, "finished")
    assert str(report).startswith(
        "1 step taken, training is finished, at epoch 2, valid, step 3 of 3; valid: "
    )
    assert b.learner.status == "finished"
    assert_ended_like(b, by_hand())


def test_a_step_after_the_end_takes_none_and_says_why(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.fit()

    report = b.learner.step()

    assert (report.steps, report.values) == (0, {})
    assert str(report) == (
        "no step taken: training is finished, at epoch 2, valid, step 3 of 3; fit(epochs=n) trains n more"
    )


def test_step_epoch_goes_to_the_end_of_the_epoch_from_wherever_it_stands(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(A_TRAIN + 1)

    first, second = b.learner.step_epoch(), b.learner.step_epoch()

    assert (first.steps, first.position.key) == (A_VALID - 1, Position(2, "train", 0).key)
    assert (second.steps, second.why) == (AN_EPOCH, "finished")
    assert_ended_like(b, by_hand())


# run_until -------------------------------------------------------------------------------------------------


def test_run_until_a_condition_stops_after_the_first_step_it_holds_for(tmp_path: Path) -> None:
    b, run = bench(tmp_path), by_hand()
    losses = run.losses[1, "train"]
    limit = sorted(losses)[2]
    first = next(step for step, loss in enumerate(losses, start=1) if loss <= limit)

    report = b.learner.run_until(lambda learner: learner.output.loss.item() <= limit)

    assert report.position.key == Position(1, "train", first).key
    assert report.values["Loss"] <= limit
    assert steps_taken(b.learner) == first
    assert_stands_like(b.learner, run)


def test_a_condition_is_asked_after_a_step_so_that_it_can_be_used_again_and_again(tmp_path: Path) -> None:
    b = bench(tmp_path)
    stops = [b.learner.run_until(lambda learner: learner.position.step == 2) for _ in range(3)]
    assert [report.position.key for report in stops] == [
        Position(1, "train", 2).key,
        Position(1, "valid", 2).key,
        Position(2, "train", 2).key,
    ]


def test_a_condition_that_raises_leaves_the_learner_at_that_boundary(tmp_path: Path) -> None:
    b = bench(tmp_path)

    def condition(learner: Learner) -> bool:
        if learner.position.step == 3:
            raise Boom("in the condition")
        return False

    with pytest.raises(Boom) as caught:
        b.learner.run_until(condition)

    assert steps_taken(b.learner) == 3
    assert_stands_like(b.learner, by_hand())
    assert caught.value.__notes__ == [
        "The learner stands at epoch 1, train, step 3 of 7. Fix the cause and call fit() to go on."
    ]
    b.learner.fit()
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize(
    ("target", "key"),
    [
        (Position(1, "train", 4), (1, 0, 4)),
        ((1, 4), (1, 0, 4)),
        ((1, "train", 7), (1, 0, 7)),
        ((1, "valid", 0), (1, 1, 0)),
        ((2, "valid", 2), (2, 1, 2)),
        ((1, 99), (1, 1, 0)),  # past the split's end: the first boundary after it
    ],
)
def test_run_until_a_position(target: object, key: tuple[int, int, int], tmp_path: Path) -> None:
    b = bench(tmp_path)
    report = b.learner.run_until(target)  # type: ignore[arg-type]
    assert report.position.key == b.learner.position.key == key
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_run_until_a_position_that_lies_behind_takes_no_step(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(4)
    report = b.learner.run_until((1, 2))
    assert str(report) == "0 steps taken, now at epoch 1, train, step 4 of 7"


NO_POSITIONS = ["5", (1,), (1, "test", 3), (0, 3), (1, -1), (1, 2.5), ("1", 2), (1, "valid", 2, 3), (1, True)]


@pytest.mark.parametrize("target", [None, 5, *NO_POSITIONS])
def test_run_until_says_what_a_position_is(target: object, tmp_path: Path) -> None:
    b = bench(tmp_path)
    with pytest.raises(ValueError, match=r"is not a position; give \(epoch, step\)"):
        b.learner.run_until(target)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", NO_POSITIONS)
def test_rewind_says_what_a_position_is(target: object, tmp_path: Path) -> None:
    b = bench(tmp_path)
    with pytest.raises(ValueError, match=r"is not a position; give \(epoch, step\)"):
        b.learner.rewind(to=target)  # type: ignore[arg-type]


def test_a_pause_inside_a_step_verb_raises_paused(tmp_path: Path) -> None:
    trouble = Trouble(where=(1, "train", 2))
    b = bench(tmp_path, trouble)
    trouble.calls["forward"] = lambda: b.learner.pause() if trouble.here() else None

    with pytest.raises(Paused, match=r"paused at epoch 1, train, step 3 of 7"):
        b.learner.step(5)

    assert steps_taken(b.learner) == 3
    assert_stands_like(b.learner, by_hand())


def test_a_stop_inside_a_step_verb_ends_it_and_the_report_says_so(tmp_path: Path) -> None:
    trouble = Trouble(where=(1, "train", 2))
    b = bench(tmp_path, trouble)
    trouble.calls["forward"] = lambda: b.learner.stop() if trouble.here() else None

    report = b.learner.step(5)

    assert (report.steps, report.why) == (3, "stop")
    assert str(report).startswith("3 steps taken, stopped at epoch 1, train, step 3 of 7; train: ")


@pytest.mark.parametrize("verb", ["step", "rewind"])
@pytest.mark.parametrize("count", [0, -2, 1.5])
def test_steps_are_counted_from_one(verb: str, count: int, tmp_path: Path) -> None:
    b = bench(tmp_path)
    with pytest.raises(ValueError, match=rf"{verb}\({count}\)"):
        getattr(b.learner, verb)(count)
    assert b.learner.status == "ready"


# rewind ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [3, A_TRAIN, A_TRAIN + 2, AN_EPOCH + 1, STEPS - 1])
@pytest.mark.parametrize("back", [1, 2, 9])
def test_rewind_takes_back_steps_and_the_way_forward_gives_the_same_bits(
    taken: int, back: int, tmp_path: Path
) -> None:
    b, run = bench(tmp_path), by_hand()
    b.learner.step(taken)

    report = b.learner.rewind(back)

    left = max(0, taken - back)
    assert steps_taken(b.learner) == left
    assert report.exact
    assert report.start.key != report.position.key == b.learner.position.key
    assert b.learner.status == ("paused" if left else "ready")
    assert_stands_like(b.learner, run)
    measured = sum(len(b.learner.history[split, "Loss"]) for split in ("train", "valid") if left)
    assert measured == left
    disturb()
    b.learner.fit()
    assert_ended_like(b, run)


def test_rewind_after_the_end_goes_back_into_the_last_epoch(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.fit()

    report = b.learner.rewind(2)

    assert str(report.position) == "epoch 2, valid, step 1 of 3"
    assert str(report.start) == "epoch 2, valid, step 3 of 3"  # and of no third epoch, which never comes
    assert b.learner.status == "paused"
    b.learner.fit()
    assert_ended_like(b, by_hand())


@pytest.mark.parametrize("to", [(1, 3), (1, "valid", 1), Position(1, "train", 0), (2, 0)])
def test_rewind_to_a_position_across_epochs(to: object, tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(STEPS - 2)

    report = b.learner.rewind(to=to)  # type: ignore[arg-type]

    assert report.exact
    assert report.start.key == Position(2, "valid", 1).key
    assert_stands_like(b.learner, by_hand())
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_rewind_says_where_it_stands_and_how_exact_the_way_was(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(4)
    assert str(b.learner.rewind()) == "rewound to epoch 1, train, step 3 of 7 (3 steps replayed, exact)"
    assert str(b.learner.rewind(2)) == "rewound to epoch 1, train, step 1 of 7 (0 steps replayed, exact)"


def test_a_way_back_that_differs_is_measured(tmp_path: Path) -> None:
    """A model that a cell changed behind the learner's back between two keyframes cannot be exact."""
    b = bench(tmp_path, Trouble())
    b.learner.step(4)
    noise = iter([0.5, 0.25, 0.0, 0.0])
    plain = b.learner.model.body.forward  # type: ignore[union-attr]
    b.learner.model.body.forward = lambda x: plain(x) + next(noise) * torch.tensor([1.0, 0.0, 0.0])  # type: ignore

    report = b.learner.rewind(1)

    assert not report.exact
    assert report.drift > 1e-3
    assert str(report) == (
        "rewound to epoch 1, train, step 3 of 7 (3 steps replayed, but the replay drifted by "
        f"{report.drift:.3g}: Loss differs after epoch 1, train, step 1: a step uses a value that is not in "
        "the state, or an operation is not deterministic; learner.verify() looks for it)"
    )


def test_rewind_goes_back_only(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.step(2)
    with pytest.raises(ValueError, match="epoch 1, valid, step 0 lies ahead of epoch 1, train, step 2 of 7"):
        b.learner.rewind(to=(1, "valid", 0))
    assert steps_taken(b.learner) == 2
    assert_stands_like(b.learner, by_hand())


@pytest.mark.parametrize("finished", [False, True])
def test_rewind_names_no_epoch_that_will_not_come(finished: bool, tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.fit() if finished else b.learner.step(2)
    with pytest.raises(ValueError) as told:
        b.learner.rewind(to=(b.learner.num_epochs + 1, 1))
    here = f"epoch {b.learner.num_epochs}, valid, step 3 of 3" if finished else "epoch 1, train, step 2 of 7"
    assert str(told.value) == (
        f"rewind goes back, but epoch {b.learner.num_epochs + 1}, train, step 1 lies ahead of {here}; "
        f"training ends with epoch {b.learner.num_epochs}, and fit(epochs=n) trains n more"
    )


def test_before_the_first_step_there_is_nothing_to_rewind(tmp_path: Path) -> None:
    b = bench(tmp_path)
    with pytest.raises(StateError, match="no step was taken yet"):
        b.learner.rewind()


def test_an_error_on_the_way_back_leaves_a_consistent_learner(tmp_path: Path) -> None:
    trouble = Trouble("forward", (1, "train", 2))
    trouble.fix()
    b = bench(tmp_path, trouble)
    b.learner.step(5)
    trouble.broken = True

    with pytest.raises(Boom):
        b.learner.rewind(1)

    trouble.fix()
    assert b.learner.position <= Position(1, "train", 4)
    at = b.learner.position
    assert len(b.learner.history["train", "Loss"]) == at.step
    b.learner.fit()
    assert_ended_like(b, by_hand())


def test_logs_follow_a_rewind_at_once(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.learner.fit()
    b.learner.rewind(to=(1, "valid", 2))

    lines = (tmp_path / "valid" / "epoch-1" / "Loss.log").read_text().splitlines()
    assert len(lines) == 2
    assert not (tmp_path / "train" / "epoch-2").exists()

    b.learner.fit()
    assert_logged_like(tmp_path, by_hand())
