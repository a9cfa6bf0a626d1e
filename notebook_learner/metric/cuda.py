"""What the GPUs are doing, in a line of text."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .base import TextMetric

NO_DEVICE = "no CUDA device"


class CudaMetric(TextMetric):
    """Memory of each GPU this process uses; also use and power where `nvidia-ml-py` is installed.

    >>> CudaMetric().name
    'Cuda'
    """

    name = "Cuda"

    def text(self) -> str:
        """Read it now."""
        if not torch.cuda.is_available():
            return NO_DEVICE
        return " | ".join(_describe(index) for index in _devices())


def _devices() -> list[int]:
    # Asking a GPU for its memory creates a context there (about 500 MB): only those in use, then.
    used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
    return used or [torch.cuda.current_device()]


def _describe(index: int) -> str:
    free, total = torch.cuda.mem_get_info(index)
    parts = [f"GPU #{index} - Memory {(total - free) * 1e-9:.2f}/{total * 1e-9:.2f} Gb"]
    use = _told(torch.cuda.utilization, index)
    if use is not None:
        parts.append(f"Usage {use} %")
    milliwatts = _told(torch.cuda.power_draw, index)
    if milliwatts is not None:
        parts.append(f"Power {milliwatts / 1000:.0f} W")
    return " - ".join(parts)


def _told(ask: Callable[[int], int], index: int) -> int | None:
    """Ask NVML through torch, which maps CUDA_VISIBLE_DEVICES; None without the library or an answer."""
    try:
        return ask(index)
    except Exception:
        # Not narrower: NVML raises its own types (not supported under MIG, in some containers), which
        # exist only where the library does. A line of text must not end a training run.
        return None
