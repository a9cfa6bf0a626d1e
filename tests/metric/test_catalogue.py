"""What holds for every metric of the catalogue, and for torchmetrics' behind the adapter."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics import ExplainedVariance
from torchmetrics.classification import BinaryAUROC, MulticlassCohenKappa

from notebook_learner import ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput
from notebook_learner.errors import OutputError
from notebook_learner.metric import (
    AUCPR,
    AUROC,
    MSSSIM,
    PSNR,
    R2,
    RMSE,
    SSIM,
    ConfusionMatrix,
    Dice,
    FBetaScore,
    HammingScore,
    MeanAbsoluteError,
    MeanSquaredError,
    Metric,
    MetricGroup,
    Precision,
    Recall,
    TorchMetric,
)

CLASSES = [
    Precision,
    Recall,
    FBetaScore,
    AUROC,
    AUCPR,
    Dice,
    ConfusionMatrix,
    lambda **named: TorchMetric(MulticlassCohenKappa(4), **named),
]
LABELS = [
    lambda **named: Precision.multilabel(0.0, **named),
    lambda **named: Recall.binary(0.0, **named),
    lambda **named: FBetaScore.multilabel(2.0, 0.0, "micro", **named),
    lambda **named: HammingScore(0.0, **named),
    lambda **named: AUROC.multilabel(**named),
    lambda **named: AUCPR.multilabel("micro", **named),
    lambda **named: ConfusionMatrix(threshold=0.0, **named),
    lambda **named: TorchMetric(BinaryAUROC(), **named),
]
NUMBERS = [
    MeanAbsoluteError,
    MeanSquaredError,
    RMSE,
    R2,
    lambda **named: TorchMetric(ExplainedVariance(), **named),
]
IMAGES = [PSNR, SSIM, lambda **named: MSSSIM(betas=(0.5, 0.5), **named)]
EVERY = [
    (make, kind) for kind in ("classes", "labels", "numbers", "images") for make in globals()[kind.upper()]
]
every_metric = pytest.mark.parametrize(("make", "kind"), EVERY)


def batch(kind, size, generator):
    """What a step of this kind returns."""
    loss = torch.tensor(0.0)
    if kind == "classes":
        targets = torch.randint(4, (size,), generator=generator)
        return ClassificationOutput(loss, torch.randn(size, 4, generator=generator), targets)
    if kind == "labels":
        targets = torch.randint(2, (size, 3), generator=generator)
        return MultiLabelClassificationOutput(loss, torch.randn(size, 3, generator=generator), targets)
    shape = (size,) if kind == "numbers" else (size, 1, 24, 24)
    targets = torch.rand(shape, generator=generator)
    return RegressionOutput(loss, targets + 0.2 * torch.randn(shape, generator=generator), targets)


def epoch(kind, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [batch(kind, size, generator) for size in (5, 5, 5, 2)]


def collect(group, items):
    for item in items:
        group.collect(item)
    return group.read()


def final_of(group, metric):
    """The epoch's value; of a text, its text."""
    return metric.text() if isinstance(metric, ConfusionMatrix) else group.finals()[metric.name]


@every_metric
def test_an_epoch_restored_in_the_middle_ends_with_the_same_value(make, kind):
    first, items = make(), epoch(kind)
    group = MetricGroup([first])
    collect(group, items[:2])
    state = group.state_dict()
    collect(group, items[2:])
    expected = final_of(group, first)

    second = make()
    other = MetricGroup([second])
    collect(other, epoch(kind, seed=9)[:1])  # what was accumulated before is gone
    for _ in range(2):  # the state stays usable for another time
        other.load_state_dict(state)
        collect(other, items[2:])
        assert final_of(other, second) == expected
    other.reset()
    collect(other, items)
    assert final_of(other, second) == expected


@every_metric
def test_a_state_before_the_first_step_is_one(make, kind):
    group = MetricGroup([make()])
    state = group.state_dict()
    collect(group, epoch(kind))
    group.load_state_dict(state)
    assert all(math.isnan(value) for value in group.finals().values())


@every_metric
def test_a_copy_accumulates_by_itself(make, kind):
    metric = make()
    group = MetricGroup([metric])
    collect(group, epoch(kind))
    expected = final_of(group, metric)
    collect(MetricGroup([copy.deepcopy(metric)]), epoch(kind, seed=1))
    assert final_of(group, metric) == expected


@every_metric
def test_an_input_function_names_the_fields(make, kind):
    items = epoch(kind)
    plain, adapted = make(), make(input=lambda item: (item.mine, item.yours))
    group, other = MetricGroup([plain]), MetricGroup([adapted])
    collect(group, items)
    collect(other, [SimpleNamespace(mine=item.output, yours=item.targets) for item in items])
    assert final_of(other, adapted) == final_of(group, plain)


