"""A metric takes what it needs out of any output, by a function."""

from __future__ import annotations

import copy
from collections import namedtuple
from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch

import notebook_learner
from notebook_learner.errors import OutputError
from notebook_learner.metric import (
    Accuracy,
    CharErrorRate,
    Loss,
    Metric,
    MetricGroup,
    Perplexity,
    TopKAccuracy,
)
from notebook_learner.metric.output_checks import OUTPUTS

LOGITS = torch.tensor([[9.0, 0.0, 1.0], [0.0, 9.0, 1.0], [1.0, 9.0, 0.0]])
LABELS = torch.tensor([0, 1, 0])
ITEM = SimpleNamespace(loss=torch.tensor(2.0), logits=LOGITS, labels=LABELS)


def value(metric, item=ITEM, steps=2):
    group = MetricGroup([metric])
    group.attach(SimpleNamespace(samples=3))
    for _ in range(steps):  # the first step is looked at more closely than the others
        group.collect(item)
    group.read()
    return group.finals()[metric.name]


Pair = namedtuple("Pair", ["targets", "output"])


@pytest.mark.parametrize(
    "take",
    [
        lambda item: (item.logits, item.labels),
        lambda item: [item.logits, item.labels],
        lambda item: {"targets": item.labels, "output": item.logits},
        lambda item: SimpleNamespace(targets=item.labels, output=item.logits),
        lambda item: Pair(item.labels, item.logits),
    ],
)
def test_the_function_returns_what_is_needed_in_order_or_by_name(take):
    assert value(Accuracy(input=take)) == pytest.approx(200 / 3)


def test_every_kind_of_metric_takes_it():
    def take(item):
        return item.logits, item.labels

    assert value(TopKAccuracy(2, input=take)) == 100.0
    assert value(Perplexity(input=take)) > 1.0
    assert value(Loss(input=lambda item: item.loss * 2)) == 4.0
    assert value(CharErrorRate(input=lambda item: (item.logits.argmax(-1), item.labels))) == pytest.approx(
        100 / 3
    )


def test_a_metric_of_ones_own_takes_it_too():
    class Largest(Metric):
        name = "Largest"
        needs = ("output",)

        def update(self, item):
            return item.output.max(), 1

    assert value(Largest(input=lambda item: item.logits)) == 9.0
    late = Largest()
    late.input = lambda item: item.logits
    assert value(late) == 9.0


def test_without_needs_the_metric_gets_what_the_function_returned():
    class Both(Metric):
        name = "Both"

        def update(self, pair):
            return pair[0] + pair[1], 1

    assert value(Both(input=lambda item: (1.0, 2.0))) == 3.0


def test_what_the_function_does_not_find_is_said_with_what_is_there():
    with pytest.raises(OutputError) as raised:
        value(Accuracy(input=lambda item: (item.scores, item.labels)))
    assert str(raised.value) == (
        "the input function of Accuracy raised AttributeError: 'types.SimpleNamespace' object has no "
        "attribute 'scores'; the step returned a SimpleNamespace with `loss`, `logits` and `labels`: take "
        "one of these, or leave the metric out"
    )


@pytest.mark.parametrize(
    ("take", "said"),
    [
        (lambda item: item.logits, "must return 2 in this order: output, targets, but returned one Tensor"),
        (lambda item: (item.logits,), "must return 2 in this order: output, targets, but returned 1"),
        (lambda item: {"output": item.logits}, "Accuracy needs `targets`; but its input function returned a"),
        (lambda item: None, "its input function returned a NoneType with no fields: let it return output, t"),
    ],
)
def test_a_function_that_returns_too_little_is_told_what_to_return(take, said):
    group = MetricGroup([Accuracy(input=take)])
    with pytest.raises(OutputError, match=said):
        group.collect(ITEM)
    assert group.pending == 0


def test_what_is_missing_only_later_is_said_too():
    group = MetricGroup([Accuracy(input=lambda item: (item.logits, item.labels))])
    group.collect(ITEM)
    with pytest.raises(OutputError, match="the input function of Accuracy raised AttributeError"):
        group.collect(SimpleNamespace(logits=LOGITS))
    assert group.pending == 1


def test_what_needs_a_gradient_is_let_go():
    weights = torch.ones(3, requires_grad=True)
    group = MetricGroup([Loss(input=lambda item: (weights * item.loss).sum())])
    group.attach(SimpleNamespace(samples=3))
    group.collect(ITEM)
    assert not group._values[0][0].requires_grad


def test_the_table_of_outputs_is_what_the_outputs_have():
    for name, known in OUTPUTS.items():
        kind = getattr(notebook_learner, name)
        members = {field.name for field in fields(kind)}
        members |= {
            key for base in kind.__mro__ for key, what in vars(base).items() if isinstance(what, property)
        }
        assert known == members


def test_a_field_of_one_output_is_told_with_that_output():
    with pytest.raises(
        OutputError, match="SequenceOutput has `loss`, `output`, `targets` and `predictions`: r"
    ):
        MetricGroup([CharErrorRate()]).collect(ITEM)


class Uncopyable:
    def decode(self, tokens):
        return "".join(map(str, tokens))

    def take(self, item):
        return item.logits.argmax(-1), item.labels

    def __deepcopy__(self, memo):
        raise AssertionError("a user's tokenizer or model was copied")


def test_each_split_has_its_own_metric_but_the_same_functions(tmp_path):
    from notebook_learner.learner.wiring.assembly import _own_metrics
    from notebook_learner.run.settings import Registered

    users = Uncopyable()
    metric = CharErrorRate(users, input=users.take)
    first, second = _own_metrics([Registered(metric, "train", True), Registered(metric, "valid", True)])
    assert first.metric is not second.metric
    assert first.metric.decode is second.metric.decode is users
    assert first.metric.input == second.metric.input == users.take
    assert value(second.metric) == pytest.approx(100 / 3)
    assert copy.copy(metric).input == users.take


def test_padding_that_the_output_names_is_not_counted():
    targets = torch.tensor([0, -100, 0])
    item = SimpleNamespace(output=LOGITS, targets=targets, ignore_index=-100)
    assert value(Accuracy(), item) == 50.0
    assert value(TopKAccuracy(2), item) == 100.0
    assert value(Accuracy(0), item) == 0.0
