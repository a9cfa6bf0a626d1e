"""Accuracy against scikit-learn and torchmetrics, over shapes, paddings and precisions."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score
from torch.utils._python_dispatch import TorchDispatchMode
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy

from notebook_learner.errors import OutputError
from notebook_learner.metric import Accuracy, GradNorm, LearningRate, Loss, MetricGroup, TopKAccuracy


def percent(item):
    return 100 * accuracy_score(item.targets.cpu(), item.output.argmax(1).cpu())


def only(output, targets):
    return SimpleNamespace(output=output, targets=targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps_and_epoch_agree_with_scikit_learn(classification, measure, device, dtype):
    for seed in range(200):
        items = classification(seed, device=device, dtype=dtype)
        columns, finals = measure([Accuracy()], items)
        assert columns["Accuracy"].tolist() == pytest.approx([percent(item) for item in items], rel=1e-12)
        everything = only(
            torch.cat([item.output for item in items]), torch.cat([item.targets for item in items])
        )
        assert finals["Accuracy"] == pytest.approx(percent(everything), rel=1e-12)


def test_epoch_is_not_the_mean_of_batch_values(measure):
    sure = torch.tensor([[0.0, 9.0]])
    items = [only(sure.repeat(9, 1), torch.ones(9)), only(sure, torch.zeros(1))]
    columns, finals = measure([Accuracy()], items)
    assert columns["Accuracy"].tolist() == [100.0, 0.0]
    assert finals["Accuracy"] == 90.0
    assert np.mean(columns["Accuracy"]) == 50.0


def test_pads_are_left_out_as_torchmetrics_leaves_them_out(classification, measure, device):
    for seed in range(200):
        items = classification(seed, device=device)
        reference = MulticlassAccuracy(7, average="micro", ignore_index=3).to(device)
        per_step = [100 * reference(item.output, item.targets).item() for item in items]
        columns, finals = measure([Accuracy(pad_token=3)], items)
        assert columns["Accuracy"].tolist() == pytest.approx(per_step, rel=1e-6)
        assert finals["Accuracy"] == pytest.approx(100 * reference.compute().item(), rel=1e-6)


def test_the_weight_is_the_number_of_real_targets():
    group = MetricGroup([Accuracy(pad_token=0)])
    group.collect(only(torch.eye(4), torch.tensor([0, 1, 2, 1])))
    column = group.read()[0]["Accuracy"]
    assert column.weights.tolist() == [3.0]
    assert column.values.tolist() == [pytest.approx(200 / 3)]


def test_a_step_of_only_pads_has_no_value_and_does_not_count(measure):
    items = [only(torch.eye(3), torch.zeros(3)), only(torch.eye(3), torch.tensor([0, 1, 1]))]
    columns, finals = measure([Accuracy(pad_token=0)], items)
    np.testing.assert_array_equal(columns["Accuracy"], [np.nan, 50.0])
    assert finals["Accuracy"] == 50.0


@pytest.mark.parametrize(("move", "kind"), [(None, "classes first"), (-1, "classes last")])
def test_answers_with_more_dimensions(measure, device, move, kind):
    scores = torch.randn(4, 5, 6, 3, generator=torch.Generator().manual_seed(0)).to(device)
    targets = torch.randint(5, (4, 6, 3), generator=torch.Generator().manual_seed(1)).to(device)
    output = scores if move is None else scores.movedim(1, move)
    expected = 100 * (scores.argmax(1) == targets).double().mean().item()
    assert measure([Accuracy()], [only(output, targets)])[1]["Accuracy"] == pytest.approx(expected), kind


def test_where_both_dimensions_fit_the_user_says_which(measure):
    output = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    targets = output.argmax(-1)
    with pytest.raises(OutputError, match="say which with class_dim=1 or class_dim=-1"):
        measure([Accuracy()], [only(output, targets)])
    assert measure([Accuracy(class_dim=-1)], [only(output, targets)])[1]["Accuracy"] == 100.0
    assert measure([Accuracy(class_dim=1)], [only(output, targets)])[1]["Accuracy"] < 100.0


def test_shapes_may_change_from_step_to_step(measure):
    items = [only(torch.eye(3), torch.arange(3)), only(torch.eye(3)[:2], torch.zeros(2))]
    items.append(only(torch.eye(4)[None, :, :3], torch.arange(4)[None].clamp(max=2)))
    columns, _ = measure([Accuracy()], items)
    assert columns["Accuracy"].tolist() == [100.0, 50.0, 75.0]


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
@pytest.mark.parametrize("target_shape", [(8,), (8, 1)])
def test_binary_output_with_a_threshold_agrees_with_torchmetrics(measure, shape, target_shape):
    logits = torch.randn(8, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(2, (8,), generator=torch.Generator().manual_seed(1)).float()
    expected = 100 * BinaryAccuracy()(logits.sigmoid(), targets).item()
    shaped = logits.reshape(shape), targets.reshape(target_shape)
    assert measure([Accuracy(threshold=0.0)], [only(*shaped)])[1]["Accuracy"] == pytest.approx(expected)
    probable = only(shaped[0].sigmoid(), shaped[1])
    assert measure([Accuracy(threshold=0.5)], [probable])[1]["Accuracy"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("output", "targets", "message"),
    [
        ((8,), (8,), r"binary.*Accuracy\(threshold=0.0\) for logits"),
        ((8, 1), (8,), r"`output` of shape \[8, 1\] and `targets` of \[8\].*needs a threshold"),
        ((8, 1), (8, 1), "needs a threshold"),
        ((8, 5), (8, 5), r"class probabilities, give their argmax\(1\)"),
        ((8, 5), (8, 1), "must be class indices in the shape of `output` without its classes"),
        ((8, 5), (7,), "must be class indices"),
        ((), (8,), "must be class indices"),
    ],
)
def test_shapes_that_would_count_something_else_are_refused(measure, output, targets, message):
    with pytest.raises(OutputError, match=message):
        measure([Accuracy()], [only(torch.zeros(output), torch.zeros(targets))])


def test_a_class_dimension_that_does_not_exist_is_refused(measure):
    with pytest.raises(OutputError, match="which are in dimension 4"):
        measure([Accuracy(class_dim=4)], [only(torch.zeros(2, 3), torch.zeros(2))])


def test_a_threshold_for_scores_per_class_is_refused(measure):
    with pytest.raises(OutputError, match="leave the threshold out"):
        measure([Accuracy(threshold=0.0)], [only(torch.zeros(8, 5), torch.zeros(8))])


class ReadsOfTheDevice(TorchDispatchMode):
    """Notes every operation that makes the host wait for the device."""

    WAITS = frozenset(
        f"aten.{name}.default"
        for name in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_to_copy")
    )

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func) in self.WAITS:
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_collecting_never_waits_for_the_device(classification, context):
    context.grad_norm = torch.tensor(1.0)
    metrics = [Loss(), Accuracy(pad_token=1), TopKAccuracy(2, 1), GradNorm(), LearningRate()]
    group = MetricGroup(metrics)
    group.attach(context)
    with ReadsOfTheDevice() as reads:
        for item in classification():
            group.collect(item)
        assert reads.seen == []
        group.read()
        assert len(reads.seen) > 0
