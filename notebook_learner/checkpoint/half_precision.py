"""Half precision: checkpoints of half the size, for inspection and evaluation, not for further training.

Every float32 or float64 tensor becomes float16 if that keeps each finite number finite and each number that
is not zero different from zero; else it becomes bfloat16 if that does. If neither does, it stays as it is.
So does a tensor of one number (Adam counts its steps in such tensors). Integers (also the states of random
generators), complex numbers and NumPy arrays stay as they are, too.

The tensors are read as 16 bits, and take the dtype of the model that they are loaded into. So such a file
takes no more memory than any other; if the reader widened the tensors, it would take twice as much.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..store.tensors import DTYPES, dtype_name

ROUNDED = ("float32", "float64")
"""The dtypes that are rounded."""
HALVES = ("float16", "bfloat16")
"""What they are rounded to: the first has 11 bits of precision, the second 8 and the range of float32."""
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class Rounded:
    """How one tensor was rounded."""

    dtype: str
    """Its dtype before."""
    error: float
    """The largest relative error of its numbers: 0.0005 is one part in 2,000."""


def halved(tensor: Tensor) -> tuple[Tensor, Rounded] | None:
    """Round a tensor to half precision; None if it must stay as it is.

    >>> value, rounded = halved(torch.tensor([1.0, 0.1]))
    >>> value.dtype, f"{rounded.error:.5f}"
    (torch.float16, '0.00024')
    >>> halved(torch.tensor([1e5, 1e-8]))[0].dtype
    torch.bfloat16
    """
    name = dtype_name(tensor.dtype)
    if name not in ROUNDED or tensor.numel() < 2:
        return None
    for half in HALVES:
        rounded = tensor.to(DTYPES[half])
        error = _error(tensor, rounded)
        if error is not None:
            return rounded, Rounded(name, error)
    return None


def halved_all(
    tensors: Sequence[Tensor], names: Sequence[str], whole: Collection[int] = ()
) -> tuple[list[Tensor], dict[str, Rounded]]:
    """Round all tensors except those with the numbers `whole`; return them, and how each was rounded."""
    kept, done = [], {}
    for number, (tensor, name) in enumerate(zip(tensors, names, strict=True)):
        found = None if number in whole else halved(tensor)
        kept.append(tensor if found is None else found[0])
        if found is not None:
            done[name] = found[1]
    return kept, done


def lost(rounded: Mapping[str, Rounded]) -> str:
    """Say in one line what half precision has lost.

    >>> lost({"weight": Rounded("float32", 0.00024), "bias": Rounded("float32", 0.0)})
    '2 tensors in half precision; the largest relative error, 0.024 %, is in weight'
    """
    if not rounded:
        return "nothing was rounded"
    worst = max(rounded, key=lambda name: rounded[name].error)
    error = f"{100 * rounded[worst].error:.2g} %"
    if len(rounded) == 1:
        return f"1 tensor in half precision, {worst}; its largest relative error is {error}"
    return f"{len(rounded)} tensors in half precision; the largest relative error, {error}, is in {worst}"


def _error(before: Tensor, after: Tensor) -> float | None:
    """The largest relative error; None if a number became infinite or zero. It is computed in pieces: a
    comparison in one piece would take four times the tensor's memory."""
    worst = 0.0
    flat, rounded = before.reshape(-1), after.reshape(-1)
    for start in range(0, flat.numel(), _PIECE):
        old, new = flat[start : start + _PIECE], rounded[start : start + _PIECE]
        again = new.to(old.dtype)
        counted = torch.isfinite(old) & (old != 0)
        if bool((counted & ((again == 0) | torch.isinf(again))).any()):
            return None
        error = ((again - old) / old).abs_()
        worst = max(worst, float(error.where(counted, 0.0).max()))
    return worst
