"""Training mode and eval mode, module by module."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builder_support import assert_same_bits, batches, by_hand, classifier, net, quiet, sgd
from torch import nn

from notebook_learner.run.modes import Modes, switch


def seen_by(tmp_path, model, **builder_options):
    """The mode of every module in every step of two epochs."""

    def look(model, batch):
        seen.append([module.training for module in model.modules()])
        return F.cross_entropy(model(batch[0]), batch[1])

    seen = []
    builder = quiet(tmp_path).train_step(look).valid_step(look).num_epochs(2)
    learner = builder.build(model, sgd(model))
    learner.fit(batches((4,)), batches((4,)))
    return seen


def with_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_training_trains_every_module_and_validation_none(tmp_path):
    train, valid = [True] * 4, [False] * 4
    assert seen_by(tmp_path, with_norm()) == [train, valid, train, valid]


def test_a_frozen_module_stays_frozen_through_validation_and_back(tmp_path):
    model = with_norm()
    model[1].eval()
    train, valid = [True, True, False, True], [False] * 4
    assert seen_by(tmp_path, model) == [train, valid, train, valid]
    assert model[1].running_mean.eq(0).all(), "its statistics did not move"


def test_a_model_that_comes_in_eval_mode_is_trained_as_a_whole(tmp_path):
    train, valid = [True] * 4, [False] * 4
    assert seen_by(tmp_path, with_norm().eval()) == [train, valid, train, valid]


def test_eval_mode_set_in_a_pause_does_not_reach_the_next_step(tmp_path):
    """A person predicted something meanwhile."""
    model, expected = net(dropout=0.5), net(dropout=0.5)
    torch.manual_seed(9)
    learner = classifier(tmp_path).build(model, sgd(model), None, batches())
    learner.step(2)
    model.eval()
    learner.fit()
    torch.manual_seed(9)
    assert_same_bits(model, by_hand(expected, sgd(expected), batches()))


def test_a_module_frozen_in_a_pause_stays_so(tmp_path):
    model = with_norm()
    learner = classifier(tmp_path).num_epochs(2).build(model, sgd(model), None, batches(), batches((4,)))
    learner.step(2)
    model[1].eval()
    frozen = model[1].running_mean.clone()
    learner.fit()
    assert torch.equal(model[1].running_mean, frozen)
    learner.fit(epochs=1)
    assert torch.equal(model[1].running_mean, frozen)


def test_a_pause_in_validation_leads_back_to_the_modes_of_training(tmp_path):
    model = with_norm()
    model[1].eval()
    learner = (
        classifier(tmp_path).num_epochs(2).build(model, sgd(model), None, batches((4,)), batches((4, 4)))
    )
    learner.step(2)
    assert learner.position.split == "valid"
    assert not any(module.training for module in model.modules())
    learner.step(2)
    assert [module.training for module in model.modules()] == [True, True, False, True]


def test_an_average_is_put_to_eval_mode_and_the_model_keeps_training():
    model, average = with_norm(), with_norm()
    modes = Modes(model, average)
    modes.enter("train")
    modes.enter("valid")
    assert (model.training, average.training) == (True, False)


# Models whose methods of these names mean something else --------------------------------------------------


class Trainer(nn.Module):
    """It has a `train` of its own, as many a class that was no layer at first."""

    def __init__(self):
        super().__init__()
        self.layers = with_norm()

    def forward(self, x):
        return self.layers(x)

    def train(self, data):
        raise AssertionError("nobody asked it to train itself")


class Runs(Trainer):
    def train(self, trainer=None, **more):
        raise AssertionError("nobody asked it to train itself")


class Asks(Trainer):
    train = nn.Module.train

    def eval(self, data):
        raise AssertionError("nobody asked it to evaluate itself")


class Frozen(nn.BatchNorm1d):
    """It stays in eval mode, by torch's own way of saying so."""

    def train(self, mode=True):
        return super().train(False)


@pytest.mark.parametrize("kind", [Trainer, Runs, Asks])
@pytest.mark.parametrize("inside", [False, True])
def test_a_train_that_means_something_else_is_not_called(tmp_path, kind, inside):
    model = nn.Sequential(kind()) if inside else kind()
    number = len(list(model.modules()))
    train, valid = [True] * number, [False] * number
    assert seen_by(tmp_path, model) == [train, valid, train, valid]
    switch(model, training=False)
    assert seen_by(tmp_path / "again", model) == [train, valid, train, valid]


def test_beside_it_a_train_that_means_the_mode_is_called(tmp_path):
    model = Trainer()
    model.layers[1] = Frozen(4)
    switch(model, training=False)
    switch(model, training=True)
    assert [module.training for module in model.modules()] == [True, True, True, False, True]


def test_evaluate_and_predict_go_by_modes_too(tmp_path):
    torch.manual_seed(0)
    model = Trainer()
    learner = classifier(tmp_path).build(model, sgd(model), None, batches(), batches()[:1])
    learner.fit()
    learner.evaluate(batches()[:1])
    assert len(learner.predict(batches())) == sum(len(y) for _, y in batches())
