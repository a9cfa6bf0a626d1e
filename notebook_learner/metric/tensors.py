"""What metrics need of tensors: shapes that fit together, exact sums, and the dimension of the classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Size, Tensor

from ..errors import OutputError
from .base import Floats, Input, Ratio, Scalar

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


class RightAnswers(Ratio):
    """The share of right answers in percent. Subclasses say which answers are right, in `hits`.

    `output` holds a score per class and `targets` class indices. The classes are in dimension 1, as
    `cross_entropy` needs them, or in the last one. The shapes show which; if both fit, `class_dim` decides.
    Targets equal to `pad_token` are not counted. Without a `pad_token`, those equal to the output's
    `ignore_index` are not counted, if it has one.
    """

    unit = "%"
    higher_is_better = True
    needs = ("output", "targets")
    scale: ClassVar[float] = 100.0

    def __init__(
        self, pad_token: int | None = None, class_dim: int | None = None, *, input: Input | None = None
    ) -> None:
        super().__init__(input=input)
        self.pad_token = pad_token
        self.class_dim = class_dim
        self._shapes: tuple[Size, Size] | None = None
        self._dim = 1
        self._pad = pad_token
        self._count: Callable[[Tensor], Tensor] = torch.sum

    def hits(self, output: Tensor, targets: Tensor, dim: int) -> Tensor:
        """Return which answers are right: booleans in the shape of `targets`."""
        raise NotImplementedError(f"{type(self).__name__} must define hits(output, targets, dim)")

    def look(self, output: Tensor, targets: Tensor) -> int:
        """Find the class dimension, or raise. It runs when the shapes change, not at every step."""
        return class_dimension(self.name, output, targets, self.class_dim)

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Count the right answers on the device, without a wait for the result."""
        output, targets = item.output, item.targets
        if (output.shape, targets.shape) != self._shapes:
            self._remember(output, targets, item)
        right = self.hits(output, targets, self._dim)
        if self._pad is None:
            return self._count(right), targets.numel()
        real = targets != self._pad
        return self._count(right & real), self._count(real)

    def _remember(self, output: Tensor, targets: Tensor, item: Any) -> None:
        self._dim = self.look(output, targets)
        self._pad = padding(self.pad_token, item)
        # 3.3 us instead of 4.3 for 32 booleans on the CPU; on a GPU it starts one kernel more.
        self._count = torch.count_nonzero if output.is_cpu else torch.sum
        self._shapes = (output.shape, targets.shape)


def padding(pad_token: int | None, item: Any) -> int | None:
    """The token that is not counted: the metric's own one, or the output's.

    >>> from types import SimpleNamespace
    >>> padding(None, SimpleNamespace(ignore_index=-100)), padding(0, SimpleNamespace(ignore_index=-100))
    (-100, 0)
    """
    return getattr(item, "ignore_index", None) if pad_token is None else pad_token


def class_dimension(metric: str, output: Tensor, targets: Tensor, wanted: int | None) -> int:
    """Return the dimension of `output` that `targets` lacks, or raise an error that says what to do."""
    fits = [dim for dim in _candidates(output, wanted) if _without(output.shape, dim) == targets.shape]
    if len(fits) == 1 and output.shape[fits[0]] > 1:
        return fits[0]
    given = f"{metric} got `output` of shape {list(output.shape)} and `targets` of {list(targets.shape)}"
    raise OutputError(f"{given}: {_remedy(output, targets, fits, wanted)}")


def _candidates(output: Tensor, wanted: int | None) -> list[int]:
    last = output.ndim - 1
    if wanted is not None:
        dim = wanted % output.ndim if -output.ndim <= wanted <= last else None
        return [] if dim is None else [dim]
    return sorted({1, last}) if last >= 1 else []


