"""A metric of one's own takes ten lines and equals the reference."""

from types import SimpleNamespace

import pytest
import torch
from torchmetrics import MeanAbsoluteError as Reference

from notebook_learner.metric import Metric, Reading, TextMetric


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


@pytest.mark.parametrize(("kind", "method"), [(Reading, "sample"), (TextMetric, "text")])
def test_the_other_shapes_say_what_to_define(kind, method):
    with pytest.raises(NotImplementedError, match=rf"must define {method}\(\)"):
        getattr(kind(), method)()
