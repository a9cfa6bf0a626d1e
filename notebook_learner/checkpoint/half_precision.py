"""Half precision: checkpoints of half the size, to look at and to evaluate, not to go on training from.

Every tensor of float32 or float64 numbers becomes the first of float16 and bfloat16 that keeps each
finite number finite and each number that is not zero different from zero; where neither does, or where
there is only one number (Adam counts its steps in such tensors), it stays as it is. Integers, and with
them the states of random generators, stay as they are, and so do complex numbers and NumPy's arrays.

Read again, the tensors have 16 bits, and take the dtype of the model that they are loaded into. So such a
file becomes no more memory than any other: widened, it would be twice as much.
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
    """What was done to one tensor."""

    dtype: str
    """What it was before."""
    error: float
    """The largest relative error of its numbers: 0.0005 is one part in 2,000."""


def halved(tensor: Tensor) -> tuple[Tensor, Rounded] | None:
    """A tensor in half precision; None for one that is to stay as it is.

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
    """Tensors in half precision but those of the numbers `whole`, and what was done to which of them."""
    kept, done = [], {}
    for number, (tensor, name) in enumerate(zip(tensors, names, strict=True)):
        found = None if number in whole else halved(tensor)
        kept.append(tensor if found is None else found[0])
        if found is not None:
            done[name] = found[1]
    return kept, done


def lost(rounded: Mapping[str, Rounded]) -> str:
    """What half precision cost, in one line.

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
    """The largest relative error; None where a number became infinite or zero. In pieces: a whole
    comparison would take four times the tensor's memory."""
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
