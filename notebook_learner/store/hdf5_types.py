"""The HDF5 type for each dtype of torch, so that every reader of HDF5 shows right values.

A dtype without an HDF5 type (float8, sub-byte integers, bits) is stored as its bytes, with its name in the
attribute `torch_dtype`. HDF5 could describe float8_e5m2, but one rule for all of them is simpler. It cannot
describe float8_e4m3fn: its 448 would be read as nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import hdf5_library
from .tensors import DTYPES, dtype_name

_PREDEFINED = {
    "float16": "IEEE_F16LE",
    "float32": "IEEE_F32LE",
    "float64": "IEEE_F64LE",
    "int8": "STD_I8LE",
    "int16": "STD_I16LE",
    "int32": "STD_I32LE",
    "int64": "STD_I64LE",
    "uint8": "STD_U8LE",
    "uint16": "STD_U16LE",
    "uint32": "STD_U32LE",
    "uint64": "STD_U64LE",
}
_MADE = ("bool", "bfloat16", "complex32", "complex64", "complex128")


def is_described(dtype: torch.dtype) -> bool:
    """Whether HDF5 has a type for a dtype.

    >>> is_described(torch.bfloat16), is_described(torch.float8_e4m3fn)
    (True, False)
    """
    name = dtype_name(dtype)
    return name in _PREDEFINED or name in _MADE


def stored_shape(dtype: torch.dtype, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the dataset; the shape of the bytes if a dtype has no HDF5 type.

    >>> stored_shape(torch.float32, (2, 3)), stored_shape(torch.bits16, (2, 3)), stored_shape(torch.bits8, ())
    ((2, 3), (2, 6), (1,))
    """
    if is_described(dtype):
        return tuple(shape)
    return (*shape[:-1], shape[-1] * dtype.itemsize) if shape else (dtype.itemsize,)


def type_of(dtype: torch.dtype) -> Any:
    """The HDF5 type of a dtype: h5py's own for bool and complex numbers."""
    import numpy as np

    h5t = hdf5_library.load().h5t

    name = dtype_name(dtype)
    if not is_described(dtype):
        return h5t.STD_U8LE
    if name in _PREDEFINED:
        return getattr(h5t, _PREDEFINED[name])
    if name == "bool":
        return h5t.py_create(np.dtype(bool), logical=True)
    if name == "bfloat16":
        return _bfloat16()
    part = {"complex32": h5t.IEEE_F16LE, "complex64": h5t.IEEE_F32LE, "complex128": h5t.IEEE_F64LE}[name]
    made = h5t.create(h5t.COMPOUND, 2 * part.get_size())
    made.insert(b"r", 0, part)
    made.insert(b"i", part.get_size(), part)
    return made


def _bfloat16() -> Any:
    """HDF5 describes any float by its bits. Every version reads this one correctly."""
    h5t = hdf5_library.load().h5t

    made = h5t.IEEE_F16LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_ebias(127)
    return made


KNOWN = {name: dtype for name, dtype in DTYPES.items() if not name.startswith("q")}
"""The dtypes a file may name: all but the quantized ones, which are stored as integers and a scale."""
