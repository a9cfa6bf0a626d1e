"""What can be trained on: loaders, lists of batches and datasets, given to `build` or to `fit`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builder_support import SIZES, assert_same_bits, batches, by_hand, classifier, net, quiet, sgd
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from notebook_learner import ConfigurationError, DataError, RegressionOutput


def test_loaders_may_be_given_to_build_or_to_fit(tmp_path):
    finals = []
    for place in ("build", "fit"):
        model = net()
        builder = classifier(tmp_path / place)
        if place == "build":
            learner = builder.build(model, sgd(model), None, batches(), batches((5,)))
            trained = learner.fit()
        else:
            learner = builder.build(model, sgd(model))
            trained = learner.fit(batches(), batches((5,)))
        assert trained is model
        finals.append((trained, learner.history.final("Loss", "valid")))
    assert_same_bits(finals[0][0], finals[1][0])
    assert finals[0][1] == finals[1][1]


def test_fit_without_any_data_says_what_to_give(tmp_path):
    model = net()
    with pytest.raises(ConfigurationError, match=r"nothing to train on: fit\(train_loader"):
        classifier(tmp_path).build(model, sgd(model)).fit()


def test_datasets_are_loaded_in_batches_and_only_training_data_is_shuffled(tmp_path):
    class Numbered(Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            return torch.full((1,), float(index)), torch.zeros(1)

    def step(model, batch):
        split = "train" if model.training else "valid"
        seen[split].append(batch[0].flatten().tolist())
        return RegressionOutput(F.mse_loss(model(batch[0]), batch[1]), model(batch[0]), batch[1])

    seen = {"train": [], "valid": []}
    model = nn.Linear(1, 1)
    builder = quiet(tmp_path).with_batch_size(4).seed(3).train_step(step).valid_step(step)
    builder.build(model, sgd(model, 1e-4)).fit(Numbered(), Numbered())
    assert seen["valid"] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(batch) for batch in seen["train"]] == [4, 4, 2]
    order = [number for batch in seen["train"] for number in batch]
    assert sorted(order) == list(range(10))
    assert order != list(range(10))


def test_an_iterable_dataset_is_loaded_in_its_own_order(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter((torch.full((6,), float(k)), torch.tensor(k % 3)) for k in range(5))

    def step(model, batch):
        seen.append(batch[0][:, 0].tolist())
        return F.cross_entropy(model(batch[0]), batch[1])

    seen = []
    model = net()
    quiet(tmp_path).train_step(step).with_batch_size(2).build(model, sgd(model)).fit(Stream())
    assert seen == [[0, 1], [2, 3], [4]]


def test_a_dataset_of_another_library_is_loaded_where_a_batch_size_asks_for_it(tmp_path):
    class Table:
        """As Hugging Face's: no torch class, samples by index, iteration sample by sample."""

        def __len__(self):
            return 5

        def __getitem__(self, index):
            return torch.zeros(6), 1

    model = net()
    learner = classifier(tmp_path).with_batch_size(2).build(model, sgd(model))
    learner.fit(Table())
    assert learner.history.weights("Loss", "train").tolist() == [2, 2, 1]


def test_with_a_batch_size_a_list_is_still_a_list_of_batches(tmp_path):
    model = net()
    learner = classifier(tmp_path).with_batch_size(2).build(model, sgd(model))
    learner.fit(batches())
    assert learner.history.weights("Loss", "train").tolist() == list(SIZES)


def test_another_loader_takes_the_place_of_the_first(tmp_path):
    model, expected = net(), net()
    learner = classifier(tmp_path).num_epochs(2).build(model, sgd(model))
    learner.fit(batches(), epochs=1)
    learner.fit(batches(seed=2), epochs=1)
    optimizer = sgd(expected)
    by_hand(expected, optimizer, batches())
    by_hand(expected, optimizer, batches(seed=2))
    assert_same_bits(model, expected)


def test_giving_the_same_loader_again_changes_nothing(tmp_path):
    model, expected = net(), net()
    data = batches()
    learner = classifier(tmp_path).num_epochs(2).build(model, sgd(model), None, data)
    learner.step(2)
    learner.fit(data)
    assert_same_bits(model, by_hand(expected, sgd(expected), data, epochs=2))


def test_a_stream_given_again_goes_on_where_it_is(tmp_path):
    """It can be walked only once, so nothing may be read again."""
    model, expected = net(), net()
    stream = iter(batches())
    learner = classifier(tmp_path).build(model, sgd(model), None, stream)
    learner.step(2)
    learner.fit(stream)
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))


