"""Small pictures of a batch of images, as PNG."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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
    images = tensor.detach()[:FIRST]
    images = images if images.ndim == 4 else images[:, None]
    every = -(-max(images.shape[-2:]) // _LARGEST)
    pixels = _pixels(images[..., ::every, ::every].to("cpu", torch.float32).numpy(), tensor.dtype)
    strip = _side_by_side(pixels)
    return Picture(path, len(pixels), strip.shape[1], strip.shape[0], encode_png(strip))


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
