"""What a step or a metric returned wrongly is said in words."""

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from notebook_learner.errors import OutputError, StepError
from notebook_learner.metric import Accuracy, Loss, Metric, MetricGroup
from notebook_learner.metric.tensors import RightAnswers


@dataclass
class LossOnly:
    loss: torch.Tensor
    _hidden: int = 0


@dataclass
class Slotted:
    __slots__ = ("loss", "scores")
    loss: torch.Tensor
    scores: torch.Tensor


def message(metrics, item):
    group = MetricGroup(metrics)
    with pytest.raises(OutputError) as raised:
        group.collect(item)
    assert group.pending == 0
    return str(raised.value)


def test_missing_fields_are_named_with_the_metric_the_output_and_the_way_out():
    text = message([Loss(), Accuracy()], LossOnly(torch.tensor(1.0)))
    assert text == (
        "Accuracy needs `output` and `targets`; but the step returned a LossOnly with `loss` and `_hidden`. "
        "ClassificationOutput, RegressionOutput, MultiLabelClassificationOutput and SequenceOutput have "
        "`loss`, `output` and `targets`: return one of them, or an output with these fields, or name others "
        "with the metric's input=lambda item: ..., or leave the metric out"
    )


def test_every_metric_that_lacks_something_is_named():
    text = message([Loss(), Accuracy()], object())
    assert text.startswith("Loss needs `loss`; Accuracy needs `output` and `targets`; but")
    assert "returned an object with no fields" in text


@pytest.mark.parametrize(
    ("item", "fields"),
    [
        (Slotted(torch.tensor(1.0), torch.ones(2)), "`loss` and `scores`"),
        (SimpleNamespace(loss=1, _private=2), "`loss`"),
        (namedtuple("Named", ["loss", "extra", "more"])(1, 2, 3), "`loss`, `extra` and `more`"),
        (torch.ones(2), "no fields"),
    ],
)
def test_the_fields_of_any_kind_of_output_are_listed(item, fields):
    assert f"with {fields}. " in message([Accuracy()], item)


def test_a_dict_is_told_that_keys_are_no_fields():
    text = message([Loss()], {"loss": torch.tensor(1.0)})
    assert "a dict with no fields" in text
    assert "types.SimpleNamespace(**it)" in text


def test_fields_that_are_not_ours_are_not_promised_of_our_outputs():
    class Boxes(Metric):
        name = "Boxes"
        needs = ("boxes",)

    text = message([Boxes()], LossOnly(torch.tensor(1.0)))
    assert "ClassificationOutput" not in text
    assert "Return an output with these fields" in text
    assert text.endswith(", or leave the metric out")


def test_a_field_that_disappears_later_is_named_too():
    group = MetricGroup([Accuracy()])
    group.collect(SimpleNamespace(output=torch.eye(2), targets=torch.arange(2)))
    with pytest.raises(
        OutputError, match="Accuracy needs `targets`; but the step returned a SimpleNamespace"
    ):
        group.collect(SimpleNamespace(output=torch.eye(2)))
    assert group.pending == 1


class Returns(Metric):
    name = "Returns"

    def update(self, item):
        return item


WRONG = [
    (None, "update returned None; it must return two things"),
    (3.0, "update returned a float"),
    ((1.0,), "update returned a tuple of 1"),
    ((1.0, 2, 3), "update returned a tuple of 3"),
    (torch.tensor(1.0), r"update returned a tensor of shape \[\] and torch.float32"),
]
NO_SCALARS = [
    ((torch.ones(3), 1), r"as its value a tensor of shape \[3\].*reduce it with .mean"),
    ((1.0, torch.ones(3)), r"as its weight a tensor of shape \[3\]"),
    ((None, 1), r"as its value None.*\(float\('nan'\), 0\)"),
    ((1.0, "many"), "as its weight a str"),
    ((torch.tensor(1j), 1), "as its value a tensor"),
]


@pytest.mark.parametrize(("pair", "text"), [*WRONG, *NO_SCALARS])
def test_an_update_that_returns_no_pair_of_scalars_is_told_at_its_first_step(pair, text):
    group = MetricGroup([Returns()])
    with pytest.raises(StepError, match=text):
        group.collect(pair)
    assert group.pending == 0


class Second(Metric):
    name = "Second"

    def update(self, item):
        return item.pair


@pytest.mark.parametrize(("pair", "text"), WRONG)
def test_and_at_any_later_step(pair, text):
    group = MetricGroup([Loss(), Second()])
    group.collect(SimpleNamespace(loss=torch.tensor(1.0), weight=1, pair=(1.0, 1)))
    with pytest.raises(StepError, match=f"Second.{text}"):
        group.collect(SimpleNamespace(loss=torch.tensor(1.0), weight=1, pair=pair))
    assert group.pending == 1
    assert group.read()[0]["Second"].values.tolist() == [1.0]


@pytest.mark.parametrize(("pair", "text"), NO_SCALARS)
def test_a_value_that_is_no_scalar_later_is_told_when_it_is_read(pair, text):
    group = MetricGroup([Second()])
    group.collect(SimpleNamespace(pair=(1.0, 1)))
    group.collect(SimpleNamespace(pair=pair))
    with pytest.raises(StepError, match=f"Second.update returned {text}"):
        group.read()


def test_an_error_of_the_device_is_not_taken_for_a_mistake_of_the_metric(monkeypatch):
    error = RuntimeError("CUDA error: device-side assert triggered")

    def fail(lists):
        raise error

    monkeypatch.setattr("notebook_learner.metric.group.to_host", fail)
    group = MetricGroup([Second()])
    group.collect(SimpleNamespace(pair=(1.0, 1)))
    with pytest.raises(RuntimeError) as raised:
        group.read()
    assert raised.value is error
    assert group.pending == 1


@pytest.mark.parametrize(
    "scalar", [2, 2.0, True, np.float32(2), np.int64(2), np.bool_(True), torch.tensor([2.0]), torch.tensor(2)]
)
def test_any_kind_of_real_number_will_do(scalar):
    group = MetricGroup([Returns()])
    for pair in ((scalar, scalar), [scalar, scalar]):
        group.collect(pair)
    column = group.read()[0]["Returns"]
    assert column.values.tolist() == column.weights.tolist() == [float(scalar)] * 2


def test_a_metric_without_update_says_what_to_define():
    class Empty(Metric):
        name = "Empty"

    with pytest.raises(NotImplementedError, match="Empty must define update"):
        MetricGroup([Empty()]).collect(None)


def test_a_metric_of_right_answers_without_hits_says_what_to_define():
    class Empty(RightAnswers):
        name = "Empty"

    item = SimpleNamespace(output=torch.eye(2), targets=torch.arange(2))
    with pytest.raises(NotImplementedError, match="Empty must define hits"):
        MetricGroup([Empty()]).collect(item)
