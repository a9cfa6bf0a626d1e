"""`.compile()`: compile the model's forward with torch.compile; its names and its class stay."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def compile_forward(model: nn.Module, options: dict[str, Any]) -> None:
    """Compile like `model.compile(**options)`, but also a module whose forward is torch's own (nn.Sequential,
    nn.Linear). There `model.compile` silently does nothing, as the compiler skips torch's files."""
    model._compiled_call_impl = torch.compile(_call_of_its_own(model._call_impl), **options)


def _call_of_its_own(call: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function with a code object of its own. The compiler counts per code object, and falls back to
    eager after eight models: a cell that builds a model may well run eight times."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return types.FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", None, forward.__closure__
    )
