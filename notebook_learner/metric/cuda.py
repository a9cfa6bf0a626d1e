"""The use of the GPUs, in a line of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..errors import StepError, a_kind
from .base import TextMetric

NO_DEVICE = "no CUDA device"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The readings of one GPU; None for each value that it, or its driver, does not report.

    Args:
        index: its number, as torch counts devices.
        used: the bytes in use, by all processes.
        total: all bytes.
        use: the share of time in which a kernel ran, in percent.
        watts: the power that it draws.
        celsius: its temperature.
    """

    index: int
    used: int
    total: int
    use: float | None = None
    watts: float | None = None
    celsius: float | None = None

    def __str__(self) -> str:
        parts = [f"GPU #{self.index} - Memory {self.used * 1e-9:.2f}/{self.total * 1e-9:.2f} Gb"]
        if self.use is not None:
            parts.append(f"Usage {self.use:.0f} %")
        if self.watts is not None:
            parts.append(f"Power {self.watts:.0f} W")
        if self.celsius is not None:
            parts.append(f"Temperature {self.celsius:.0f} °C")
        return " - ".join(parts)


class CudaMetric(TextMetric):
    """The memory of each GPU that this process uses; with `nvidia-ml-py`, also use, power and temperature.

    To install that: pip install 'notebook_learner[gpu]'.

    >>> CudaMetric(lambda: [GpuReading(0, 3_000_000_000, 4_000_000_000, use=37)]).text()
    'GPU #0 - Memory 3.00/4.00 Gb - Usage 37 %'

    Args:
        read: another source of readings; by default they come from torch.
    """

    name = "Cuda"

    def __init__(self, read: Callable[[], Sequence[GpuReading]] | None = None) -> None:
        self._read = read or read_gpus

    def text(self) -> str:
        """Return the current text."""
        told = self._read()
        if not isinstance(told, Sequence):
            raise StepError(f"{self.name}: its read() gave {a_kind(told)}; give a list of GpuReading")
        return " | ".join(map(str, told)) or NO_DEVICE


def read_gpus() -> list[GpuReading]:
    """Read every GPU that this process uses."""
    if not torch.cuda.is_available():
        return []
    return [_reading(index) for index in _devices()]


def _devices() -> list[int]:
    # A read of a GPU's memory creates a context there (about 500 MB), so only GPUs in use are read.
    used = [index for index in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(index)]
    return used or [torch.cuda.current_device()]


def _reading(index: int) -> GpuReading:
    free, total = torch.cuda.mem_get_info(index)
    milliwatts = _told(torch.cuda.power_draw, index)
    return GpuReading(
        index,
        total - free,
        total,
        use=_told(torch.cuda.utilization, index),
        watts=None if milliwatts is None else milliwatts / 1000,
        celsius=_told(torch.cuda.temperature, index),
    )


def _told(ask: Callable[[int], int], index: int) -> int | None:
    """Ask NVML through torch, which applies CUDA_VISIBLE_DEVICES; None without the library or an answer."""
    try:
        return ask(index)
    except Exception:
        # Every exception: NVML raises its own types (not supported under MIG, in some containers), which
        # exist only with the library. A line of text must not end a training run.
        return None
