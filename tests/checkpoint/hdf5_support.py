"""HDF5 files in memory, read back by us and by h5py."""

import io
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from notebook_learner.checkpoint.hdf5 import Hdf5Recorder
from notebook_learner.checkpoint.recorder import Decoded, Encoded, Recorder
from notebook_learner.store import durable
from notebook_learner.store.tensors import bytes_of

EXACT = [
    Hdf5Recorder(),
    Hdf5Recorder(compression="gzip"),
    Hdf5Recorder(compression="zstd"),
]
HEADER = struct.Struct("<8sIIQQQ16s")


def data_of(encoded: Encoded) -> bytes:
    data = b"".join(bytes(piece) for piece in encoded.pieces)
    assert len(data) == encoded.size
    return data


@contextmanager
def reading(data: bytes, folder: Path) -> Iterator[durable.Reader]:
    path = folder / "model-1.h5"
    path.write_bytes(data)
    with durable.opened(path) as file:
        yield file


def decoded(data: bytes, folder: Path, recorder: Recorder | None = None) -> Decoded:
    with reading(data, folder) as file:
        return (recorder or Hdf5Recorder()).decode(file)


def opened_by_h5py(data: bytes) -> h5py.File:
    return h5py.File(io.BytesIO(data), "r")


def any_bits(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    size = math.prod(shape) * dtype.itemsize
    raw = torch.from_numpy(np.random.RandomState(seed).randint(0, 256, max(1, size), dtype=np.uint8))
    if dtype == torch.bool:
        raw &= 1
    return raw[:size].view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def same(left: Any, right: Any) -> bool:
    """Equal in values, types, dtypes and bits."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Tensor):
        bits = bytes_of(left.detach().contiguous()) == bytes_of(right.detach().contiguous())
        return left.dtype == right.dtype and left.shape == right.shape and bits
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)
    return bool(left == right)


def compressible(size: int) -> Tensor:
    """Numbers that shrink, but not below half: a reader believes no more."""
    return torch.from_numpy(np.random.RandomState(0).randint(0, 1 << 40, size))
