"""`rewind`: across validations, epochs, deleted checkpoints, into windows, after errors and restores. The way
forward again gives the same bits and the same logs."""

from __future__ import annotations

import pytest
import torch
from builder_support import adam, batches, classifier, net
from exactness import differences, everything, logs

from notebook_learner import Position, StateError
from notebook_learner.checkpoint import KeepAll, KeepLast
from notebook_learner.metric import Accuracy, Loss

EPOCHS = 4
FEW = 12_000
"""Bytes for keyframes: too few for a single one, so only checkpoints are left to go back to."""
SOME = 30_000
"""Bytes for the keyframe of the epoch at hand, and for none of two epochs before."""


def learner_of(directory, *, window=1, strategy=None, memory=None, seed=5, epochs=EPOCHS, start=True):
    model = net(dropout=0.3, seed=1)
    builder = classifier(directory).num_epochs(epochs).metrics(Loss(), Accuracy())
    builder.grads_accumulation(window).keyframes(memory=memory)
    if seed is not None:
        builder.seed(seed)
    if strategy is not None:
        builder.with_file_checkpointer(start=start).with_checkpointing_strategy(strategy)
    torch.manual_seed(4)
    return builder.build(model, adam(model), lambda step: 0.05 / (1 + step), batches(), batches()[:2])


def assert_ends_like_the_straight_run(learner, directory, tmp_path, **options):
    straight = learner_of(tmp_path / "straight", **options)
    straight.fit()
    learner.fit()
    assert list(differences(everything(learner), everything(straight))) == []
    mine = {name: text for name, text in logs(directory).items() if name != "experiment.log"}
    theirs = {name: text for name, text in logs(tmp_path / "straight").items() if name != "experiment.log"}
    assert mine == theirs


PLACES = {
    "across a validation": ((2, "train", 1), (1, "train", 3)),
    "into a validation": ((2, "train", 2), (1, "valid", 1)),
    "across an epoch's boundary": ((2, "train", 0), (1, "valid", 2)),
    "across two epochs": ((3, "valid", 1), (1, "train", 1)),
    "to the very beginning": ((3, "train", 3), (1, "train", 0)),
    "within an epoch": ((2, "train", 4), (2, "train", 1)),
    "to where it stands": ((2, "train", 2), (2, "train", 2)),
}


@pytest.mark.parametrize("seed", [5, None])
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("way", PLACES)
def test_it_goes_back(way, window, seed, tmp_path):
    there, back = PLACES[way]
    learner = learner_of(tmp_path / "run", window=window, seed=seed)
    learner.run_until(there)
    report = learner.rewind(to=back)
    assert report.exact and report.differs_at is None
    assert learner.position.key == Position(*back).key
    assert_ends_like_the_straight_run(learner, tmp_path / "run", tmp_path, window=window, seed=seed)


@pytest.mark.parametrize(
    ("there", "n", "of", "back"),
    [
        ((2, "train", 0), 1, "train", (1, "train", 3)),
        ((2, "train", 1), 3, "train", (1, "train", 2)),
        ((2, "valid", 2), 5, "train", (1, "train", 3)),
        ((2, "train", 3), 1, "valid", (1, "valid", 1)),
        ((2, "valid", 1), 2, "valid", (1, "valid", 1)),
        ((1, "valid", 1), 9, "train", (1, "train", 0)),
    ],
)
def test_steps_of_one_split_are_counted_alone(there, n, of, back, tmp_path):
    learner = learner_of(tmp_path / "run")
    learner.run_until(there)
    assert learner.rewind(n, of=of).exact
    assert learner.position.key == Position(*back).key
    assert_ends_like_the_straight_run(learner, tmp_path / "run", tmp_path)


def test_a_rewind_over_steps_of_validation_alone_says_that_a_rate_has_no_effect_there(tmp_path):
    learner = learner_of(tmp_path / "run")
    learner.run_until((2, "train", 0))
    report = learner.rewind(2)
    assert report.only_validation and 'rewind(n, of="train") counts training steps' in str(report)
    assert learner.position.key == Position(1, "valid", 0).key
    for back in (learner.rewind(1), learner.rewind(1, of="train"), learner.rewind(to=learner.position)):
        assert back.position.split == "train" and not back.only_validation
        assert "no effect" not in str(back)
    learner.run_until((1, "valid", 2))
    assert learner.rewind(1).only_validation
    learner.fit()
    assert learner.rewind(1).only_validation


def test_which_steps_are_counted_is_checked(tmp_path):
    learner = learner_of(tmp_path / "run")
    with pytest.raises(StateError, match="no step was taken yet"):
        learner.rewind(of="train")
    learner.step(1)
    with pytest.raises(ValueError, match="give 'train' or 'valid'"):
        learner.rewind(of="test")
    with pytest.raises(ValueError, match="leave one out"):
        learner.rewind(to=(1, 0), of="train")
    with pytest.raises(StateError, match="no validation step was taken yet"):
        learner.rewind(of="valid")


@pytest.mark.parametrize("there", [(4, "train", 2), (4, "valid", 2)])
@pytest.mark.parametrize("back", [(2, "train", 0), (2, "train", 3), (2, "valid", 1), (3, "train", 1)])
def test_where_memory_holds_no_keyframe_a_checkpoint_is_one(there, back, tmp_path):
    learner = learner_of(tmp_path / "run", strategy=KeepAll(), memory=FEW)
    learner.run_until(there)
    assert learner._replica.timeline.nearest(Position(*back)) is None, "the premise"
    assert learner._reach.key <= Position(*back).key
    assert learner.rewind(to=back).exact
    assert_ends_like_the_straight_run(learner, tmp_path / "run", tmp_path, strategy=KeepAll(), memory=FEW)


