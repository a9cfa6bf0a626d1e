"""Data for the tests on a GPU."""

from __future__ import annotations

from typing import Any

import torch

DEVICE = "cuda:0"


def batches(count: int, wrong: int | None = None) -> list[Any]:
    """So many batches on the host; the one with the number `wrong` has a NaN in it."""
    source = torch.Generator().manual_seed(0)
    made = [
        (torch.randn(32, 16, generator=source), torch.randint(0, 5, (32,), generator=source))
        for _ in range(count)
    ]
    if wrong is not None:
        made[wrong][0][3, 4] = float("nan")
    return made


def on_device(data: list[Any]) -> list[Any]:
    return [(x.to(DEVICE), y.to(DEVICE)) for x, y in data]
