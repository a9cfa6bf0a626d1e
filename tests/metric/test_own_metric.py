"""A metric of one's own takes ten lines and equals the reference."""

from types import SimpleNamespace

import pytest
import torch
from torchmetrics import MeanAbsoluteError as Reference

from notebook_learner.errors import StepError
from notebook_learner.metric import Loss, Metric, MetricGroup, Reading, TextMetric


class MeanAbsoluteError(Metric):
    name = "Mean Absolute Error"
    higher_is_better = False
    needs = ("output", "targets")

    def update(self, item):
        error = (item.output - item.targets).abs().mean()
        return error, len(item.targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_absolute_error_equals_torchmetrics(measure, device, dtype):
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        items = [
            SimpleNamespace(
                output=torch.randn(size, generator=generator, dtype=dtype).to(device),
                targets=torch.randn(size, generator=generator, dtype=dtype).to(device),
            )
            for size in (32, 32, 32, 5)
        ]
        reference = Reference().set_dtype(dtype).to(device)
        per_step = [reference(item.output, item.targets).item() for item in items]
        columns, finals = measure([MeanAbsoluteError()], items, cuts={2})
        assert columns["Mean Absolute Error"].tolist() == pytest.approx(per_step, rel=1e-6)
        assert finals["Mean Absolute Error"] == pytest.approx(reference.compute().item(), rel=1e-6)


class MeanError(Metric):
    name = "Mean Error"
    needs = ("output", "targets")

    def update(self, item):
        error = (item.output - item.targets).mean()
        return (float("nan"), 0) if error > 9 else error


def test_one_number_of_a_step_is_weighted_by_the_samples_of_its_batch():
    group, context = MetricGroup([Loss(), MeanError()]), SimpleNamespace()
    group.attach(context)
    sizes, by_hand = (4, 3, 2, 4, 1), []
    for number, size in enumerate(sizes):
        context.samples = size
        targets = torch.randn(size) - 10 * (number == 2)
        output = torch.randn(size, requires_grad=True)
        by_hand.append((output - targets).mean().item())
        group.collect(SimpleNamespace(loss=torch.tensor(1.0), weight=1, output=output, targets=targets))
    columns, _ = group.read()
    there = [0, 1, 3, 4]
    assert columns["Mean Error"].weights.tolist() == [4, 3, 0, 4, 1]
    assert columns["Mean Error"].values[there].tolist() == [by_hand[at] for at in there]
    expected = sum(by_hand[at] * sizes[at] for at in there) / 12
    assert group.finals()["Mean Error"] == pytest.approx(expected)


def test_one_number_later_in_place_of_a_pair_is_told():
    group = MetricGroup([MeanError()])
    group.attach(SimpleNamespace(samples=3))
    group.collect(SimpleNamespace(output=torch.full((3,), 20.0), targets=torch.zeros(3)))
    with pytest.raises(StepError, match=r"it must return two things.*or.*the value alone"):
        group.collect(SimpleNamespace(output=torch.ones(3), targets=torch.zeros(3)))


@pytest.mark.parametrize(("kind", "method"), [(Reading, "sample"), (TextMetric, "text")])
def test_the_other_shapes_say_what_to_define(kind, method):
    with pytest.raises(NotImplementedError, match=rf"must define {method}\(\)"):
        getattr(kind(), method)()
