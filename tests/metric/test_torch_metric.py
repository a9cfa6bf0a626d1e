"""Metrics of torchmetrics behind the adapter: their values, their state, and what the adapter spares."""

from __future__ import annotations

import copy
import math
import sys
from types import SimpleNamespace

import pytest
import torch
import torchmetrics
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, MulticlassAUROC, MulticlassF1Score
from torchmetrics.text import Perplexity

from notebook_learner.errors import StateError, StepError
from notebook_learner.metric import MetricGroup, TorchMetric


def items(seed=0, classes=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [
        SimpleNamespace(
            output=torch.randn(size, classes, generator=generator).to(dtype),
            targets=torch.randint(classes, (size,), generator=generator),
        )
        for size in (8, 8, 3)
    ]


BOTH = [
    SimpleNamespace(output=torch.tensor([0.1, 0.9]), targets=torch.tensor([0, 1])),
    SimpleNamespace(output=torch.tensor([0.5, 0.5]), targets=torch.tensor([0, 1])),
]


def collected(metric, given):
    group = MetricGroup([metric])
    for item in given:
        group.collect(item)
    return group.read()[0][metric.name], group.finals()[metric.name]


def test_steps_have_the_batchs_value_and_the_epoch_that_of_all():
    for seed in range(200):
        given, reference = items(seed), MulticlassF1Score(4)
        per_step = [reference(item.output, item.targets).item() for item in given]
        column, final = collected(TorchMetric(MulticlassF1Score(4)), given)
        assert column.values.tolist() == pytest.approx(per_step, rel=1e-6)
        assert column.weights.tolist() == [8, 8, 3]
        assert final == pytest.approx(reference.compute().item(), rel=1e-6)
    assert final != pytest.approx(sum(per_step) / 3, rel=1e-3)


def test_lists_have_no_value_per_step_unless_asked():
    column, final = collected(TorchMetric(MulticlassAUROC(4)), items())
    assert column.weights.tolist() == [0, 0, 0]
    asked, same = collected(TorchMetric(BinaryAUROC(), per_step=True), BOTH)
    assert asked.values.tolist() == [1.0, 0.5]
    assert same == collected(TorchMetric(BinaryAUROC()), BOTH)[1]
    assert not math.isnan(final)


def test_the_name_the_direction_and_the_unit():
    metric = TorchMetric(torchmetrics.MeanSquaredError(), name="Error", unit="m²")
    assert (metric.name, metric.higher_is_better, metric.unit) == ("Error", False, "m²")
    assert TorchMetric(MulticlassF1Score(4)).name == "MulticlassF1Score"


@pytest.mark.parametrize(
    "take",
    [
        lambda item: (item.logits, item.ids),
        lambda item: [item.logits, item.ids],
        lambda item: {"preds": item.logits, "target": item.ids},
    ],
)
def test_what_it_wants_is_taken_out_of_the_output(take):
    logits, ids = torch.randn(2, 5, 7), torch.randint(7, (2, 5))
    given = SimpleNamespace(logits=logits, ids=ids)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).exp().item()
    assert collected(TorchMetric(Perplexity(), input=take), [given])[1] == pytest.approx(expected, rel=1e-5)


def test_a_metric_of_one_argument():
    metric = TorchMetric(torchmetrics.MeanMetric(), input=lambda item: item.output.abs())
    given = items()
    expected = torch.cat([item.output.abs() for item in given]).mean().item()
    assert collected(metric, given)[1] == pytest.approx(expected, rel=1e-5)


def test_one_number_is_made_of_several():
    several = MulticlassF1Score(4, average=None)
    with pytest.raises(StepError, match=r"gives a Tensor of shape \[4\].*average='macro'.*value=lambda"):
        collected(TorchMetric(several), items())
    worst = TorchMetric(MulticlassF1Score(4, average=None), value=lambda each: each.min())
    reference = MulticlassF1Score(4, average=None)
    for item in items():
        reference.update(item.output, item.targets)
    assert collected(worst, items())[1] == pytest.approx(reference.compute().min().item())


