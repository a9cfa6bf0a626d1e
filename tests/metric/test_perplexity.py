"""Perplexity is the exponential of the cross entropy of all tokens."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from notebook_learner import SequenceOutput
from notebook_learner.errors import OutputError
from notebook_learner.metric import MetricGroup, Perplexity

PAD = 0


def sentences(seed, dtype=torch.float32):
    source = torch.Generator().manual_seed(seed)
    sizes = [int(size) for size in torch.randint(1, 5, (3,), generator=source)] + [1]
    steps = []
    for size in sizes:
        length = int(torch.randint(1, 8, (), generator=source))
        targets = torch.randint(1, 11, (size, length), generator=source)
        targets[torch.rand(size, length, generator=source) < 0.4] = PAD
        logits = 3 * torch.randn(size, length, 11, generator=source)
        steps.append((logits.to(dtype), targets))
    return steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_exponential_of_torchs_cross_entropy_over_all_tokens(dtype, measure, device):
    for seed in range(200):
        steps = sentences(seed, dtype)
        items = [SimpleNamespace(output=x.to(device), targets=y.to(device)) for x, y in steps]
        columns, finals = measure([Perplexity(PAD, class_dim=-1)], items, cuts={2})
        scores = torch.cat([x.reshape(-1, 11) for x, _ in steps]).double()
        targets = torch.cat([y.reshape(-1) for _, y in steps])
        expected = F.cross_entropy(scores, targets, ignore_index=PAD).exp().item()
        assert finals["Perplexity"] == pytest.approx(expected, rel=1e-5, nan_ok=True)
        for value, (x, y) in zip(columns["Perplexity"], steps, strict=True):
            own = F.cross_entropy(x.double().reshape(-1, 11), y.reshape(-1), ignore_index=PAD).exp().item()
            assert value == pytest.approx(own, rel=1e-5, nan_ok=True)


def test_it_is_the_same_wherever_the_classes_lie_in_memory():
    (logits, targets), *_ = sentences(5)
    expected = F.cross_entropy(logits.reshape(-1, 11), targets.reshape(-1), ignore_index=PAD).exp().item()
    last = logits.contiguous()
    for output, dim in [(last, -1), (last.movedim(-1, 1), 1), (last.movedim(-1, 1).contiguous(), 1)]:
        group = MetricGroup([Perplexity(PAD, class_dim=dim)])
        group.collect(SimpleNamespace(output=output, targets=targets))
        assert group.read()[0]["Perplexity"].values.tolist() == pytest.approx([expected], rel=1e-5)


def test_the_mean_of_steps_would_be_another_number(measure):
    items = [SimpleNamespace(output=x, targets=y) for x, y in sentences(3)]
    columns, finals = measure([Perplexity(PAD, class_dim=-1)], items)
    assert finals["Perplexity"] != pytest.approx(columns["Perplexity"].mean(), rel=0.01)


def test_a_sequence_output_says_what_is_padding():
    (logits, targets), *_ = sentences(1)
    targets[0, 0] = -100
    step = SequenceOutput(torch.tensor(1.0), logits, targets)
    group = MetricGroup([Perplexity()])
    group.collect(step)
    column = group.read()[0]["Perplexity"]
    assert column.weights.tolist() == [(targets != -100).sum().item()]
    expected = F.cross_entropy(logits.reshape(-1, 11), targets.reshape(-1)).exp().item()
    assert column.values.tolist() == pytest.approx([expected])


def test_one_that_does_not_fit_a_double_is_infinite_and_nan_stays_nan(measure):
    def step(score):
        return SimpleNamespace(output=torch.tensor([[score, 0.0]]), targets=torch.tensor([1]))

    _, finals = measure([Perplexity()], [step(1e4)])
    assert finals["Perplexity"] == math.inf
    _, finals = measure([Perplexity()], [step(float("nan"))])
    assert math.isnan(finals["Perplexity"])


def test_shapes_that_do_not_fit_are_told():
    step = SimpleNamespace(output=torch.ones(2, 3), targets=torch.ones(2, 3).long())
    with pytest.raises(OutputError, match="Perplexity got `output` of shape"):
        MetricGroup([Perplexity()]).collect(step)
