"""Describe a batch: all its tensors, the classes of its targets, its text."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..renderer.text import one_line
from .statistics import Measurements, Statistics

_DEEPEST = 32
_MOST = 10_000
"""Objects visited in one value, at most: an object may refer to half of a program."""


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a nested value with its path, written as Python code.

    It searches lists, tuples, mappings, dataclasses and plain objects, each once.

    >>> import torch
    >>> [path for path, _ in tensors_in({"x": torch.ones(1), "y": [1, torch.ones(2)]})]
    ["['x']", "['y'][1]"]
    """
    if isinstance(value, Tensor):  # the output of most layers
        yield "", value
        return
    seen: set[int] = set()
    # A stack, not recursion: the user's batch may be nested deeper than Python's recursion limit.
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    while waiting and len(seen) < _MOST:
        path, one, depth = waiting.pop()
        if isinstance(one, Tensor):
            yield path, one
            continue
        if id(one) in seen or depth > _DEEPEST:
            continue
        children = _children(one)
        if children:
            seen.add(id(one))
            waiting += [(path + step, child, depth + 1) for step, child in reversed(children)]


def floating_in(value: Any) -> list[Tensor]:
    """Return the tensors of a value that can hold a NaN, in the order in which they are found.

    >>> import torch
    >>> len(floating_in((torch.ones(1), torch.ones(1, dtype=torch.long), {"h": torch.ones(2)})))
    2
    """
    found = (tensor for _, tensor in tensors_in(value))
    return [tensor for tensor in found if tensor.is_floating_point() or tensor.is_complex()]


def _children(value: Any) -> list[tuple[str, Any]]:
    if value is None or isinstance(value, (str, bytes, bytearray, int, float, complex, type, range)):
        return []
    if isinstance(value, Mapping):
        return [(f"[{_key(key)}]", child) for key, child in islice(value.items(), _MOST)]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", child) for name, child in zip(value._fields, value, strict=False)]
    if isinstance(value, Sequence):
        return [(f"[{at}]", child) for at, child in enumerate(islice(value, _MOST))]
    if is_dataclass(value):
        return [(f".{f.name}", getattr(value, f.name, None)) for f in fields(value)]
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict) or callable(value):  # a model or a function is not part of a batch
        return []
    return [(f".{name}", child) for name, child in held.items()]


def _key(key: Any) -> str:
    text = repr(key) if isinstance(key, (str, int, float, bool, tuple)) else f"<{type(key).__name__}>"
    return text if len(text) <= 60 else f"{text[:59]}…"


FIRST = 8
"""The number of images of a batch that are shown."""
_LARGEST, _GAP = 96, 2
_NOT_FINITE = (255, 0, 80, 255)

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """The first images of one tensor of the batch, side by side in one PNG."""

    path: str
    count: int
    width: int
    height: int
    png: bytes

    def __repr__(self) -> str:
        return f"Picture({self.path!r}, {self.count} images, {self.width} x {self.height} pixels)"

    @property
    def uri(self) -> str:
        """The picture as a data URL for an `<img>`."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode("ascii")


def is_like_images(tensor: Tensor) -> bool:
    """Whether a tensor has the shape and type of a batch of images: (N, 1 or 3, H, W), or (N, H, W).

    >>> is_like_images(torch.zeros(32, 3, 28, 28)), is_like_images(torch.zeros(32, 10))
    (True, False)
    """
    if not (tensor.is_floating_point() or tensor.dtype == torch.uint8) or tensor.layout is not torch.strided:
        return False
    if tensor.is_nested or tensor.is_meta or tensor.ndim not in (3, 4) or not tensor.numel():
        return False
    height, width = tensor.shape[-2:]
    # Without a channel it may also be a batch of sequences: only nearly square shapes count as images.
    slender = max(height, width) > (8 if tensor.ndim == 4 else 2) * min(height, width)
    channels = tensor.shape[1] if tensor.ndim == 4 else 1
    return channels in (1, 3) and min(height, width) >= 4 and max(height, width) <= 4096 and not slender


def picture(path: str, tensor: Tensor) -> Picture | None:
    """Return the first images of a tensor that looks like images; None for any other tensor."""
    if not is_like_images(tensor):
        return None
    pixels = _pixels_of(tensor, FIRST)
    strip = _side_by_side(pixels)
    return Picture(path, len(pixels), strip.shape[1], strip.shape[0], encode_png(strip))


def pictures_of(tensor: Tensor, count: int) -> list[bytes]:
    """The first images of a tensor as PNG files, all on one scale of grey; none of any other tensor.

    >>> [image[:4] for image in pictures_of(torch.zeros(32, 1, 8, 8), 2)], pictures_of(torch.zeros(32, 10), 2)
    ([b'\\x89PNG', b'\\x89PNG'], [])
    """
    return [encode_png(pixels) for pixels in _pixels_of(tensor, count)] if is_like_images(tensor) else []


def _pixels_of(tensor: Tensor, count: int) -> Pixels:
    images = tensor.detach()[:count]
    images = images if images.ndim == 4 else images[:, None]
    every = -(-max(images.shape[-2:]) // _LARGEST)
    return _pixels(images[..., ::every, ::every].to("cpu", torch.float32).numpy(), tensor.dtype)


def _pixels(images: npt.NDArray[np.float32], dtype: torch.dtype) -> Pixels:
    finite = np.isfinite(images)
    known = images[finite]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if dtype == torch.uint8:
        low, high = 0.0, 255.0
    elif low >= 0 and 0.5 < high <= 1:
        low, high = 0.0, 1.0
    shares = (np.where(finite, images, low) - low) / ((high - low) or 1.0)
    colours = np.broadcast_to(shares, (len(images), 3, *images.shape[2:])).transpose(0, 2, 3, 1)
    pixels = np.full((*colours.shape[:3], 4), 255, np.uint8)
    pixels[..., :3] = np.clip(255 * colours + 0.5, 0, 255)
    pixels[~finite.all(axis=1)] = _NOT_FINITE
    return pixels


def _side_by_side(pixels: Pixels) -> Pixels:
    count, height, width, _ = pixels.shape
    strip = np.zeros((height, count * (width + _GAP) - _GAP, 4), np.uint8)
    for at, image in enumerate(pixels):
        left = at * (width + _GAP)
        strip[:, left : left + width] = image
    return strip


def encode_png(pixels: Pixels) -> bytes:
    """Encode pixels of shape (height, width, 4) as a PNG file.

    >>> encode_png(np.zeros((1, 1, 4), np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 4 * width), np.uint8)  # the first byte of a line: no filter
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


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