def test_metrics_within_metrics_have_their_state_captured():
    both = MulticlassF1Score(4) + torchmetrics.classification.MulticlassRecall(4)
    group, given = MetricGroup([TorchMetric(both, name="Sum")]), items()
    group.collect(given[0])
    group.read()
    state = group.state_dict()
    assert len(state["metrics"]["Sum"]) == 3
    for item in given[1:]:
        group.collect(item)
    group.read()
    expected = group.finals()
    assert not math.isnan(expected["Sum"])
    group.load_state_dict(state)
    for item in given[1:]:
        group.collect(item)
    group.read()
    assert group.finals() == expected


def test_a_batch_that_fails_leaves_what_was_accumulated():
    metric = TorchMetric(MulticlassF1Score(4))
    group, given = MetricGroup([metric]), items()
    group.collect(given[0])
    with pytest.raises((RuntimeError, ValueError)):
        group.collect(SimpleNamespace(output=torch.ones(3, 9), targets=torch.ones(5, dtype=torch.int64)))
    for item in given[1:]:
        group.collect(item)
    group.read()
    assert group.finals()[metric.name] == collected(TorchMetric(MulticlassF1Score(4)), given)[1]


def test_their_checks_are_made_at_the_first_step_only():
    metric = TorchMetric(BinaryAccuracy())
    with pytest.raises(RuntimeError, match="Detected the following values in `target`"):
        collected(metric, [SimpleNamespace(output=torch.rand(3), targets=torch.tensor([0, 1, 7]))])
    assert metric.metric.validate_args
    collected(metric, [SimpleNamespace(output=torch.rand(3), targets=torch.tensor([0, 1, 1]))])
    assert not metric.metric.validate_args


def test_ranks_do_not_wait_for_each_other():
    metric = TorchMetric(MulticlassF1Score(4))
    collected(metric, items())
    metric.reset()
    collected(metric, items())
    assert not metric.metric.sync_on_compute and not metric.metric._to_sync


def test_lists_are_captured_in_one_piece():
    metric = TorchMetric(MulticlassAUROC(4))
    collected(metric, items())
    states = metric.state_dict()["metric"]["states"]
    assert [len(states[name]) for name in ("preds", "target")] == [1, 1]
    assert len(states["preds"][0]) == 19


def test_other_samples_merge_by_the_metrics_own_rules():
    for make in (lambda: MulticlassF1Score(4), lambda: MulticlassAUROC(4), torchmetrics.MaxMetric):
        take = (lambda item: item.output) if make is torchmetrics.MaxMetric else None
        whole, left, right = (TorchMetric(make(), input=take) for _ in range(3))
        given = items()
        expected = collected(whole, given)[1]
        collected(left, given[:1])
        collected(right, given[1:])
        left.merge(copy.deepcopy(right.state_dict()))
        assert float(left.compute()) == pytest.approx(expected)


def test_a_state_without_a_rule_for_merging_is_refused():
    pearson = TorchMetric(torchmetrics.PearsonCorrCoef())
    collected(pearson, [SimpleNamespace(output=torch.randn(9), targets=torch.randn(9))])
    with pytest.raises(StateError, match="PearsonCorrCoef has no rule for merging its"):
        pearson.merge(pearson.state_dict())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "belongs to a metric with the parts"),
        (
            {"metric": {"updates": 1, "states": {"tp": torch.ones(4)}}},
            r"holds \['tp'\], but this MulticlassF1",
        ),
        (
            {"metric": {"updates": 1, "states": dict.fromkeys(("tp", "fp", "tn", "fn"), 3)}},
            "holds as tp an int",
        ),
    ],
)
def test_a_state_that_is_none_is_refused(state, message):
    with pytest.raises(StateError, match=message):
        TorchMetric(MulticlassF1Score(4)).load_state_dict(state)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (MulticlassF1Score, r"given the class MulticlassF1Score; give an instance"),
        (torchmetrics.MetricCollection([BinaryAccuracy()]), "MetricCollection, which has many values"),
        (print, "given a builtin_function_or_method; give an instance of torchmetrics.Metric"),
    ],
)
def test_what_is_no_metric_is_refused(given, message):
    with pytest.raises(TypeError, match=message):
        TorchMetric(given)


def test_an_epoch_of_no_steps_has_no_value():
    assert math.isnan(MetricGroup([TorchMetric(MulticlassF1Score(4))]).finals()["MulticlassF1Score"])


def test_a_missing_torchmetrics_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(ImportError, match=r"metrics of torchmetrics need torchmetrics.*pip install"):
        TorchMetric(object())
