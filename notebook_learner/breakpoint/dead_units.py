"""Stops the training when units of a layer have died."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import Measured, Moment

_RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardtanh, nn.Hardswish)


class DeadUnits(Measured):
    """Stop when more than a share of a layer's units are zero for every sample of a batch.

    It watches activation modules (ReLU and similar ones) through hooks. It does not see activations that are
    written as functions (`F.relu`), or those of a compiled model.

    Args:
        share: the share of a layer's units, between 0 and 1.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"DeadUnits({share!r}): give a share between 0 and 1, such as 0.5")
        self.share = share
        self._hooks: list[Any] = []
        self._shares: list[Tensor] = []

    def attach(self, model: nn.Module) -> None:
        self._hooks = [
            module.register_forward_hook(self._saw)
            for module in model.modules()
            if isinstance(module, _RECTIFIERS)
        ]

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._shares = [], []

    def measure(self, moment: Moment) -> Tensor | None:
        shares, self._shares = self._shares, []
        return torch.stack(shares).max() if shares else None

    def says(self, value: float) -> str:
        return f"{value:.0%} of a layer's units are zero for the whole batch" if value > self.share else ""

    def explain(self, batch: Any, run: Any, model: nn.Module) -> str:
        worst: list[tuple[float, str]] = []

        def saw(name: str) -> Any:
            return lambda module, given, output: worst.append((float(_dead_share(output)), name))

        hooks = [
            module.register_forward_hook(saw(name))
            for name, module in model.named_modules()
            if isinstance(module, _RECTIFIERS)
        ]
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
        return f"in {max(worst)[1]}" if worst else ""

    def _saw(self, module: nn.Module, given: Any, output: Any) -> None:
        if module.training and isinstance(output, Tensor) and output.ndim > 1:
            self._shares.append(_dead_share(output.detach()))

    def __repr__(self) -> str:
        return f"DeadUnits({self.share:g})"


def _dead_share(output: Tensor) -> Tensor:
    """The share of units that are zero for all samples. Units are channels. In (N, T, C), the shape that
    transformers have, the channels come last."""
    units = output.ndim - 1 if output.ndim == 3 else 1
    alive = output.movedim(units, 0).flatten(1).ne(0).any(dim=1)
    return 1 - alive.float().mean()