@every_metric
def test_an_output_without_the_fields_is_refused_at_the_first_step(make, kind):
    with pytest.raises(OutputError, match="needs `output` and `targets`; but the step returned"):
        MetricGroup([make()]).collect(SimpleNamespace(loss=torch.tensor(0.0)))


@every_metric
def test_half_precision_is_exactly_its_numbers(make, kind):
    halves = epoch(kind)
    for item in halves:
        item.output = item.output.bfloat16()
        item.targets = item.targets.bfloat16() if item.targets.is_floating_point() else item.targets
    wide = [copy.copy(item) for item in halves]
    for item in wide:
        item.output = item.output.float()
        item.targets = item.targets.float() if item.targets.is_floating_point() else item.targets
    first, second = make(), make()
    group, other = MetricGroup([first]), MetricGroup([second])
    collect(group, halves)
    collect(other, wide)
    assert final_of(group, first) == final_of(other, second)


@every_metric
def test_nothing_is_recorded_for_a_gradient(make, kind):
    items = epoch(kind)
    for item in items:
        item.output = (item.output.clone().requires_grad_() * 1.0).exp().log()
    metric = make()
    group = MetricGroup([metric])
    for item in items:
        group.collect(item)
    kept = [each for each in tensors_in(metric.state_dict()) if each.requires_grad]
    kept += [
        each for values in group._values for each in values if torch.is_tensor(each) and each.requires_grad
    ]
    assert kept == []


@every_metric
def test_a_single_sample_is_an_epoch(make, kind):
    metric = make()
    group = MetricGroup([metric])
    item = batch(kind, 1, torch.Generator().manual_seed(0))
    collect(group, [item])
    assert final_of(group, metric) is not None


class Waits(TorchDispatchMode):
    """Notes the operations for which a host waits for its GPU."""

    NAMES = ("_local_scalar_dense", "bincount", "nonzero", "unique", "masked_select", "equal", "lift_fresh")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket._qualified_op_name.split("::")[-1]
        if name in self.NAMES or name.startswith(("_unique", "unique_")):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


OURS = [(make, kind) for make, kind in EVERY if not isinstance(make(), TorchMetric)]


@pytest.mark.parametrize(("make", "kind"), OURS)
def test_no_step_waits_for_the_device(make, kind):
    group, items = MetricGroup([make()]), epoch(kind)
    with Waits() as waits:
        for item in items:
            group.collect(item)
    assert waits.seen == []


def test_the_probe_sees_what_waits():
    with Waits() as waits:
        torch.ones(2).sum().item()
        torch.bincount(torch.tensor([1, 2]))
    assert {"_local_scalar_dense", "bincount", "lift_fresh"} <= set(waits.seen)


@every_metric
def test_two_halves_of_the_samples_merge_to_the_whole(make, kind):
    if type(make()).merge is Metric.merge:
        return  # the group's sums are all there is
    items = epoch(kind)
    whole, left, right = make(), make(), make()
    group, ours, theirs = MetricGroup([whole]), MetricGroup([left]), MetricGroup([right])
    collect(group, items)
    collect(ours, items[:1])
    collect(theirs, items[1:])
    left.merge(right.state_dict())
    expected = final_of(group, whole)
    merged = left.text() if isinstance(left, ConfusionMatrix) else float(left.compute())
    assert merged == (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-6))
    empty = make()
    empty.merge(left.state_dict())
    again = empty.text() if isinstance(empty, ConfusionMatrix) else float(empty.compute())
    assert again == merged


def test_the_direction_is_known_of_each():
    directions = {
        make().name: make().higher_is_better for make, _ in EVERY if hasattr(make(), "higher_is_better")
    }
    lower = {name for name, higher in directions.items() if higher is False}
    assert lower == {"Mean Absolute Error", "Mean Squared Error", "RMSE"}
    assert [name for name, higher in directions.items() if higher is None] == []


def test_ten_metrics_read_the_device_once_a_block():
    metrics = [Precision(), Recall(), FBetaScore(), FBetaScore(2.0), Dice(), Precision.multiclass(2)]
    metrics += [Recall.multiclass(2), Precision(None, "micro"), AUROC(), AUCPR()]
    group = MetricGroup(metrics)
    items = epoch("classes")
    with Waits() as waits:
        for item in items:
            group.collect(item)
    assert waits.seen == []
    columns, _ = group.read()
    assert all(len(column.values) == len(items) for column in columns.values())
    assert np.isfinite(columns["Dice"].values).all()


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)
