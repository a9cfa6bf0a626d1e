"""Precision, Recall, FBetaScore, HammingScore and Dice against scikit-learn, over an epoch's counts."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from catalogue_cases import binary_epoch, classes_epoch, generators, labels_epoch, whole
from sklearn.metrics import accuracy_score, f1_score, fbeta_score, precision_score, recall_score

from notebook_learner.errors import OutputError
from notebook_learner.metric import Dice, FBetaScore, HammingScore, MetricGroup, Precision, Recall

F2 = functools.partial(fbeta_score, beta=2.0)
PAIRS = [(Precision, precision_score), (Recall, recall_score), (functools.partial(FBetaScore, 2.0), F2)]
REDUCTIONS = ["micro", "macro", "weighted"]


def made(kind, how, *args, **named):
    """A metric by its maker; of a partial, with the first argument in front."""
    if isinstance(kind, functools.partial):
        return getattr(kind.func, how)(*kind.args, *args, **named)
    return getattr(kind, how)(*args, **named)


def percent(oracle, targets, answers, **named):
    return 100 * oracle(targets, answers, zero_division=0, **named)


def only(output, targets):
    return SimpleNamespace(output=torch.as_tensor(output), targets=torch.as_tensor(targets))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("kind", "oracle"), PAIRS)
def test_multiclass_agrees_with_scikit_learn(measure, kind, oracle, reduction):
    for seed, rng in generators():
        items = classes_epoch(seed, rng, torch.bfloat16 if seed % 4 == 3 else torch.float32)
        metric = made(kind, "multiclass", reduction=reduction)
        columns, finals = measure([metric], items, cuts={1})
        output, targets = whole(items)
        expected = percent(oracle, targets, output.argmax(1), average=reduction)
        assert finals[metric.name] == pytest.approx(expected, rel=1e-12, abs=1e-12), seed
        if seed % 5:
            continue
        per_step = [
            percent(oracle, *whole([item])[1:], whole([item])[0].argmax(1), average=reduction)
            for item in items
        ]
        assert columns[metric.name].tolist() == pytest.approx(per_step, rel=1e-12, abs=1e-12), seed


@pytest.mark.parametrize("reduction", ["micro", "macro"])
@pytest.mark.parametrize(("kind", "oracle"), PAIRS)
def test_the_k_best_classes_are_answers_as_scikit_learn_counts_labels(measure, kind, oracle, reduction):
    for seed, rng in generators():
        items = classes_epoch(seed, rng)
        metric = made(kind, "multiclass", 2, reduction)
        _, finals = measure([metric], items)
        output, targets = whole(items)
        said = np.zeros(output.shape, dtype=int)
        np.put_along_axis(said, np.argsort(-output, axis=1)[:, :2], 1, axis=1)
        due = np.eye(output.shape[1], dtype=int)[targets]
        seen = (said + due).any(0)  # scikit-learn counts columns of zeros, too
        expected = percent(oracle, due[:, seen], said[:, seen], average=reduction)
        assert finals[metric.name] == pytest.approx(expected, rel=1e-12, abs=1e-12), seed


@pytest.mark.parametrize(("kind", "oracle"), PAIRS)
def test_binary_agrees_with_scikit_learn(measure, kind, oracle):
    for seed, rng in generators():
        items = binary_epoch(seed, rng, torch.bfloat16 if seed % 4 == 3 else torch.float32)
        metric = made(kind, "binary", 0.0)
        _, finals = measure([metric], items)
        output, targets = whole(items)
        expected = percent(oracle, targets, output > 0)
        assert finals[metric.name] == pytest.approx(expected, rel=1e-12, abs=1e-12), seed


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("kind", "oracle"), PAIRS)
def test_multilabel_agrees_with_scikit_learn(measure, kind, oracle, reduction):
    for seed, rng in generators():
        items = labels_epoch(seed, rng)
        metric = made(kind, "multilabel", 0.0, reduction)
        _, finals = measure([metric], items)
        output, targets = whole(items)
        said = output > 0
        seen = (said | (targets > 0)).any(0)
        if reduction == "weighted" and not targets.any():
            assert np.isnan(finals[metric.name])
            continue
        if not seen.any():
            assert np.isnan(finals[metric.name]) == (reduction == "macro")
            continue
        if seen.sum() == 1:
            expected = percent(oracle, targets[:, seen].ravel(), said[:, seen].ravel())
        else:
            expected = percent(oracle, targets[:, seen], said[:, seen], average=reduction)
        assert finals[metric.name] == pytest.approx(expected, rel=1e-12, abs=1e-12), seed


def test_hamming_score_is_the_accuracy_of_all_labels(measure):
    for seed, rng in generators():
        items = labels_epoch(seed, rng)
        columns, finals = measure([HammingScore(0.0)], items)
        output, targets = whole(items)
        (values,) = columns.values()
        right = [100 * accuracy_score(item.targets.ravel(), item.output.ravel() > 0) for item in items]
        assert values.tolist() == pytest.approx(right, rel=1e-12)
        (final,) = finals.values()
        assert final == pytest.approx(100 * accuracy_score(targets.ravel(), output.ravel() > 0), rel=1e-12)


@pytest.mark.parametrize("reduction", ["micro", "macro"])
def test_dice_is_the_f1_score_of_the_pixels_without_background(measure, reduction):
    for seed, rng in generators():
        classes = int(rng.integers(2, 5))
        items = [
            only(rng.normal(size=(size, classes, 3, 4)), rng.integers(0, classes, (size, 3, 4)))
            for size in (2, 1)
        ]
        metric = Dice(reduction=reduction)
        _, finals = measure([metric], items)
        said = np.concatenate([item.output.argmax(1).ravel() for item in items])
        due = np.concatenate([item.targets.ravel() for item in items])
        labels = sorted({*said, *due} - {0})
        if labels:
            expected = f1_score(due, said, labels=labels, average=reduction)
            assert finals[metric.name] == pytest.approx(expected, rel=1e-12), seed


def test_dice_of_masks(measure):
    mask = torch.tensor([[[[1.0, 1.0], [0.0, 0.0]]]])
    other = torch.tensor([[[[1, 0], [1, 0]]]])
    assert measure([Dice(threshold=0.5)], [only(mask, other)])[1]["Dice"] == 0.5
    assert measure([Dice(threshold=0.5)], [only(0 * mask, 0 * other)])[1]["Dice"] == 1.0  # both are empty
    assert measure([Dice(threshold=0.5)], [only(mask, 0 * other)])[1]["Dice"] == 0.0


def test_the_background_counts_where_asked(measure):
    scores = torch.tensor([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    item = only(scores, torch.tensor([0, 1, 1, 1]))
    assert measure([Dice()], [item])[1]["Dice"] == pytest.approx(4 / 5)
    assert measure([Dice(include_background=True)], [item])[1]["Dice"] == pytest.approx(6 / 8)


@pytest.mark.parametrize(
    "metric", [Precision.multiclass(), Recall.multiclass(), FBetaScore.multiclass(1.0), Dice()]
)
def test_the_epoch_is_not_the_mean_of_its_batches(measure, metric):
    first = torch.tensor([[9.0, 0.0]])
    items = [only(first.repeat(9, 1), torch.tensor([0] * 8 + [1])), only(first.flip(1), torch.tensor([1]))]
    columns, finals = measure([metric], items)
    weighted = np.average(columns[metric.name], weights=[9, 1])
    assert abs(finals[metric.name] - weighted) > 0.2 * finals[metric.name]


def test_pads_count_nowhere(measure):
    scores = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(20) % 4
    padded = only(torch.cat([scores, scores]), torch.cat([targets, torch.full((20,), -100)]))
    for make in (Precision.multiclass, Recall.multiclass, functools.partial(FBetaScore.multiclass, 1.0)):
        for top_k in (1, 2):
            (bare,) = measure([make(top_k)], [only(scores, targets)])[1].values()
            (with_pads,) = measure([make(top_k, pad_token=-100)], [padded])[1].values()
            assert with_pads == bare
    yes = only(torch.tensor([1.0, 1.0, -1.0, 1.0]), torch.tensor([1, 0, 1, -1]))
    assert measure([Precision.binary(0.0, pad_token=-1)], [yes])[1] == {"Precision @ Threshold(0)": 50.0}
    labels = only(yes.output[None], yes.targets[None])
    assert list(measure([HammingScore(0.0, pad_token=-1)], [labels])[1].values()) == [pytest.approx(100 / 3)]


def test_scores_that_are_nan_are_no_yes(measure):
    item = only(torch.tensor([float("nan"), 1.0]), torch.tensor([1, 1]))
    assert measure([Recall.binary(0.0)], [item])[1] == {"Recall @ Threshold(0)": 50.0}


def test_answers_with_more_dimensions(measure):
    scores = torch.randn(3, 4, 5, 2, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(4, (3, 5, 2), generator=torch.Generator().manual_seed(1))
    flat = only(scores.movedim(1, -1).reshape(-1, 4), targets.reshape(-1))
    for metric in (Precision.multiclass(2), Recall.multiclass(1, "micro")):
        expected = measure([metric], [flat])[1]
        metric.reset()
        assert measure([metric], [only(scores, targets)])[1] == expected
    yes = only(scores, (scores > 0.3).long())
    per_label = only(
        scores.movedim(1, -1).reshape(-1, 4), (scores > 0.3).long().movedim(1, -1).reshape(-1, 4)
    )
    expected = measure([Precision.multilabel(0.0)], [per_label])[1]
    assert measure([Precision.multilabel(0.0)], [yes])[1] == expected


def test_values_of_each_class(measure):
    metric = Recall.multiclass()
    item = only(torch.tensor([[2.0, 1.0], [1.0, 2.0], [2.0, 1.0]]), torch.tensor([0, 1, 1]))
    assert metric.per_class() == []
    measure([metric], [item])
    assert metric.per_class() == [100.0, 50.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Precision.multiclass(0), "top_k=0.*at least 1"),
        (lambda: Recall.multilabel(0.5, "mean"), "reduction='mean'.*'micro', 'macro', 'weighted'"),
        (lambda: FBetaScore.binary(0, 0.5), "beta=0.*above 0"),
    ],
)
def test_arguments_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("metric", "item", "message"),
    [
        (Precision.multiclass(3), only(torch.eye(2), [0, 1]), "2 classes, fewer than top_k=3"),
        (Recall.binary(0.5), only(torch.ones(3), [0, 1]), "need the same shape"),
        (Recall.multilabel(0.5), only(torch.ones(2), [0, 1]), r"labels in dimension 1.*use binary"),
        (Precision(), only(torch.ones(2), [0, 1]), "needs a threshold"),
    ],
)
def test_shapes_that_fit_nothing_are_refused(metric, item, message):
    with pytest.raises(OutputError, match=message):
        MetricGroup([metric]).collect(item)


def test_classes_that_change_within_an_epoch_are_refused():
    group = MetricGroup([Precision()])
    group.collect(only(torch.eye(3), [0, 1, 2]))
    with pytest.raises(OutputError, match=r"counted 3 classes .* this output has 2"):
        group.collect(only(torch.eye(2), [0, 1]))