def _without(shape: Size, dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _remedy(output: Tensor, targets: Tensor, fits: list[int], wanted: int | None) -> str:
    if len(fits) > 1:
        return f"the classes can be in dimension 1 or {fits[1]}; say which with class_dim=1 or class_dim=-1"
    if output.numel() == targets.numel():
        return (
            "one score per target is a binary (or multi-label) output, which needs a threshold: "
            "Accuracy(threshold=0.0) for logits, Accuracy(threshold=0.5) for probabilities. "
            "If `targets` are class probabilities, give their argmax(1) as `targets` instead"
        )
    where = "in dimension 1 (or the last)" if wanted is None else f"in dimension {wanted}"
    return (
        f"`targets` must be class indices in the shape of `output` without its classes, which are {where}; "
        "reshape them in the step"
    )


Place = tuple[int, int]
_NUMBERS = {int, float, bool}


def to_host(lists: Sequence[Sequence[Scalar]]) -> list[Floats]:
    """Return each list as an array, with one transfer per device for all lists together.

    >>> [array.tolist() for array in to_host([[torch.tensor(True), 2], [0.5]])]
    [[1.0, 2.0], [0.5]]
    """
    arrays = [np.empty(0)] * len(lists)
    waiting: dict[torch.device, tuple[list[Place], list[Tensor]]] = {}
    for row, scalars in enumerate(lists):
        if set(map(type, scalars)) <= _NUMBERS:
            arrays[row] = np.array(scalars, dtype=np.float64)
            continue
        found = []
        for column, scalar in enumerate(scalars):
            if not isinstance(scalar, Tensor):
                found.append(float(scalar))
            elif scalar.is_cpu:
                # On the CPU an item() per tensor is cheaper than a stack: 19 us for 160 instead of 38.
                found.append(scalar.item())
            else:
                found.append(0.0)
                places, tensors = waiting.setdefault(scalar.device, ([], []))
                places.append((row, column))
                tensors.append(scalar)
        arrays[row] = np.array(found, dtype=np.float64)
    for places, tensors in waiting.values():
        for (row, column), number in zip(places, fetch(tensors), strict=True):
            arrays[row][column] = number
    return arrays


def bring(lists: Sequence[list[Any]]) -> None:
    """Put numbers in the place of the lists' tensors on devices, with one transfer per device.

    >>> here = [torch.tensor(2), 3.0]
    >>> bring([here])
    >>> here
    [tensor(2), 3.0]
    """
    waiting: dict[torch.device, list[tuple[list[Any], int]]] = {}
    for scalars in lists:
        for place, scalar in enumerate(scalars):
            if isinstance(scalar, Tensor) and not scalar.is_cpu and scalar.numel() == 1:
                waiting.setdefault(scalar.device, []).append((scalars, place))
    for places in waiting.values():
        numbers = fetch([scalars[place] for scalars, place in places])
        for (scalars, place), number in zip(places, numbers, strict=True):
            scalars[place] = number


def alike(lists: Sequence[Sequence[Scalar]]) -> list[int]:
    """For each list the first one with the same numbers: most metrics weigh by samples. No device is read.

    >>> alike([[32, 32], [32, 32], [7, 32], [torch.tensor(32)]])
    [0, 0, 2, 3]
    """
    firsts, known = [], -1
    for at, scalars in enumerate(lists):
        plain = set(map(type, scalars)) <= _NUMBERS
        if not plain or known < 0 or lists[known] != scalars:
            firsts.append(at)
            known = at if plain else known
        else:
            firsts.append(known)
    return firsts


def fetch(tensors: Sequence[Tensor]) -> list[float]:
    """Read scalars of one device in one transfer, which waits for the device once."""
    by_type: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        by_type.setdefault(tensor.dtype, []).append(place)
    # Large elements first, so that each type begins at an address that it allows.
    kinds = sorted(by_type.values(), key=lambda places: -tensors[places[0]].element_size())
    stacks = [torch.stack([tensors[place].detach().reshape(()) for place in places]) for places in kinds]
    if len(stacks) == 1:
        only: list[float] = stacks[0].cpu().tolist()
        return only
    packed = torch.cat([stack.view(torch.uint8) for stack in stacks]).cpu()
    numbers = [0.0] * len(tensors)
    for places, stack, part in zip(
        kinds, stacks, torch.split(packed, [stack.nbytes for stack in stacks]), strict=True
    ):
        for place, number in zip(places, part.view(stack.dtype).tolist(), strict=True):
            numbers[place] = number
    return numbers