def ending_by(error, at, data):
    """A generator that raises before the nth batch; an interrupt in it is such an error, too."""
    for number, batch in enumerate(data):
        if number == at:
            raise error
        yield batch


@pytest.mark.parametrize("error", [ValueError("a torn file"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("at", [0, 2])
def test_what_a_generator_loses_by_an_error_is_not_taken_for_its_end(error, at, tmp_path):
    model, expected = net(), net()
    stream = ending_by(error, at, batches())
    learner = classifier(tmp_path).num_epochs(1).build(model, sgd(model), None, stream)
    with pytest.raises(type(error)):
        learner.fit()
    for _ in range(2):
        with pytest.raises(
            DataError, match=rf"a generator, gave nothing more after its error \({type(error).__name__}"
        ):
            learner.fit()
        assert (learner.status, learner.position.step) == ("failed", at)
    learner.fit(batches())
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))


def test_what_a_generator_for_validation_loses_is_not_taken_for_its_end(tmp_path):
    model = net()
    valid = ending_by(ValueError(), 2, batches())
    learner = classifier(tmp_path).num_epochs(1).build(model, sgd(model), None, batches(), valid)
    with pytest.raises(ValueError):
        learner.fit()
    with pytest.raises(DataError, match="gave nothing more after its error"):
        learner.fit()
    learner.fit(valid=batches())
    assert learner.status == "finished"
    assert len(learner.history.steps("valid")) == len(batches())


class Recovering:
    """An iterator that goes on after an error, as `map` does."""

    def __init__(self, data):
        self.left = [data[0], OSError("not now"), *data[1:]]

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        each = self.left.pop(0)
        if isinstance(each, OSError):
            raise each
        return each


def test_an_iterator_that_goes_on_after_an_error_loses_nothing(tmp_path):
    model, expected = net(), net()
    learner = classifier(tmp_path).num_epochs(1).build(model, sgd(model), None, Recovering(batches()))
    with pytest.raises(OSError, match="not now"):
        learner.fit()
    learner.fit()
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))


def test_a_validation_loader_may_come_later(tmp_path):
    model = net()
    learner = classifier(tmp_path).num_epochs(2).build(model, sgd(model))
    learner.fit(batches(), epochs=1)
    learner.fit(valid=batches(), epochs=1)
    assert learner.history.epoch_numbers("train").tolist() == [1, 2]
    assert learner.history.epoch_numbers("valid").tolist() == [2]


# What cannot be trained on ---------------------------------------------------------------------------


class Numbers(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(6), 0


class Indexed:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(6), 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            Numbers(),
            "the train data is of type Numbers, a dataset; say with_batch_size(32) to have it",
        ),
        (
            Indexed(),
            "the train data is of type Indexed, a dataset; say with_batch_size(32) to have it",
        ),
        (3, "the train data is of type int; give an iterable of batches"),
        ("runs/digits", "the train data is of type str; give an iterable of batches"),
        ({"x": torch.zeros(2)}, "the train data is of type dict; give an iterable of batches"),
        (Numbers, "the train data is the class Numbers; give an instance"),
    ],
    ids=lambda value: value if isinstance(value, str) and "data is" in value else "",
)
def test_what_is_no_data_is_refused_by_build_and_by_fit(given, said, tmp_path):
    for place in ("build", "fit"):
        model = net()
        with pytest.raises(ConfigurationError) as caught:
            if place == "build":
                classifier(tmp_path).build(model, sgd(model), None, given)
            else:
                classifier(tmp_path).build(model, sgd(model)).fit(given)
        (mistake,) = caught.value.mistakes
        assert mistake.startswith(said)


def test_a_validation_loader_without_a_validation_step_is_refused_by_build_and_by_fit(tmp_path):
    def step(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1])

    for place in ("build", "fit"):
        model = net()
        builder = quiet(tmp_path).train_step(step)
        with pytest.raises(ConfigurationError, match=r"no valid_step\(self, batch\); define it"):
            if place == "build":
                builder.build(model, sgd(model), None, batches(), batches())
            else:
                builder.build(model, sgd(model)).fit(batches(), batches())


def test_after_a_refused_loader_a_right_one_trains(tmp_path):
    model, expected = net(), net()
    learner = classifier(tmp_path).build(model, sgd(model))
    with pytest.raises(ConfigurationError):
        learner.fit(3)
    learner.fit(batches())
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))
