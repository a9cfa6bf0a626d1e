"""Training ends when a metric has not improved for a number of epochs."""

from __future__ import annotations

import math

import pytest
import torch
from builder_support import assert_same_bits, batches, classifier, net, sgd
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner import Artifacts, ClassificationOutput, ConfigurationError, RegressionOutput
from notebook_learner.metric import Accuracy, Loss, Metric
from notebook_learner.run.early_stopping import EarlyStopping

BATCH = (4,)


def measured(directory, values):
    """A builder whose validation loss takes these values, epoch by epoch."""
    left = list(values)

    def valid(model, batch):
        return RegressionOutput(torch.tensor(left.pop(0)), model(batch[0]), batch[1])

    return classifier(directory).valid_step(valid).num_epochs(len(values))


def epochs_of(builder):
    model = net()
    learner = builder.build(model, sgd(model))
    learner.fit(batches(BATCH), batches(BATCH))
    return len(learner.history.epoch_numbers("train"))


@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([5, 4, 3, 2, 1], {"patience": 1}, 5),
        ([5, 4, 6, 3, 1], {"patience": 1}, 3),
        ([5, 4, 6, 3, 1], {"patience": 2}, 5),
        ([5, 4, 6, 7, 1], {"patience": 2}, 4),
        ([5, 5, 5, 5, 5], {"patience": 3}, 4),
        ([5, 4.9, 4.8, 4.7, 4], {"patience": 2, "min_delta": 0.5}, 3),
        ([5, 6, 7, 8, 1], {"patience": 1, "warmup": 3}, 4),
        ([1, 2, 3, 4, 5], {"patience": 1, "mode": "max"}, 5),
        ([5, 4, 3, 2, 1], {"patience": 2, "mode": "max"}, 3),
        ([math.nan, math.nan, 3, 2, 1], {"patience": 2}, 2),
        ([5, math.nan, 3, 2, 1], {"patience": 2}, 5),
        ([math.inf, math.inf, 3, 2, 1], {"patience": 2}, 5),
    ],
)
def test_training_ends_when_patience_is_over(values, options, epochs, tmp_path):
    builder = measured(tmp_path, [float(value) for value in values])
    assert epochs_of(builder.early_stopping("Loss", **options)) == epochs


def measured_values():
    return st.lists(st.sampled_from([1.0, 2.0, 3.0, math.nan]), min_size=1, max_size=12)


@given(values=measured_values(), patience=st.integers(1, 4), warmup=st.integers(0, 3))
def test_it_ends_at_the_first_epoch_that_lies_patience_behind_the_best(values, patience, warmup):
    """Against the definition, looking back over the whole list at every epoch."""

    def over(upto):
        best, since = None, 0
        for epoch, value in enumerate(values[:upto], start=1):
            if not math.isnan(value) and (best is None or value < best):
                best, since = value, 0
            elif epoch > warmup:
                since += 1
        return since >= patience

    watch = EarlyStopping("Loss", patience=patience, warmup=warmup)
    for epoch, value in enumerate(values, start=1):
        ended = watch.observe(value)
        assert ended == over(epoch)
        if ended:
            return


def test_the_direction_comes_from_the_metric(tmp_path):
    def valid(model, batch):
        right = shares.pop(0)
        scores = torch.zeros(4, 3)
        scores[:right, 1] = 1.0
        return ClassificationOutput(torch.tensor(0.0), scores, torch.ones(4, dtype=torch.long))

    shares = [1, 2, 3, 2, 1]
    builder = classifier(tmp_path).metrics(Accuracy()).valid_step(valid).num_epochs(5)
    assert epochs_of(builder.early_stopping("Accuracy", patience=1)) == 4


def test_a_metric_without_a_direction_is_given_one(tmp_path):
    class Spread(Metric):
        name = "Spread"

        def update(self, item):
            return item.loss, 1

    builder = measured(tmp_path, [3.0, 2.0, 2.0, 1.0]).metrics(Spread())
    assert epochs_of(builder.early_stopping("Spread", patience=1, mode="min")) == 3


def test_it_may_watch_the_training_split_and_needs_no_validation_then(tmp_path):
    model = net()
    builder = classifier(tmp_path).num_epochs(5).early_stopping("Loss", patience=2, split="train")
    learner = builder.build(model, sgd(model), 0.0)
    learner.fit(batches())
    assert learner.history.epoch_numbers("train").tolist() == [1, 2, 3]


