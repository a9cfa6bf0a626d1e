"""`.compile()`: the model's forward goes through torch.compile, its names and its class stay."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def compile_forward(model: nn.Module, options: dict[str, Any]) -> None:
    """As `model.compile(**options)`, which silently does nothing for a module whose forward is torch's
    own (nn.Sequential, nn.Linear): the compiler passes over torch's files. This one it does not."""
    model._compiled_call_impl = torch.compile(_call_of_its_own(model._call_impl), **options)


def _call_of_its_own(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a code object that no other has. The compiler counts per code object, and falls
    back to eager after eight models: as many as a cell that builds one is run again in an afternoon."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return types.FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", None, forward.__closure__
    )
