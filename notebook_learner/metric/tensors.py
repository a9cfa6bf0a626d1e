"""What metrics need of tensors: shapes that fit together, and sums that lose no digits."""

from __future__ import annotations

import torch
from torch import Size, Tensor

from ..errors import OutputError

HALVES = (torch.bfloat16, torch.float16)
"""Types that are too coarse for sums: bf16 has 3 digits."""


def exact_dtype(device: torch.device) -> torch.dtype:
    """The widest float of the device: Apple's GPUs have no double.

    >>> exact_dtype(torch.device("cpu"))
    torch.float64
    """
    return torch.float32 if device.type == "mps" else torch.float64


def widened(tensor: Tensor) -> Tensor:
    """Numbers of half precision as float32, others unchanged: arithmetic in bf16 keeps 3 digits.

    >>> widened(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return tensor.float() if tensor.dtype in HALVES or not tensor.is_floating_point() else tensor


class Alike:
    """Brings an output and its targets to one shape; they may differ only by dimensions of size 1.

    An output of shape [32, 1] and targets of [32] would otherwise be 1024 pairs.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._seen: tuple[Size, Size] | None = None

    def __call__(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the output in the shape of the targets; shapes are checked only if they have changed."""
        if output.shape == targets.shape:
            return output
        if (output.shape, targets.shape) != self._seen:
            require_alike(self._metric, output, targets)
            self._seen = (output.shape, targets.shape)
        return output.reshape(targets.shape)


def require_alike(metric: str, output: Tensor, targets: Tensor) -> None:
    """Raise if an output and its targets do not form pairs."""
    if _squeezed(output.shape) != _squeezed(targets.shape):
        raise OutputError(
            f"{metric} got `output` of shape {list(output.shape)} and `targets` of {list(targets.shape)}: it "
            "compares them number by number, so they need the same shape; reshape them in the step"
        )


def _squeezed(shape: Size) -> list[int]:
    return [size for size in shape if size != 1]
