"""Tensors as bytes and back: every dtype of torch, bit for bit, on the host, in row-major order."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from .durable import digest_of

DTYPES: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
"""The dtypes by their names in a file: "float32", "bfloat16", "float8_e4m3fn", ..."""

_QUANTIZED = {"qint8", "quint8", "qint32", "quint4x2", "quint2x4"}
_OF_NUMPY = {torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool}
"""Dtypes that NumPy knows, and that are neither quantized nor conjugate."""
_BYTES_ONLY = {dtype for name, dtype in DTYPES.items() if name not in _QUANTIZED and not dtype.is_complex}
"""Dtypes whose tensors are only their memory. A complex tensor may also be conjugate."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in a file.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is only its bytes: strided, on a real device, not quantized."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_meta
        and not tensor.is_nested
        and dtype_name(tensor.dtype) not in _QUANTIZED
    )


def is_ready(tensor: Tensor) -> bool:
    """Whether a tensor is plain contiguous host memory of a usual dtype, and can be used as it is. Nearly all
    tensors of a state are. The check takes half a microsecond."""
    return (
        tensor.is_cpu
        and tensor.dtype in _OF_NUMPY
        and not tensor.requires_grad
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_neg()
        and tensor.is_contiguous()
    )


def are_direct(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors are plain contiguous host memory, of dtypes without other flags.

    Each check goes over all tensors at once, in C functions of torch: a sixth of the time of a loop.
    """
    return (
        all(map(attrgetter("is_cpu"), tensors))
        and all(layout is torch.strided for layout in set(map(attrgetter("layout"), tensors)))
        and not any(map(attrgetter("is_nested"), tensors))
        and _BYTES_ONLY.issuperset(map(attrgetter("dtype"), tensors))
        and not any(map(Tensor.is_neg, tensors))
        and all(map(Tensor.is_contiguous, tensors))
    )


def are_apart(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors have memory and begin at different addresses: then no two are tied."""
    places = set(map(Tensor.data_ptr, tensors))
    return len(places) == len(tensors) and 0 not in places


def nbytes_of(dtype: torch.dtype, shape: Sequence[int]) -> int:
    """The size of a tensor in bytes."""
    return math.prod(shape) * dtype.itemsize


def on_host(tensor: Tensor) -> Tensor:
    """The tensor as plain contiguous memory of this machine; the same tensor if it is that already."""
    if is_ready(tensor):
        return tensor
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


_NOTHING = memoryview(bytearray())


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a plain contiguous host tensor: its own memory, not a copy. Writing to them writes
    to the tensor.

    >>> bytes_of(torch.tensor([1.0, 2.0])).hex()
    '0000803f00000040'
    """
    try:  # a third of the time of the general way, which matters with 2,000 tensors
        return tensor.numpy().data.cast("B")
    except (TypeError, RuntimeError):  # it is empty, NumPy lacks its dtype, or it requires gradients
        pass
    if not tensor.numel():
        return _NOTHING
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


class _AllMemory(ctypes.Array[ctypes.c_ubyte]):
    """All addresses as one array, of which tensors' memory is a slice."""

    _type_ = ctypes.c_ubyte
    _length_ = sys.maxsize
    owners: Sequence[Tensor]


def memories_of(tensors: Sequence[Tensor]) -> list[memoryview]:
    """`bytes_of` for many plain contiguous host tensors, in a quarter of the time: making a NumPy array of
    a small tensor takes longer than writing its bytes.

    Each view keeps all of the tensors alive. As with `Tensor.numpy`, it is void once a tensor is given
    other memory (`set_`, `.data = ...`, `resize_`).

    >>> one, two = memories_of([torch.tensor([1.0, 2.0]), torch.empty(0)])
    >>> one.hex(), two.nbytes
    ('0000803f00000040', 0)
    """
    whole = _AllMemory.from_address(0)
    whole.owners = tensors  # a view of an array holds the array
    memory = memoryview(whole).cast("B")
    starts, sizes = map(Tensor.data_ptr, tensors), map(attrgetter("nbytes"), tensors)
    return [  # empty tensors have no address, and neither have zeros for which torch keeps no memory
        memory[start : start + size] if start else bytes_of(tensor) if size else _NOTHING
        for start, size, tensor in zip(starts, sizes, tensors, strict=True)
    ]


def ordering_of(tensor: Tensor) -> list[int] | None:
    """The order of dimensions in memory if it is not row-major (channels last). A restored tensor should have
    the same layout, since kernels choose by layout. None for row-major tensors and for views."""
    if tensor.is_contiguous() or tensor.dim() < 2 or not tensor.numel():
        return None
    strides: tuple[int, ...] = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda d: (-strides[d], tensor.shape[d] == 1, d))
    return order if tensor.permute(order).is_contiguous() else None


def laid_out(tensor: Tensor, order: Sequence[int]) -> Tensor:
    """A row-major tensor, copied into another order of dimensions in memory."""
    back = sorted(range(len(order)), key=lambda place: order[place])
    return tensor.permute(*order).contiguous().permute(*back)


def identity_of(tensor: Tensor) -> tuple[object, ...]:
    """A key that is equal for two tensors exactly if they are the same memory, seen in the same way."""
    if not tensor.numel():
        return (id(tensor),)
    seen = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
    if tensor.dtype in _OF_NUMPY and tensor.is_cpu and not tensor.is_neg():
        return seen  # a complex tensor, which may be conjugate, is never of these dtypes
    return (*seen, tensor.device, tensor.is_conj(), tensor.is_neg())


def digest_of_tensor(tensor: Tensor) -> str:
    """A checksum of a tensor's type, shape and bytes.

    >>> digest_of_tensor(torch.zeros(2)) == digest_of_tensor(torch.zeros(2, 1))
    False
    """
    plain = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    whole = plain.cpu().contiguous().reshape(-1).view(torch.uint8)
    return digest_of(bytes_of(whole), str((tensor.dtype, tuple(tensor.shape))).encode())
