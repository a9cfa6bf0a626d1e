"""Losses of single samples: against torch's own, and against the loss they are the mean of."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from notebook_learner import (
    ClassificationOutput,
    MultiLabelClassificationOutput,
    RegressionOutput,
    SequenceOutput,
    TrainOutput,
)
from notebook_learner.inspection.samples import sample_losses


def losses(samples):
    """By index, so that an order can be asked about on its own."""
    return [sample.loss for sample in sorted(samples.rows, key=lambda sample: sample.index)]


def test_classification_is_cross_entropy_worst_first():
    scores, targets = torch.randn(20, 5, requires_grad=True), torch.randint(0, 5, (20,))
    samples = sample_losses(ClassificationOutput(torch.tensor(0.0), scores, targets))
    want = functional.cross_entropy(scores, targets, reduction="none").tolist()
    assert losses(samples) == pytest.approx(want, rel=1e-6)
    worst = [sample.loss for sample in samples.rows]
    assert worst == sorted(worst, reverse=True)
    first = samples.rows[0]
    assert first.target == targets[first.index].item()
    assert first.prediction == scores[first.index].argmax().item()


def test_a_sample_that_is_no_number_is_the_worst():
    scores = torch.zeros(4, 3)
    scores[2] = float("nan")
    samples = sample_losses(ClassificationOutput(torch.tensor(0.0), scores, torch.tensor([0, 1, 2, 0])))
    assert samples.rows[0].index == 2


def test_regression_is_the_mean_square():
    output, targets = torch.randn(6, 3), torch.randn(6, 3)
    samples = sample_losses(RegressionOutput(torch.tensor(0.0), output, targets))
    assert losses(samples) == pytest.approx((output - targets).square().mean(1).tolist())
    assert samples.rows[0].target == targets[samples.rows[0].index].tolist()


def test_labels_are_binary_cross_entropy():
    output, targets = torch.randn(6, 3), torch.randint(0, 2, (6, 3))
    samples = sample_losses(MultiLabelClassificationOutput(torch.tensor(0.0), output, targets))
    want = functional.binary_cross_entropy_with_logits(output, targets.float(), reduction="none").mean(1)
    assert losses(samples) == pytest.approx(want.tolist())
    assert samples.rows[0].prediction == (output[samples.rows[0].index] > 0).int().tolist()


def test_a_sequence_is_the_mean_of_its_tokens_without_padding():
    logits, targets = torch.randn(3, 4, 5), torch.randint(0, 5, (3, 4))
    targets[1, 2:] = -100
    samples = sample_losses(
        SequenceOutput(torch.tensor(0.0), logits, targets), decode=lambda tokens: " ".join(map(str, tokens))
    )
    want = [
        functional.cross_entropy(row[kept], target[kept]).item()
        for row, target in zip(logits, targets, strict=True)
        for kept in [target != -100]
    ]
    assert losses(samples) == pytest.approx(want)
    second = next(sample for sample in samples.rows if sample.index == 1)
    assert second.target == " ".join(str(token) for token in targets[1, :2].tolist())


@pytest.mark.parametrize("ignore_index", [0, None])
def test_a_sequence_names_its_own_padding(ignore_index):
    logits, targets = torch.randn(2, 3, 4), torch.tensor([[1, 0, 0], [2, 3, 1]])
    item = SequenceOutput(torch.tensor(0.0), logits, targets, ignore_index=ignore_index)
    each = functional.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")
    first = each[0, 0] if ignore_index == 0 else each[0].mean()
    assert losses(sample_losses(item)) == pytest.approx([first.item(), each[1].mean().item()])


def test_pixels_of_a_sample_are_averaged():
    scores, targets = torch.randn(2, 3, 4, 4), torch.randint(0, 3, (2, 4, 4))
    targets[0, :2] = -100
    samples = sample_losses(ClassificationOutput(torch.tensor(0.0), scores, targets))
    want = [functional.cross_entropy(scores[at : at + 1], targets[at : at + 1]).item() for at in (0, 1)]
    assert losses(samples) == pytest.approx(want)
    assert samples.rows[0].target == "[4, 4]"


WEIGHTS = torch.tensor([1.0, 5.0, 1.0])


@pytest.mark.parametrize(
    "loss_fn",
    [
        nn.CrossEntropyLoss(weight=WEIGHTS),
        partial(functional.cross_entropy, weight=WEIGHTS),
        lambda scores, targets, reduction="mean": functional.cross_entropy(
            scores, targets, weight=WEIGHTS, reduction=reduction
        ),
    ],
)
def test_the_loss_it_is_trained_on_is_asked_first(loss_fn):
    scores, targets = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    item = ClassificationOutput(torch.tensor(0.0), scores, targets)
    want = functional.cross_entropy(scores, targets, weight=WEIGHTS, reduction="none").tolist()
    assert losses(sample_losses(item, loss_fn)) == pytest.approx(want)


def test_the_users_loss_keeps_its_reduction():
    loss_fn = nn.CrossEntropyLoss()
    sample_losses(ClassificationOutput(torch.tensor(0.0), torch.randn(2, 3), torch.tensor([0, 1])), loss_fn)
    assert loss_fn.reduction == "mean"


def broken(scores, targets, reduction="mean"):
    raise RuntimeError("not today")


@pytest.mark.parametrize("loss_fn", [lambda scores, targets: scores.mean(), broken, max])
def test_a_loss_that_gives_no_single_losses_leaves_it_to_the_known_ones(loss_fn):
    scores, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    item = ClassificationOutput(torch.tensor(0.0), scores, targets)
    want = functional.cross_entropy(scores, targets, reduction="none").tolist()
    assert losses(sample_losses(item, loss_fn)) == pytest.approx(want)


def test_a_train_output_holds_its_item():
    item = RegressionOutput(torch.tensor(0.0), torch.ones(2), torch.zeros(2))
    assert losses(sample_losses(TrainOutput(None, None, item))) == [1, 1]


def test_a_mapping_will_do():
    output = {"loss": torch.tensor(0.0), "output": torch.ones(2, 3), "targets": torch.zeros(2, 3)}
    assert losses(sample_losses(output)) == [1, 1]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (None, "did not get as far"),
        (SimpleNamespace(loss=torch.tensor(0.0)), "without tensors `.output` and `.targets`"),
        (
            SimpleNamespace(output=torch.ones(2, 3, 4), targets=torch.ones(2)),
            "output [2, 3, 4] and targets [2]",
        ),
    ],
)
def test_without_samples_there_is_a_reason(output, words):
    samples = sample_losses(output)
    assert samples.rows is None
    assert words in samples.reason


def test_half_precision_is_no_hindrance():
    scores = torch.randn(4, 3).bfloat16()
    samples = sample_losses(ClassificationOutput(torch.tensor(0.0), scores, torch.tensor([0, 1, 2, 0])))
    assert len(samples.rows) == 4
