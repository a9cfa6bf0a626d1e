"""Describe a batch: all its tensors, the classes of its targets, its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..renderer.text import one_line
from .find_tensors import tensors_in
from .pictures import Picture, is_like_images, picture
from .statistics import Measurements, Statistics

MOST_TENSORS = 200
MOST_CLASSES = 1000
_MOST_COUNTED = 1 << 24
_TEXTS, _LONGEST_TEXT = 4, 240

Decode = Callable[[list[int]], Any]


@dataclass(frozen=True, slots=True)
class BatchTensor:
    """One tensor of the batch.

    Attributes:
        path: its place in the batch, such as `[0]` or `['input_ids']`; empty for the batch itself.
        statistics: statistics of its values; None if they cannot be read.
        classes: how often each value occurs, for integers of at most 1,000 different values.
        texts: its first rows as text, if a tokenizer was given.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    statistics: Statistics | None
    classes: Mapping[int, int] | None = None
    texts: tuple[str, ...] = field(default=())


def describe_batch(batch: Any, tokenizer: Any = None) -> tuple[tuple[BatchTensor, ...], tuple[Picture, ...]]:
    """Return a row for every tensor of a nested batch, and pictures of those that look like images.

    >>> rows, _ = describe_batch({"x": torch.ones(2, 3), "y": torch.tensor([0, 0])})
    >>> [(row.path, row.shape, row.statistics.max, row.classes) for row in rows]
    [("['x']", (2, 3), 1.0, None), ("['y']", (2,), 0.0, {0: 2})]
    """
    found = [pair for pair, _ in zip(tensors_in(batch), range(MOST_TENSORS), strict=False)]
    measured = Measurements()
    measured.ask([[tensor] for _, tensor in found])
    decode = decoder(tokenizer)
    rows = tuple(
        _row(path, tensor, both and both[0], decode)
        for (path, tensor), both in zip(found, measured.answers(), strict=True)
    )
    pictures = (picture(path, tensor) for path, tensor in found)
    return rows, tuple(one for one in pictures if one is not None)


def _row(path: str, tensor: Tensor, statistics: Statistics | None, decode: Decode | None) -> BatchTensor:
    return BatchTensor(
        path,
        shape_of(tensor),
        str(tensor.dtype).removeprefix("torch."),
        str(tensor.device),
        statistics,
        _classes(tensor) if statistics is not None else None,
        _texts(path, tensor, decode) if decode is not None and statistics is not None else (),
    )


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """A tensor's shape as plain numbers. For a ragged tensor, all but the first are -1."""
    if tensor.is_nested:
        return (tensor.size(0), *[-1] * (tensor.ndim - 1))
    return tuple(int(size) for size in tensor.shape)


def _is_integer(tensor: Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    return plain and not tensor.is_floating_point() and not tensor.is_complex()


def _classes(tensor: Tensor) -> dict[int, int] | None:
    if not _is_integer(tensor) or not 0 < tensor.numel() <= _MOST_COUNTED or is_like_images(tensor):
        return None
    with suppress(RuntimeError, NotImplementedError):  # uint16, uint32 and uint64 cannot be sorted
        values, counts = torch.unique(tensor.detach(), return_counts=True)
        if len(values) <= MOST_CLASSES:
            return dict(zip(map(int, values.tolist()), counts.tolist(), strict=True))
    return None


def decoder(tokenizer: Any) -> Decode | None:
    """Return the function from token numbers to text: a tokenizer's `decode`, or the callable itself."""
    decode = getattr(tokenizer, "decode", tokenizer)
    return decode if callable(decode) else None


def decoded(decode: Decode, tokens: Tensor) -> str:
    """Token numbers as a short line of text; negative ones (padding such as -100) are left out."""
    numbers = [token for token in tokens.detach().reshape(-1)[:1024].tolist() if token >= 0]
    text = one_line(str(decode(numbers)))
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _texts(path: str, tensor: Tensor, decode: Decode) -> tuple[str, ...]:
    mask = "mask" in path or "type_ids" in path or "position" in path
    if tensor.ndim != 2 or not _is_integer(tensor) or tensor.dtype == torch.bool or mask:
        return ()
    with suppress(Exception):  # the user's tokenizer may fail: these numbers may not be its tokens
        return tuple(decoded(decode, row) for row in tensor[:_TEXTS])
    return ()
