"""The loss of every sample of a batch, the worst first."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import a_kind
from .batch import Decode, decoded
from .statistics import wide

MOST_SAMPLES = 1000
_LONGEST_LIST = 8
_IGNORED = -100
"""The target that torch's losses ignore by default."""

Example = int | float | bool | str | list[Any] | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of the batch: its index, its loss, its target and the prediction."""

    index: int
    loss: float
    target: Example
    prediction: Example


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples, the worst first; or None, and the reason."""

    rows: tuple[Sample, ...] | None
    reason: str = ""


def field_of(output: Any, name: str) -> Any:
    """A field of a step's output, which may be an object or a mapping."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def item_of(output: Any) -> Any:
    """The output that holds the loss. In a TrainOutput it is the `item`."""
    return output.item if hasattr(output, "grads") and hasattr(output, "item") else output


def loss_of(output: Any) -> Tensor | None:
    """The loss in a step's output; a bare tensor is itself the loss."""
    loss = output if isinstance(output, Tensor) else field_of(output, "loss")
    return loss.detach() if isinstance(loss, Tensor) else None


def sample_losses(
    output: Any, loss_fn: Callable[..., Any] | None = None, decode: Decode | None = None
) -> Samples:
    """Return the losses of a step's output, sample by sample.

    Args:
        output: the step's output. The four outputs of this package are known by their names, and so is any
            output with the same fields.
        loss_fn: the model's loss; tried first, with `reduction="none"` if it takes that.
        decode: the function from token numbers to text, for sequences.

    >>> from types import SimpleNamespace
    >>> scores, targets = torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1])
    >>> output = SimpleNamespace(loss=None, output=scores, targets=targets)
    >>> [(sample.index, sample.target, sample.prediction) for sample in sample_losses(output).rows]
    [(1, 1, 0), (0, 0, 0)]
    """
    if output is None:
        return Samples(None, "the step did not get as far as an output, or returned none")
    item = item_of(output)
    scores, targets = _scores(item), field_of(item, "targets")
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor):
        return Samples(None, _why_no_fields(item, scores, targets))
    scores, targets = scores.detach(), targets.detach()
    kind = _kind(item, scores, targets)
    with torch.no_grad():
        losses = _own_losses(loss_fn, scores, targets) if loss_fn is not None else None
        if losses is None and kind is not None:
            losses = _known_losses(kind, item, scores, targets)
    if losses is None:
        return Samples(None, _why_no_losses(item, scores, targets))
    return Samples(_worst(losses, item, kind, scores, targets, decode))


def _scores(item: Any) -> Any:
    """The model's outputs with the classes in dimension 1."""
    if "SequenceOutput" in _names(item):
        return item.logits.movedim(-1, 1)
    return field_of(item, "output")


def _names(item: Any) -> set[str]:
    return {cls.__name__ for cls in type(item).__mro__}


def _kind(item: Any, scores: Tensor, targets: Tensor) -> str | None:
    names = _names(item)
    for name in (
        "SequenceOutput",
        "MultiLabelClassificationOutput",
        "ClassificationOutput",
        "RegressionOutput",
    ):
        if name in names:
            return name
    # The shapes decide for any other output, as in `.loss(fn)`.
    whole = not targets.is_floating_point() and not targets.is_complex()
    if whole and scores.ndim == targets.ndim + 1:
        return "ClassificationOutput"
    return "RegressionOutput" if scores.shape == targets.shape and not whole else None


def _own_losses(loss_fn: Callable[..., Any], scores: Tensor, targets: Tensor) -> Tensor | None:
    each = _unreduced(loss_fn)
    if each is None:
        return None
    with suppress(Exception):  # if the user's own loss fails, the known ones are used
        return _per_sample(each(scores, targets), targets, getattr(loss_fn, "ignore_index", _IGNORED))
    return None


def _unreduced(loss_fn: Callable[..., Any]) -> Callable[..., Any] | None:
    if isinstance(loss_fn, nn.Module):
        if not hasattr(loss_fn, "reduction"):
            return None
        loss_fn = copy.copy(loss_fn)  # a shallow copy shares class weights; the user's module stays
        loss_fn.reduction = "none"  # type: ignore[assignment]  # a string, as every loss of torch has it
        return loss_fn
    with suppress(TypeError, ValueError):  # a builtin may have no signature
        if "reduction" in inspect.signature(loss_fn).parameters:
            return lambda scores, targets: loss_fn(scores, targets, reduction="none")
    return None


