"""The report of `--dry`: the values that one step left, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..event.position import Position

_WIDTH = 60


@dataclass(frozen=True, repr=False)
class DryReport:
    """One step that was taken and taken back; `values` has its values by name."""

    position: Position
    values: Mapping[str, Any]

    def __repr__(self) -> str:
        loss = self.values.get("loss")
        told = f": loss {_number(loss)}" if _is_number(loss) else ""
        heading = f"a dry step to {self.position}{told}; nothing has changed"
        width = max((len(name) for name in self.values), default=0)
        lines = [f"  {name:<{width}}  {described(value)}" for name, value in self.values.items()]
        return "\n".join([heading, *lines, *self._warning()])

    def _warning(self) -> list[str]:
        broken = [
            name for name, value in self.values.items() if isinstance(value, Tensor) and not _finite(value)
        ]
        return [f"not finite: {', '.join(broken)}"] if broken else []


def described(value: Any) -> str:
    """A value in a few words: shape and type of a tensor, or the number itself."""
    if isinstance(value, Tensor):
        kind = f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        where = "" if value.device.type == "cpu" else f" {value.device}"
        return f"{kind}{where}" + (f"  {_number(value)}" if _is_number(value) else "")
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value) if len(repr(value)) <= _WIDTH else f"{repr(value)[: _WIDTH - 3]}..."
    if isinstance(value, (list, tuple, dict, set)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (
        isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    )


def _number(value: Any) -> str:
    number = float(value.detach() if isinstance(value, Tensor) else value)
    return f"{number:.6g}" if math.isfinite(number) else str(number)


def _finite(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())
