"""Limits on gradients, applied before the optimizer gets them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

NormOfAll = Callable[[Tensor], Tensor]
"""From the norm of the gradients here to the norm of all ranks' gradients."""


class Clip(Protocol):
    """Limits gradients before the update."""

    def __call__(self, parameters: list[nn.Parameter], whole: NormOfAll | None = None, /) -> Tensor | None:
        """Limit the gradients, and return their norm before, if it is known."""


@dataclass(frozen=True)
class ClipByNorm:
    """Scale all gradients down together, and return their norm before. A norm that is not finite spoils
    them."""

    limit: float

    def __call__(self, parameters: list[nn.Parameter], whole: NormOfAll | None = None, /) -> Tensor:
        if whole is None:
            return nn.utils.clip_grad_norm_(parameters, self.limit)
        norm = whole(nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        nn.utils.clip_grads_with_norm_(parameters, self.limit, norm)
        return norm


@dataclass(frozen=True)
class ClipByValue:
    """Limit every entry of every gradient to [-limit, limit], infinities too."""

    limit: float

    def __call__(self, parameters: list[nn.Parameter], whole: NormOfAll | None = None, /) -> None:
        nn.utils.clip_grad_value_(parameters, self.limit)


def clips_of(norm: float | None, value: float | None) -> list[Clip]:
    """What limits the gradients: their norm, their values, or both.

    >>> [type(each).__name__ for each in clips_of(1.0, None)]
    ['ClipByNorm']
    """
    by_norm: list[Clip] = [] if norm is None else [ClipByNorm(norm)]
    return by_norm if value is None else [*by_norm, ClipByValue(value)]