def test_a_watch_over_validation_without_any_is_told_before_training(tmp_path):
    model, before = net(), net()
    learner = classifier(tmp_path).early_stopping("Loss", patience=2).build(model, sgd(model))
    said = r"early_stopping\('Loss'\) goes by the valid Loss, but there is no valid loader; give one, fit\("
    with pytest.raises(ConfigurationError, match=said):
        learner.fit(batches())
    assert_same_bits(model, before)
    with pytest.raises(ConfigurationError, match=said):
        learner.step()
    learner.fit(batches(), batches())
    assert learner.status == "finished"


def test_a_stopped_training_is_finished_and_goes_on_when_asked_for_more(tmp_path):
    values = [1.0, 2.0, 3.0, 4.0, 0.5, 0.6]  # the fourth is waited for once more
    model = net()
    builder = measured(tmp_path, values).early_stopping("Loss", patience=2).metrics(Loss())
    learner = builder.build(model, sgd(model))
    learner.fit(batches(BATCH), batches(BATCH))
    assert (learner.status, learner.position.epoch) == ("finished", 3)
    learner.fit(epochs=3)
    assert learner.history.epoch_numbers("valid").tolist() == [1, 2, 3, 4, 5, 6]


def test_patience_is_part_of_the_state(tmp_path):
    values = [1.0, 2.0, 3.0, 4.0, 5.0]

    def learner(name, values):
        model = net()
        builder = measured(tmp_path / name, values).num_epochs(5).early_stopping("Loss", patience=3)
        return builder.build(model, sgd(model), None, batches(BATCH), batches(BATCH))

    first = learner("first", values)
    first.run_until((3, "train", 0))
    again = learner("again", values[2:])
    again.restore(first.capture())
    again.fit()
    assert again.history.epoch_numbers("valid").tolist() == [1, 2, 3, 4]


def test_the_model_stays_that_of_the_last_epoch(tmp_path):
    model, expected = net(), net()
    learner = (
        measured(tmp_path / "a", [1.0, 2.0, 3.0]).early_stopping("Loss", patience=1).build(model, sgd(model))
    )
    learner.fit(batches(BATCH), batches(BATCH))
    classifier(tmp_path / "b").num_epochs(2).build(expected, sgd(expected)).fit(batches(BATCH))
    assert_same_bits(model, expected)


def best_learner(directory, restore="best", resume=False):
    torch.manual_seed(3)
    model = net(seed=1)
    builder = classifier(directory).num_epochs(30).metrics(Loss()).with_file_checkpointer()
    builder.early_stopping("Loss", 2, restore=restore)
    if resume:
        builder.resume()
    return builder.build(model, sgd(model, lr=3.0), None, batches(), batches(seed=9)[:2])


def test_the_best_epoch_is_returned_to_and_what_came_behind_it_stays_as_a_branch(tmp_path):
    last = best_learner(tmp_path / "last", restore=None)
    last.fit()
    values = list(last.history.epochs("Loss", "valid"))
    best = values.index(min(values)) + 1
    assert best == len(values) - 2  # the patience
    learner = best_learner(tmp_path / "best")
    learner.fit()
    assert learner.status == "finished" and learner.position.epoch == best
    assert list(learner.history.epochs("Loss", "valid")) == values[:best]
    (branch,) = learner.branches
    assert list(branch.epochs("Loss", "valid")) == values
    straight = best_learner(tmp_path / "straight", restore=None)
    straight.run_until((best + 1, "train", 0))
    for one, other in zip(learner.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_that_went_back_to_its_best_stays_finished_in_a_new_process_and_trains_on(tmp_path):
    learner = best_learner(tmp_path / "run")
    learner.fit()
    best = learner.position.epoch
    learner.save()
    assert Artifacts(tmp_path / "run").status == "finished"
    again = best_learner(tmp_path / "run", resume=True)
    assert again.position.epoch == best and again.status == "finished"
    again.fit(epochs=1)
    assert again.position.epoch == best + 1


def test_what_restores_nothing_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"early_stopping\(restore='last'\): choose 'best'"):
        best_learner(tmp_path / "run", restore="last")
