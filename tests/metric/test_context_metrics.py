"""Metrics that ask the context and not the output: rate, gradient norm, speed."""

import numpy as np
import pytest
import torch

from notebook_learner.metric import GradNorm, IterationSpeed, LearningRate, MetricGroup


@pytest.fixture
def group(context):
    group = MetricGroup([LearningRate(), GradNorm(), IterationSpeed()])
    group.attach(context)
    return group


def test_the_rate_is_taken_at_every_step_without_weight_or_final(group, context):
    for rate in (0.1, 0.05, 0.025):
        context.learning_rates = [rate, 99.0]
        group.collect(object())
    column = group.read()[0]["Learning Rate"]
    assert column.values.tolist() == [0.1, 0.05, 0.025]
    assert column.weights is None
    assert "Learning Rate" not in group.finals()


def test_the_norm_counts_only_steps_of_the_optimizer(group, context):
    for norm in (None, torch.tensor(3.0), None, torch.tensor(5.0, dtype=torch.bfloat16)):
        context.grad_norm = norm
        group.collect(object())
    column = group.read()[0]["Gradient Norm"]
    np.testing.assert_array_equal(column.values, [np.nan, 3.0, np.nan, 5.0])
    assert column.weights.tolist() == [0.0, 1.0, 0.0, 1.0]
    assert group.finals() == {"Gradient Norm": 4.0}


def test_an_exploded_norm_shows(group, context):
    context.grad_norm = torch.tensor(float("inf"))
    group.collect(object())
    assert group.read()[0]["Gradient Norm"].values.tolist() == [float("inf")]
    assert group.finals() == {"Gradient Norm": float("inf")}


def test_the_speed_is_read_once_and_stands_for_the_block(group, context):
    for speed in (50.0, 80.0):
        context.steps_per_second = speed
        group.collect(object())
        group.collect(object())
        column = group.read()[0]["Iteration Speed"]
        assert column.values.tolist() == [speed, speed]
        assert column.weights is None
