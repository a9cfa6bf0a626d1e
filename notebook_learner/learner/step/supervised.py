"""The step of `.loss(fn)`: a plain module and (x, y) batches, for training and validation alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ...errors import StepError
from .output import ClassificationOutput, RegressionOutput


@dataclass(slots=True)
class SupervisedOutput:
    """What metrics read where a model has several outputs, or a target several parts."""

    loss: Tensor
    output: Any
    targets: Any


def supervised(
    model: nn.Module, loss: Callable[..., Any], kind: Callable[..., Any] | None, batch: Any
) -> Any:
    """`loss(model(x), y)`, wrapped into an output that metrics can read."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise StepError(_why_no_pair(batch))
    x, y = batch
    output = model(x)
    value = loss(output, y)
    return (kind or kind_of(output, y))(value, output, y)


def kind_of(output: Any, y: Any) -> Callable[..., Any]:
    """Class numbers have one dimension less than their scores; anything else is compared as it is."""
    if not isinstance(output, Tensor) or not isinstance(y, Tensor):
        return SupervisedOutput
    classes = not y.is_floating_point() and output.ndim == y.ndim + 1
    return ClassificationOutput if classes else RegressionOutput


def _why_no_pair(batch: Any) -> str:
    kind = type(batch).__name__
    size = f" with {len(batch)} parts" if isinstance(batch, (tuple, list)) else ""
    if isinstance(batch, Tensor):
        return (
            f"loss(fn) is for (x, y) batches, but this batch is one tensor of shape {tuple(batch.shape)}; "
            "if the data are two tensors, give fit(DataLoader(TensorDataset(x, y), batch_size=32)); else "
            "say how to train on it with train_step(fn) and fn(model, batch)"
        )
    return (
        f"loss(fn) is for (x, y) batches, but this batch is of type {kind}{size}; say how to train on it "
        "with train_step(fn) and fn(model, batch), or with a train_step(self, batch) on the model"
    )