def _known_losses(kind: str, item: Any, scores: Tensor, targets: Tensor) -> Tensor | None:
    scores = scores.float() if scores.is_floating_point() and scores.element_size() < 4 else scores
    ignored = getattr(item, "ignore_index", _IGNORED)
    with suppress(RuntimeError, ValueError, IndexError, TypeError):  # the name may not fit the contents
        if kind in ("ClassificationOutput", "SequenceOutput"):
            left_out = _IGNORED if ignored is None else ignored
            each = functional.cross_entropy(scores, targets.long(), reduction="none", ignore_index=left_out)
            return _per_sample(each, targets, left_out)
        if kind == "MultiLabelClassificationOutput":
            each = functional.binary_cross_entropy_with_logits(
                scores, targets.to(scores.dtype), reduction="none"
            )
        else:
            each = (scores - targets).abs().square()
        return _per_sample(each, None, 0)
    return None


def _per_sample(each: Any, targets: Tensor | None, ignored: Any) -> Tensor | None:
    """The mean of each sample's losses, without the targets that the loss ignores."""
    if not isinstance(each, Tensor) or each.ndim == 0 or each.is_complex():
        return None
    rows: Tensor = each.reshape(len(each), -1).to(wide(each.device))
    if targets is None or each.shape != targets.shape or targets.is_floating_point() or each.ndim == 1:
        return rows.mean(1) if each.numel() else None
    counted = (targets != ignored).reshape(rows.shape)
    means: Tensor = rows.where(counted, 0).sum(1) / counted.sum(1).clamp(min=1)
    return means


def _worst(
    losses: Tensor, item: Any, kind: str | None, scores: Tensor, targets: Tensor, decode: Decode | None
) -> tuple[Sample, ...]:
    numbers = losses.cpu().numpy()
    order = np.argsort(-np.where(np.isnan(numbers), math.inf, numbers), kind="stable")[:MOST_SAMPLES]
    chosen = torch.from_numpy(order).to(scores.device)
    predictions = _predictions(item, kind, scores)
    said = examples_of(predictions, chosen, decode if kind == "SequenceOutput" else None)
    meant = examples_of(targets, chosen, decode if kind == "SequenceOutput" else None)
    return tuple(
        Sample(int(at), float(numbers[at]), target, prediction)
        for at, target, prediction in zip(order, meant, said, strict=True)
    )


def _predictions(item: Any, kind: str | None, scores: Tensor) -> Tensor:
    if kind == "SequenceOutput":
        given = getattr(item, "predictions", None)
        return given.detach() if isinstance(given, Tensor) else scores.argmax(1)
    if kind == "ClassificationOutput" and scores.ndim > 1:
        return scores.argmax(1)
    if kind == "MultiLabelClassificationOutput":
        return (scores > 0).to(torch.uint8)
    return scores


def examples_of(values: Tensor, chosen: Tensor, decode: Decode | None) -> list[Example]:
    """One example for each chosen sample: a number, a short list, text, or the kind of tensor."""
    if values.ndim == 0 or len(values) <= (int(chosen.max()) if len(chosen) else -1):
        return [None] * len(chosen)
    rows = values[chosen.to(values.device)].detach().cpu()
    rows = rows.double() if rows.is_floating_point() else rows
    return [_example(row, decode) for row in rows]


def _example(row: Tensor, decode: Decode | None) -> Example:
    row = row.squeeze()
    if decode is not None and row.ndim == 1:
        with suppress(Exception):  # the user's tokenizer may fail
            return decoded(decode, row)
    if row.ndim == 0:
        value: Example = row.item()
        return value
    if row.ndim == 1:
        start: list[Any] = row[:_LONGEST_LIST].tolist()
        return start if len(row) <= _LONGEST_LIST else [*start, "…"]
    return f"[{', '.join(str(size) for size in row.shape)}]"


def _why_no_fields(item: Any, scores: Any, targets: Any) -> str:
    parts = {"`.output`": scores, "`.targets`": targets}
    missing = [name for name, each in parts.items() if not isinstance(each, Tensor)]
    kind = "tensors" if len(missing) > 1 else "a tensor"
    return (
        f"the step's output is {a_kind(item)} without {kind} {' and '.join(missing)}; return "
        "ClassificationOutput(loss, output, targets), or another of the outputs, to see the samples"
    )


def _why_no_losses(item: Any, scores: Tensor, targets: Tensor) -> str:
    return (
        f"the losses of single samples are unknown for {a_kind(item)} with output {list(scores.shape)} "
        f"and targets {list(targets.shape)}; use a loss with a `reduction` argument, like torch's losses"
    )
