"""Some samples, one by one: what was given, what is right, and what the model says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..event import SampleRow
from ..event.values import Cell
from ..renderer.text import one_line
from .batch import Decode, decoded, decoder, pictures_of, tensors_in
from .report_tables import example
from .samples import Example, Sample, examples_of, field_of, item_of, sample_losses

_LONGEST_LINE = 240


def sample_rows(
    batch: Any,
    output: Any,
    count: int,
    *,
    loss_fn: Callable[..., Any] | None = None,
    labels: Sequence[str] | None = None,
    tokenizer: Any = None,
) -> tuple[SampleRow, ...]:
    """Describe each sample of a batch, in the order of the batch.

    Args:
        batch: as the loader gave it.
        output: what the validation step returned for it.
        count: the number of samples in the batch.
        loss_fn: the model's loss, for the loss of each sample.
        labels: the classes' names.
        tokenizer: an object with a `decode`, or a function from token numbers to text.

    Raises:
        ValueError: the output has no prediction for each sample.

    >>> from types import SimpleNamespace
    >>> x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])
    >>> output = SimpleNamespace(loss=None, output=torch.tensor([[9.0, 0.0], [9.0, 0.0]]), targets=y)
    >>> for row in sample_rows((x, y), output, 2, labels=["cat", "dog"]):
    ...     print(row.given, row.target, row.prediction, row.right)
    [1.000, 2.000] cat cat True
    [3.000, 4.000] dog cat False
    """
    decode = decoder(tokenizer)
    found = sample_losses(output, loss_fn, decode)
    said: dict[int, Sample] = {} if found.rows is None else {each.index: each for each in found.rows}
    item = item_of(output)
    scores, targets = field_of(item, "output"), field_of(item, "targets")
    if not said and not (isinstance(scores, Tensor) and scores.ndim and len(scores) == count):
        raise ValueError(found.reason)
    given = _given(batch, count, decode)
    meant = _pictures(targets, count) or [_cell(said.get(at), "target", labels) for at in range(count)]
    answers = _pictures(scores, count) or _answers(scores, said, count, labels)
    return tuple(
        SampleRow(given[at], meant[at], answers[at], _loss(said.get(at)), _right(said.get(at)))
        for at in range(count)
    )


def _given(batch: Any, count: int, decode: Decode | None) -> Sequence[Cell]:
    """The first part of the batch that has something to show for each sample: pictures before texts, and
    texts before numbers."""
    parts = [tensor for _, tensor in tensors_in(batch) if tensor.ndim and len(tensor) == count]
    for tensor in parts:
        if pictures := _pictures(tensor, count):
            return pictures
    if texts := _texts(batch, count):
        return texts
    if decode is not None:
        for tensor in parts:
            if tensor.ndim == 2 and not tensor.is_floating_point() and tensor.dtype is not torch.bool:
                return [decoded(decode, row) for row in tensor]
    if not parts:
        return [""] * count
    return [example(each) for each in examples_of(parts[0], torch.arange(count), None)]


def _pictures(tensor: Any, count: int) -> Sequence[Cell]:
    return pictures_of(tensor, count) if isinstance(tensor, Tensor) and len(tensor.shape) > 2 else ()


def _texts(value: Any, count: int) -> list[Cell]:
    """The first list of texts in a batch, one for each sample."""
    if isinstance(value, (list, tuple)) and len(value) == count and all(isinstance(x, str) for x in value):
        return [_line(text) for text in value]
    if isinstance(value, Mapping):
        value = [*value.values()]
    children = value if isinstance(value, (list, tuple)) else ()
    return next((found for child in children if (found := _texts(child, count))), [])


def _line(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"


def _answers(scores: Any, said: dict[int, Sample], count: int, labels: Sequence[str] | None) -> list[Cell]:
    if said:
        return [_cell(said.get(at), "prediction", labels) for at in range(count)]
    return [example(each) for each in examples_of(scores.detach(), torch.arange(count), None)]


def _cell(sample: Sample | None, name: str, labels: Sequence[str] | None) -> str:
    value: Example = None if sample is None else getattr(sample, name)
    is_class = isinstance(value, int) and not isinstance(value, bool)
    if labels is not None and is_class and 0 <= value < len(labels):  # type: ignore[operator]
        return one_line(labels[value])  # type: ignore[index]
    return example(value)


def _loss(sample: Sample | None) -> float | None:
    return None if sample is None else sample.loss


def _right(sample: Sample | None) -> bool | None:
    """Whether a class, or each of several labels, is the right one. A number is never quite right."""
    if sample is None or not _is_class(sample.target) or not _is_class(sample.prediction):
        return None
    return sample.target == sample.prediction


def _is_class(value: Example) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_class, value))
    return isinstance(value, int)
