"""AUROC and AUC-PR of an epoch against scikit-learn."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from catalogue_cases import binary_epoch, classes_epoch, generators, labels_epoch, whole
from sklearn.metrics import average_precision_score, roc_auc_score

from notebook_learner.errors import OutputError, StateError
from notebook_learner.metric import AUCPR, AUROC, MetricGroup

ORACLES = [(AUROC, roc_auc_score), (AUCPR, average_precision_score)]


def areas(oracle, due, scores):
    """The area of each column that has one, and its positives."""
    found = []
    for column in range(due.shape[1]):
        positives = int(due[:, column].sum())
        if positives and (oracle is average_precision_score or positives < len(due)):
            found.append((oracle(due[:, column], scores[:, column]), positives))
    return found


def mean(pairs, reduction):
    if not pairs:
        return math.nan
    return 100 * np.average(
        [area for area, _ in pairs], weights=[p if reduction == "weighted" else 1 for _, p in pairs]
    )


@pytest.mark.parametrize(("kind", "oracle"), ORACLES)
def test_binary_agrees_with_scikit_learn(measure, kind, oracle):
    for seed, rng in generators():
        items = binary_epoch(seed, rng, torch.bfloat16 if seed % 4 == 3 else torch.float32)
        columns, finals = measure([kind.binary()], items, cuts={1})
        output, targets = whole(items)
        expected = mean(areas(oracle, targets[:, None], output[:, None]), "macro")
        (final,) = finals.values()
        assert final == pytest.approx(expected, rel=1e-12, nan_ok=True), seed
        (values,) = columns.values()
        assert np.isnan(values).all()  # a step has no rank of the epoch


@pytest.mark.parametrize("reduction", ["macro", "micro", "weighted"])
@pytest.mark.parametrize(("kind", "oracle"), ORACLES)
def test_multiclass_agrees_with_scikit_learn_on_probabilities(measure, kind, oracle, reduction):
    for seed, rng in generators():
        items = classes_epoch(seed, rng, torch.float64)
        (final,) = measure([kind.multiclass(reduction)], items)[1].values()
        output, targets = whole(items)
        scores = torch.as_tensor(output).softmax(1).numpy()
        due = np.eye(output.shape[1], dtype=int)[targets]
        if reduction == "micro":
            scores, due = scores.reshape(-1, 1), due.reshape(-1, 1)
        expected = mean(areas(oracle, due, scores), reduction)
        assert final == pytest.approx(expected, rel=1e-9, nan_ok=True), seed
        probable = [SimpleNamespace(output=i.output.softmax(1), targets=i.targets) for i in items]
        (given,) = measure([kind.multiclass(reduction, logits=False)], probable)[1].values()
        assert given == pytest.approx(expected, rel=1e-9, nan_ok=True), seed


@pytest.mark.parametrize("reduction", ["macro", "micro", "weighted"])
@pytest.mark.parametrize(("kind", "oracle"), ORACLES)
def test_multilabel_agrees_with_scikit_learn(measure, kind, oracle, reduction):
    for seed, rng in generators():
        items = labels_epoch(seed, rng)
        (final,) = measure([kind.multilabel(reduction)], items)[1].values()
        scores, due = whole(items)
        if reduction == "micro":
            scores, due = scores.reshape(-1, 1), due.reshape(-1, 1)
        assert final == pytest.approx(mean(areas(oracle, due, scores), reduction), rel=1e-12, nan_ok=True), (
            seed
        )


def test_sure_logits_keep_their_order(measure):
    """Through a sigmoid in float32 these would all be 1."""
    logits, targets = torch.tensor([40.0, 30.0, 20.0]), torch.tensor([1, 0, 0])
    item = SimpleNamespace(output=logits, targets=targets)
    assert measure([AUROC.binary()], [item])[1] == {"AUROC": 100.0}
    both = SimpleNamespace(output=torch.stack([-logits, logits], 1), targets=targets)
    assert measure([AUROC.multiclass()], [both])[1] == {"AUROC [Macro]": 100.0}


@pytest.mark.parametrize("kind", [AUROC, AUCPR])
def test_a_score_that_is_nan_makes_the_epoch_nan(measure, kind):
    item = SimpleNamespace(output=torch.tensor([0.1, float("nan"), 0.3]), targets=torch.tensor([0, 1, 1]))
    (final,) = measure([kind.binary()], [item])[1].values()
    assert math.isnan(final)


@pytest.mark.parametrize("kind", [AUROC, AUCPR])
def test_an_epoch_of_no_steps_has_no_value(kind):
    (final,) = MetricGroup([kind()]).finals().values()
    assert math.isnan(final)


def test_classes_that_change_within_an_epoch_are_refused():
    group = MetricGroup([AUROC()])
    group.collect(SimpleNamespace(output=torch.eye(3), targets=torch.arange(3)))
    with pytest.raises(OutputError, match=r"saw 3 classes .* has 2"):
        group.collect(SimpleNamespace(output=torch.eye(2), targets=torch.arange(2)))


@pytest.mark.parametrize(
    "state",
    [
        {"scores": [torch.ones(3, 1)], "targets": []},
        {"scores": [torch.ones(3, 1)], "targets": [torch.ones(2, 1)]},
        {"scores": [torch.ones(3)], "targets": [torch.ones(3)]},
    ],
)
def test_a_state_that_is_none_is_refused(state):
    with pytest.raises(StateError, match="no scores with their targets"):
        AUROC.binary().load_state_dict(state)
