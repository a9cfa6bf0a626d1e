"""An exponential moving average of a model's weights, for `ema()`."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class MovingAverage(AveragedModel):
    """torch's average, to the bit, without a wait. torch copies the count of updates to the device for each
    type of numbers, and waits for the device each time; an exponential average does not use the count."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        super().__init__(model, multi_avg_fn=average, use_buffers=True)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Include the weights after one more update; the first ones are copied."""
        first = int(self.n_averaged) == 0
        alike: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
        live = chain(model.parameters(), model.buffers())
        for mine, theirs in zip(chain(self.module.parameters(), self.module.buffers()), live, strict=True):
            means, values = alike.setdefault((mine.device, mine.dtype), ([], []))
            means.append(mine.detach())
            values.append(theirs.detach().to(mine.device))
        for means, values in alike.values():
            if first:
                torch._foreach_copy_(means, values)
            else:
                self.multi_avg_fn(means, values, self.n_averaged)  # type: ignore[misc]
        self.n_averaged += 1
