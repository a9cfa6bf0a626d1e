"""MeanAbsoluteError, MeanSquaredError, RMSE and R2 against scikit-learn."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from catalogue_cases import generators, numbers_epoch, whole
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, root_mean_squared_error

from notebook_learner.errors import OutputError, StateError
from notebook_learner.metric import R2, RMSE, MeanAbsoluteError, MeanSquaredError, MetricGroup


def flat(oracle):
    return lambda targets, output: oracle(targets.ravel(), output.ravel())


def determination(targets, output):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fewer than two samples
        return r2_score(targets, output)


PAIRS = [
    (MeanAbsoluteError, flat(mean_absolute_error)),
    (MeanSquaredError, flat(mean_squared_error)),
    (RMSE, flat(root_mean_squared_error)),
    (R2, determination),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("kind", "oracle"), PAIRS)
def test_steps_and_epoch_agree_with_scikit_learn(measure, kind, oracle, dtype):
    near = {"rel": 1e-6, "abs": 1e-9} if dtype != torch.float64 else {"rel": 1e-10, "abs": 1e-12}
    for seed, rng in generators():
        items = numbers_epoch(seed, rng, dtype)
        columns, finals = measure([kind()], items, cuts={1})
        output, targets = whole(items)
        assert finals[kind.name] == pytest.approx(oracle(targets, output), nan_ok=True, **near), seed
        per_step = [oracle(*whole([item])[::-1]) for item in items]
        assert columns[kind.name].tolist() == pytest.approx(per_step, nan_ok=True, **near), seed


def test_the_root_of_an_epoch_is_not_the_mean_of_roots(measure):
    items = [SimpleNamespace(output=torch.zeros(2), targets=torch.full((2,), each)) for each in (1.0, 7.0)]
    columns, finals = measure([RMSE()], items)
    assert columns["RMSE"].tolist() == [1.0, 7.0]
    assert finals["RMSE"] == 5.0


def test_determination_of_an_epoch_is_not_the_mean_of_batches(measure):
    item = SimpleNamespace(output=torch.tensor([0.1, 0.9]), targets=torch.tensor([0.0, 1.0]))
    far = SimpleNamespace(output=item.output + 10, targets=item.targets + 10)
    columns, finals = measure([R2()], [item, far])
    assert columns["R2"].tolist() == pytest.approx([0.96, 0.96])
    assert finals["R2"] == pytest.approx(1 - 0.04 / 101)


def test_targets_far_from_zero_lose_no_digits(measure):
    rng = np.random.default_rng(0)
    items = []
    for _ in range(20):
        targets = torch.as_tensor(1e6 + rng.normal(size=50))
        items.append(SimpleNamespace(output=targets + torch.as_tensor(rng.normal(size=50)), targets=targets))
    output, targets = whole(items)
    assert measure([R2()], items)[1]["R2"] == pytest.approx(r2_score(targets, output), rel=1e-9)


def test_the_rounding_of_a_mean_is_no_variance(measure):
    targets = torch.full((3, 1), 0.1, dtype=torch.float64)
    assert targets.mean() != 0.1
    item = SimpleNamespace(output=targets + 1, targets=targets)
    assert measure([R2()], [item])[1]["R2"] == 0.0


@pytest.mark.parametrize("kind", [MeanAbsoluteError, MeanSquaredError, RMSE, R2])
def test_nan_in_gives_nan_out(measure, kind):
    good = SimpleNamespace(output=torch.tensor([1.0, 2.0]), targets=torch.tensor([1.0, 3.0]))
    bad = SimpleNamespace(output=torch.tensor([1.0, float("nan")]), targets=torch.tensor([1.0, 1.0]))
    columns, finals = measure([kind()], [good, bad])
    assert np.isnan(columns[kind.name]).tolist() == [False, True]
    assert math.isnan(finals[kind.name])


@pytest.mark.parametrize("kind", [MeanAbsoluteError, R2])
def test_a_column_of_outputs_is_not_paired_with_every_target(measure, kind):
    targets = torch.arange(4.0)
    item = SimpleNamespace(output=targets[:, None].clone(), targets=targets)
    assert measure([kind()], [item])[1][kind.name] == (0.0 if kind is MeanAbsoluteError else 1.0)
    with pytest.raises(OutputError, match=r"shape \[4, 2\] and `targets` of \[4\].*same shape"):
        MetricGroup([kind()]).collect(SimpleNamespace(output=torch.ones(4, 2), targets=targets))


def test_whole_numbers_are_numbers(measure):
    item = SimpleNamespace(output=torch.tensor([1, 2]), targets=torch.tensor([2, 4]))
    assert measure([MeanAbsoluteError()], [item])[1] == {"Mean Absolute Error": 1.5}


@pytest.mark.parametrize("state", [{"moments": {"samples": 3}}, {"moments": [1, 2]}])
def test_a_state_that_is_none_is_refused(state):
    with pytest.raises(StateError, match="no moments"):
        R2().load_state_dict(state)
