"""Torch's settings for a whole thread: whether gradients are recorded, and autocast.

`with torch.no_grad()` sets it at its start and restores it at its end, in Python. If a second interrupt
breaks off a step between the two, it stays set. Then every later step would find no gradient, or would use
the cached half-precision copies of weights that have changed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def ambient_kept_on_error(device: str) -> Iterator[None]:
    """Restore gradient recording and autocast if an exception leaves the block. Costs 3 us.

    Args:
        device: the kind of device that steps run on, as "cuda"; each kind has its own autocast.
    """
    gradients = torch.is_grad_enabled()
    caches = torch.is_autocast_cache_enabled()
    nesting = _autocast_nesting()
    autocast = [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", device)]
    try:
        yield
    except BaseException:
        torch.set_grad_enabled(gradients)
        for kind, (enabled, dtype) in zip(("cpu", device), autocast, strict=True):
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(caches)
        while _autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        raise


def _autocast_nesting() -> int:
    """How many `with torch.autocast` this thread is in. Only calls that change the number return it."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())
