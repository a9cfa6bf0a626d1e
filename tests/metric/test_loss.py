"""Loss: per step as it is, per epoch the mean per sample."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchmetrics

from notebook_learner.metric import Loss, MetricGroup


def test_values_and_epoch_agree_with_torchmetrics(classification, measure, device):
    for seed in range(200):
        items = classification(seed, device=device)
        reference = torchmetrics.MeanMetric().set_dtype(torch.float64)
        for item in items:
            reference.update(item.loss.cpu().double(), len(item.targets))
        columns, finals = measure([Loss()], items)
        assert columns["Loss"].tolist() == [item.loss.item() for item in items]
        assert finals["Loss"] == pytest.approx(reference.compute().item(), rel=1e-12)


def test_epoch_is_the_loss_of_all_samples_not_the_mean_of_batch_values(classification, measure):
    items = classification(1)
    _, finals = measure([Loss()], items)
    whole = torch.nn.functional.cross_entropy(
        torch.cat([item.output for item in items]), torch.cat([item.targets for item in items])
    )
    assert finals["Loss"] == pytest.approx(whole.item(), rel=1e-6)
    assert abs(finals["Loss"] - np.mean([item.loss.item() for item in items])) > 1e-3


def test_a_weight_field_of_the_output_comes_before_the_samples(measure):
    items = [
        SimpleNamespace(loss=torch.tensor(v), weight=w, targets=range(9)) for v, w in [(1.0, 30), (4.0, 10)]
    ]
    assert measure([Loss()], items)[1] == {"Loss": 1.75}


def test_a_weight_on_the_device_stays_there_until_read(measure, device):
    tokens = torch.tensor(5, device=device)
    items = [SimpleNamespace(loss=torch.tensor(2.0, device=device), weight=tokens)]
    group = MetricGroup([Loss()])
    measure([], items, group=group)
    group.collect(items[0])
    columns, _ = group.read()
    assert columns["Loss"].weights.tolist() == [5.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions_are_read_exactly(measure, device, dtype):
    loss = torch.tensor(0.3, dtype=dtype, device=device)
    columns, finals = measure([Loss()], [SimpleNamespace(loss=loss)])
    assert columns["Loss"].tolist() == [loss.item()]
    assert finals["Loss"] == loss.item()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_loss_shows_in_its_step_and_in_the_epoch(measure, bad):
    items = [SimpleNamespace(loss=torch.tensor(value)) for value in (1.0, bad, 2.0)]
    columns, finals = measure([Loss()], items)
    np.testing.assert_array_equal(columns["Loss"], [1.0, bad, 2.0])
    np.testing.assert_array_equal(finals["Loss"], bad)


def test_the_graph_of_the_loss_is_not_kept():
    group = MetricGroup([Loss()])
    group.attach(SimpleNamespace(samples=1))
    parameter = torch.ones(3, requires_grad=True)
    for _ in range(2):
        group.collect(SimpleNamespace(loss=(parameter**2).sum()))
    assert [value.requires_grad for value in group._values[0]] == [False, False]
    assert [value.grad_fn for value in group._values[0]] == [None, None]


def test_lower_is_better():
    assert Loss().higher_is_better is False
