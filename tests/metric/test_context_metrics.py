"""Metrics that ask the context and not the output: rate, gradient norm, speed."""

import numpy as np
import pytest
import torch

from notebook_learner.errors import StepError
from notebook_learner.metric import (
    DataWait,
    GradNorm,
    IterationSpeed,
    LearningRate,
    MetricGroup,
    SamplesPerSecond,
)


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


def test_the_wait_for_data_is_read_once_and_stands_for_the_block(context):
    group = MetricGroup([DataWait()])
    group.attach(context)
    for percent in (12.5, 80.0):
        context.data_wait = percent
        group.collect(object())
        group.collect(object())
        assert group.read()[0]["Data Wait"].values.tolist() == [percent, percent]
    assert group.finals() == {}


def test_each_parameter_group_has_a_rate_of_its_own(context):
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": [each]} for each in parameters], lr=1.0)
    group = MetricGroup(LearningRate.per_group(optimizer))
    group.attach(context)
    for rates in ([0.1, 0.01, 0.001], [0.2, 0.02, 0.002]):
        context.learning_rates = rates
        group.collect(object())
    values = {name: column.values.tolist() for name, column in group.read()[0].items()}
    assert values == {
        "Learning Rate": [0.1, 0.2],
        "Learning Rate 1": [0.01, 0.02],
        "Learning Rate 2": [0.001, 0.002],
    }


def test_the_rate_of_a_group_that_is_not_there_is_told(context):
    group = MetricGroup([LearningRate(2)])
    group.attach(context)
    with pytest.raises(StepError, match=r"LearningRate\(2\): the optimizer has 1 parameter groups"):
        group.collect(object())


@pytest.mark.parametrize("wrong", [-1, 0.5, True, "a"])
def test_a_group_is_a_number(wrong):
    with pytest.raises(ValueError, match="give a parameter group's number"):
        LearningRate(wrong)


def test_samples_per_second_count_the_samples_that_there_were(context):
    group = MetricGroup([SamplesPerSecond()])
    group.attach(context)
    context.steps_per_second = 10.0
    for samples in (32, 32, 32, 4):
        context.samples = samples
        group.collect(object())
    column = group.read()[0]["Samples Per Second"]
    assert column.values.tolist() == [250.0] * 4
    assert column.weights is None
    assert group.finals() == {}


@pytest.mark.parametrize("kind", [DataWait, LearningRate, GradNorm, IterationSpeed, SamplesPerSecond])
def test_a_metric_that_looks_at_no_output_takes_no_input_function(kind):
    with pytest.raises(TypeError, match="input"):
        kind(input=lambda item: item)
