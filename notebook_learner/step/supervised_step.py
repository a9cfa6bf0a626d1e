"""The step of `.loss(fn)`: a plain module and (x, y) batches, for both training and validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import StepError
from .output import ClassificationOutput, RegressionOutput


@dataclass(slots=True)
class SupervisedOutput:
    """What metrics read if a model has several outputs, or a target several parts."""

    loss: Tensor
    output: Any
    targets: Any


def supervised(
    model: nn.Module, loss: Callable[..., Any], kind: Callable[..., Any] | None, batch: Any
) -> Any:
    """Return `loss(model(x), y)`, wrapped into an output that metrics can read."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise StepError(_why_no_pair(batch))
    x, y = batch
    output = model(x)
    chosen = kind or kind_of(output, y)
    if chosen is RegressionOutput and getattr(output, "shape", 0) != getattr(y, "shape", 0):
        _tell_of_broadcasting(model, loss, output, y)
    value = loss(output, y)
    return chosen(value, output, y)


def kind_of(output: Any, y: Any) -> Callable[..., Any]:
    """Choose the output class: class numbers have one dimension less than their scores; else values are
    compared."""
    if not isinstance(output, Tensor) or not isinstance(y, Tensor):
        return SupervisedOutput
    classes = not y.is_floating_point() and output.ndim == y.ndim + 1
    return ClassificationOutput if classes else RegressionOutput


_PAIRED = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
_PAIRED_LAYERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
"""Losses of pairs of numbers. If the shapes differ, they compare every number with every other."""
_TOLD: WeakSet[nn.Module] = WeakSet()
"""The models whose user has seen the warning. It comes once, not at each step or for a short last batch."""


def _tell_of_broadcasting(model: nn.Module, loss: Callable[..., Any], output: Any, y: Any) -> None:
    if loss not in _PAIRED and not isinstance(loss, _PAIRED_LAYERS):
        return
    if model in _TOLD or not _broadcast(output, y):
        return
    _TOLD.add(model)
    warnings.warn(_why_broadcast(loss, output.shape, y.shape), UserWarning, stacklevel=2)
    # torch warns about the line below, too, but does not say what to write.
    warnings.filterwarnings("ignore", "Using a target size", UserWarning, f"{__name__}$".replace(".", r"\."))


def _broadcast(output: Any, y: Any) -> bool:
    if not isinstance(output, Tensor) or not isinstance(y, Tensor):
        return False
    try:
        torch.broadcast_shapes(output.shape, y.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch refuses, and the message says what it was given
        return False
    return True


def _why_broadcast(loss: Callable[..., Any], output: torch.Size, y: torch.Size) -> str:
    layer = isinstance(loss, nn.Module)
    pairs = torch.broadcast_shapes(output, y).numel()  # type: ignore[no-untyped-call]
    name = type(loss).__name__ if layer else getattr(loss, "__name__", "the loss")
    said = (
        f"{name} was given an output of shape {tuple(output)} and targets of shape {tuple(y)}, and compares "
        f"every output with every target: {pairs:,} pairs. "
    )
    if output == (*y, 1):
        call = f"nn.{name}()" if layer else f"F.{name}"
        return said + (
            "Give the targets that dimension, TensorDataset(x, y.unsqueeze(-1)), or take it from the output: "
            f".loss(lambda output, y: {call}(output.squeeze(-1), y))"
        )
    if y == (*output, 1):
        return said + "Take the last dimension from the targets: TensorDataset(x, y.squeeze(-1))"
    return said + "Give both the same shape, with view(...) or unsqueeze(...)"


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