def test_a_checkpoint_that_was_deleted_is_not_gone_back_to(tmp_path):
    learner = learner_of(tmp_path / "run", strategy=KeepLast(1), memory=FEW, start=False)
    learner.run_until((4, "train", 2))
    assert [info.label for info in learner.checkpoints if info.ends_epoch] == ["3"]
    before = learner.position
    assert learner._reach.key == (4, 0, 0), "the places of those that are gone are none to go back to"
    with pytest.raises(StateError, match="no keyframe and no checkpoint at or before epoch 2, train, step 1"):
        learner.rewind(to=(2, 1))
    assert learner.position == before
    assert learner.rewind(to=(4, 1)).exact
    assert_ends_like_the_straight_run(learner, tmp_path / "run", tmp_path, strategy=KeepLast(1), memory=FEW)


def test_the_state_that_the_run_began_with_leads_to_each_step_without_any_checkpoint_before_it(tmp_path):
    learner = learner_of(tmp_path / "run", strategy=KeepLast(1), memory=FEW)
    learner.run_until((4, "train", 2))
    assert [info.label for info in learner.checkpoints if info.ends_epoch] == ["3"]
    report = learner.rewind(to=(2, 1))
    assert report.exact and report.compared and learner.position.key == (2, 0, 1)
    assert_ends_like_the_straight_run(learner, tmp_path / "run", tmp_path, strategy=KeepLast(1), memory=FEW)


@pytest.mark.parametrize("memory", [None, SOME])
def test_without_checkpoints_the_reach_is_the_earliest_place_that_memory_holds(memory, tmp_path):
    learner = learner_of(tmp_path / "run", memory=memory)
    learner.run_until((3, "train", 2))
    reach = learner._reach
    assert reach.key == {None: (1, 0, 0), SOME: (3, 0, 0)}[memory]
    if memory is not None:
        with pytest.raises(StateError, match=f"the earliest place to go back to is {reach};"):
            learner.rewind(to=(2, "valid", 1))
    assert learner.rewind(to=reach).exact
    assert learner.position.key == reach.key == learner._reach.key


def test_a_checkpoint_of_steps_that_were_taken_back_is_not_gone_back_to(tmp_path):
    """Two lines of history in one directory: only this one's checkpoints are on the way."""
    learner = learner_of(tmp_path / "run", strategy=KeepAll(), memory=FEW)
    learner.run_until((2, "train", 2))
    learner.save()
    learner.rewind(to=(2, 1))
    learner.optimizer.param_groups[0]["weight_decay"] = 0.3  # from here on it is another history
    learner.save()
    learner.run_until((3, "train", 3))
    assert {"2-1", "2-2"} <= {info.label for info in learner.checkpoints}
    assert learner.rewind(to=(2, 3)).exact, "from 2-1; the nearer 2-2 knows nothing of the change"


def test_after_an_exception_the_way_back_is_open(tmp_path):
    learner = learner_of(tmp_path / "run")
    learner.step(6)
    step = learner._replica.loop.passes["valid" if learner.position.split == "valid" else "train"].step
    function = step.function

    def failing(batch):
        torch.rand(3)
        raise RuntimeError("broken")

    step.function = failing
    with pytest.raises(RuntimeError, match="broken"):
        learner.fit()
    step.function = function
    assert learner.rewind(4).exact
    assert_ends_like_the_straight_run(learner, tmp_path / "run", tmp_path)


def test_after_a_restore_it_goes_back_to_what_came_before_it(tmp_path):
    learner = learner_of(tmp_path / "run", strategy=KeepAll())
    learner.run_until((2, "train", 3))
    state = learner.capture()
    learner.run_until((3, "train", 1))
    learner.restore(state)
    assert learner.rewind(to=(1, 2)).exact
    learner.run_until((2, "valid", 1))
    learner.restore("latest")
    learner.step(2)
    assert learner.rewind(2).exact
    assert_ends_like_the_straight_run(learner, tmp_path / "run", tmp_path, strategy=KeepAll())


def test_a_new_process_goes_back_to_the_checkpoint_it_began_with_and_to_those_before_it(tmp_path):
    first = learner_of(tmp_path / "run", strategy=KeepAll())
    first.run_until((3, "train", 2))
    first.pause()
    first.artifacts  # noqa: B018  (asked for, so that all is on the disk)
    model = net(dropout=0.3, seed=1)
    builder = classifier(tmp_path / "run").num_epochs(EPOCHS).metrics(Loss(), Accuracy()).seed(5)
    builder.with_file_checkpointer().with_checkpointing_strategy(KeepAll()).checkpoint("2")
    again = builder.build(model, adam(model), lambda step: 0.05 / (1 + step), batches(), batches()[:2])
    again.step(3)
    assert again.rewind(3).exact and again.position.key == (3, 0, 0)
    assert again.rewind(to=(2, 1)).exact
    assert_ends_like_the_straight_run(again, tmp_path / "run", tmp_path, strategy=KeepAll())


def test_by_training_steps_validation_counts_for_nothing(tmp_path):
    learner = learner_of(tmp_path / "run")
    learner.run_until((3, "train", 2))
    assert learner.rewind(to=9).position.key == (3, 0, 1)
    assert learner.rewind(to=4).position.key == (2, 0, 0)
    assert learner.rewind(to=3).position.key == (1, 0, 3)
    with pytest.raises(ValueError, match="has taken 3 training steps"):
        learner.rewind(to=5)
    assert learner.rewind(to=0).position.key == (1, 0, 0)
    assert_ends_like_the_straight_run(learner, tmp_path / "run", tmp_path)
