"""Metrics of classes at the edges: many classes, one class, no targets, NaN scores, half precision, targets
that are no class; against scikit-learn and against each other."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from catalogue_cases import generators
from sklearn.metrics import confusion_matrix, f1_score, precision_score, recall_score

from notebook_learner.errors import StateError
from notebook_learner.metric import (
    Accuracy,
    ConfusionMatrix,
    Dice,
    FBetaScore,
    MetricGroup,
    Precision,
    Recall,
    TopKAccuracy,
)

PAIRS = [(Precision, precision_score), (Recall, recall_score), (FBetaScore, f1_score)]
SIZES = [2, 64, 65, 300]
"""Up to 64 classes are counted in pairs, more as three sums: both sides of that."""


def only(output, targets):
    return SimpleNamespace(output=torch.as_tensor(output), targets=torch.as_tensor(targets))


def final(measure, metric, *items):
    return measure([metric], items)[1][metric.name]


def value_of(measure, metric, *items):
    """The epoch's value; of a matrix, the accuracy that its counts amount to."""
    if isinstance(metric, ConfusionMatrix):
        measure([metric], items)
        return 100 * np.trace(metric.counts) / metric.counts.sum()
    return final(measure, metric, *items)


@pytest.mark.parametrize("classes", SIZES)
@pytest.mark.parametrize("reduction", ["micro", "macro", "weighted"])
@pytest.mark.parametrize(("kind", "oracle"), PAIRS)
def test_any_number_of_classes_agrees_with_scikit_learn(measure, kind, oracle, reduction, classes):
    for seed, rng in generators(12):
        absent = rng.integers(0, classes, 2)  # never due
        targets = rng.choice(np.setdiff1d(np.arange(classes), absent[: classes - 1]), 40)
        output = rng.normal(size=(40, classes)) + 2 * np.eye(classes)[targets]
        items = [only(output[:25], targets[:25]), only(output[25:], targets[25:])]  # the last one is short
        expected = 100 * oracle(targets, output.argmax(1), average=reduction, zero_division=0)
        metric = kind(reduction=reduction)
        assert final(measure, metric, *items) == pytest.approx(expected, rel=1e-12, abs=1e-12), seed


@pytest.mark.parametrize("classes", [5, 65])
@pytest.mark.parametrize("top_k", [1, 3])
def test_pads_and_k_answers_count_the_same_for_few_classes_and_for_many(measure, classes, top_k):
    """More classes than are ever answered or due change nothing: the two ways of counting agree."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(60, 5, generator=generator)
    targets = torch.randint(5, (60,), generator=generator)
    targets[::7] = -100
    wide = torch.cat([scores, torch.full((60, classes - 5), -1e9)], 1)
    for make in (Precision.multiclass, Recall.multiclass, functools.partial(FBetaScore.multiclass, 2.0)):
        (few,) = measure([make(top_k, pad_token=-100)], [only(scores, targets)])[1].values()
        (many,) = measure([make(top_k, pad_token=-100)], [only(wide, targets)])[1].values()
        assert many == few and 0 < few < 100


CLASS_METRICS = [Precision, Recall, FBetaScore, functools.partial(Dice, include_background=True)]


@pytest.mark.parametrize("make", [*CLASS_METRICS, Accuracy, ConfusionMatrix])
@pytest.mark.parametrize("right", [True, False])
def test_where_all_is_one_class_all_is_right_or_wrong(measure, make, right):
    scores = torch.tensor([[0.0, 1.0, 0.5]]).repeat(9, 1)
    found = value_of(measure, make(), only(scores, torch.full((9,), 1 if right else 2)))
    assert found == (pytest.approx(1.0 if isinstance(make(), Dice) else 100.0) if right else 0.0)


@pytest.mark.parametrize("make", [*CLASS_METRICS, Accuracy, ConfusionMatrix])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_answers_as_its_numbers_do(measure, make, dtype):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(50, 4, generator=generator).to(dtype)
    targets = torch.randint(4, (50,), generator=generator)
    narrow = value_of(measure, make(), only(scores, targets))
    assert narrow == value_of(measure, make(), only(scores.double(), targets))


def test_a_score_that_is_nan_is_the_answer_as_torch_says_and_all_metrics_agree(measure):
    scores = torch.tensor([[0.1, 0.9], [float("nan"), 0.5], [0.2, float("nan")], [0.9, 0.1]])
    targets = torch.tensor([1, 0, 0, 0])
    answers = scores.argmax(1).numpy()  # a NaN wins its row
    assert answers.tolist() == [1, 0, 1, 0]
    right = 100 * float((answers == targets.numpy()).mean())
    found = [
        value_of(measure, make, only(scores, targets))
        for make in (Accuracy(), Precision(None, "micro"), ConfusionMatrix())
    ]
    assert found == [right] * 3
    assert final(measure, Recall(), only(scores, targets)) == pytest.approx(
        100 * recall_score(targets, answers, average="macro")
    )


@pytest.mark.parametrize("make", [*CLASS_METRICS, Accuracy, lambda: TopKAccuracy(2)])
def test_a_batch_without_targets_changes_nothing(measure, make):
    scores, targets = torch.eye(3), torch.tensor([0, 1, 1])
    alone = final(measure, make(), only(scores, targets))
    empty = only(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    columns, finals = measure([make()], [only(scores, targets), empty])
    ((name, values),) = columns.items()
    assert finals[name] == alone
    assert np.isnan(values[1]) or values[1] in (0.0, 1.0)  # nothing of nothing


@pytest.mark.parametrize("classes", [3, 65])
@pytest.mark.parametrize("target", [-1, 1])
@pytest.mark.parametrize("make", [Precision, functools.partial(Precision.multiclass, pad_token=-100)])
def test_a_target_that_is_no_class_is_an_error_and_never_a_count(make, classes, target):
    scores = torch.zeros(2, classes)
    outside = -1 if target < 0 else classes
    with pytest.raises((RuntimeError, IndexError)):
        MetricGroup([make()]).collect(only(scores, torch.tensor([0, outside])))


@pytest.mark.parametrize("classes", [4, 70])
def test_the_confusion_matrix_of_a_short_epoch_is_scikit_learns(measure, classes):
    for _, rng in generators(10):
        targets, output = rng.integers(0, classes, 30), rng.normal(size=(30, classes))
        matrix = ConfusionMatrix()
        measure([matrix], [only(output[:29], targets[:29]), only(output[29:], targets[29:])])
        expected = confusion_matrix(targets, output.argmax(1), labels=range(classes))
        np.testing.assert_array_equal(matrix.counts, expected)


@pytest.mark.parametrize(
    "counts", [[1.0, 2.0], "abc", [1.0, 2.0, 3.0, None], [1.0, -2.0, 3.0, 4.0], {"a": 1}, [[1.0] * 4]]
)
def test_a_state_that_is_none_is_refused(counts):
    with pytest.raises(StateError, match=r"the state of Precision .* holds no table of counts"):
        Precision().load_state_dict({"counts": counts})
