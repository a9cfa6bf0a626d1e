"""A moving average of the weights: against AveragedModel in a loop written by hand."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from builder_support import assert_other_weights, assert_same_bits, batches, by_hand, classifier, net, sgd
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

DECAY = 0.8


def with_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 3))


def averaged_by_hand(model, data, *, epochs, every=1):
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True)
    by_hand(model, sgd(model), data, epochs=epochs, after_step=lambda: average.update_parameters(model))
    return average.module


def test_the_average_is_torchs_to_the_bit_and_the_model_is_not_touched_by_it(tmp_path):
    model, expected = with_norm(), with_norm()
    learner = classifier(tmp_path).ema(DECAY).num_epochs(2).build(model, sgd(model))
    torch.manual_seed(5)
    learner.fit(batches())
    torch.manual_seed(5)
    average = averaged_by_hand(expected, batches(), epochs=2)
    assert_same_bits(model, expected)
    assert_same_bits(learner.tools.ema_model, average)
    assert_other_weights(learner.tools.ema_model, model)


def test_the_average_moves_once_per_window(tmp_path):
    model, expected = net(), net()
    data = batches((4, 4, 4, 4))
    large = [tuple(torch.cat(parts) for parts in zip(*data[i : i + 2], strict=True)) for i in (0, 2)]
    learner = classifier(tmp_path).ema(DECAY).grads_accumulation(2).build(model, sgd(model))
    learner.fit(data)
    average = averaged_by_hand(expected, large, epochs=1)
    for mine, theirs in zip(learner.tools.ema_model.parameters(), average.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("validate", [True, False])
def test_validation_uses_the_average_unless_told_otherwise(validate, tmp_path):
    model = net()
    learner = classifier(tmp_path).ema(DECAY, validate=validate).build(model, sgd(model))
    learner.fit(batches(), batches())
    x, y = (torch.cat(parts) for parts in zip(*batches(), strict=True))
    losses = {
        kind: F.cross_entropy(weights.eval()(x), y).item()
        for kind, weights in ((True, learner.tools.ema_model), (False, model))
    }
    measured = learner.history.final("Loss", "valid")
    assert measured == pytest.approx(losses[validate], rel=1e-6)
    assert measured != pytest.approx(losses[not validate], rel=1e-4)


def test_a_validation_step_function_is_given_the_average(tmp_path):
    def valid(model, batch):
        given.append(model)
        return F.cross_entropy(model(batch[0]), batch[1])

    given = []
    model = net()
    learner = classifier(tmp_path).ema(DECAY).valid_step(valid).build(model, sgd(model))
    learner.fit(batches(), batches((4,)))
    assert given == [learner.tools.ema_model]


def test_fit_returns_the_model_that_was_trained(tmp_path):
    model = net()
    learner = classifier(tmp_path).ema(DECAY).build(model, sgd(model))
    assert learner.fit(batches()) is model


def test_without_an_average_there_is_none(tmp_path):
    model = net()
    assert classifier(tmp_path).build(model, sgd(model)).tools.ema_model is None
