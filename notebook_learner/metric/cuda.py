"""What the GPUs are doing, in a line of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..errors import StepError, a_kind
from .base import TextMetric

NO_DEVICE = "no CUDA device"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What one GPU says of itself; None where it, or its driver, does not tell.

    Args:
        index: as torch counts devices.
        used: bytes in use, by all processes.
        total: bytes there are.
        use: the share of time that some kernel ran, in percent.
        watts: the power it draws.
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
    """Memory of each GPU this process uses; also use, power and temperature where `nvidia-ml-py` is
    installed (pip install 'notebook_learner[gpu]').

    >>> CudaMetric(lambda: [GpuReading(0, 3_000_000_000, 4_000_000_000, use=37)]).text()
    'GPU #0 - Memory 3.00/4.00 Gb - Usage 37 %'

    Args:
        read: another source of readings; by default torch is asked.
    """

    name = "Cuda"

    def __init__(self, read: Callable[[], Sequence[GpuReading]] | None = None) -> None:
        self._read = read or read_gpus

    def text(self) -> str:
        """Read it now."""
        told = self._read()
        if not isinstance(told, Sequence):
            raise StepError(f"{self.name}: its read() gave {a_kind(told)}; give a list of GpuReading")
        return " | ".join(map(str, told)) or NO_DEVICE


def read_gpus() -> list[GpuReading]:
    """Ask every GPU that this process uses."""
    if not torch.cuda.is_available():
        return []
    return [_reading(index) for index in _devices()]


def _devices() -> list[int]:
    # Asking a GPU for its memory creates a context there (about 500 MB): only those in use, then.
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
    """Ask NVML through torch, which maps CUDA_VISIBLE_DEVICES; None without the library or an answer."""
    try:
        return ask(index)
    except Exception:
        # Not narrower: NVML raises its own types (not supported under MIG, in some containers), which
        # exist only where the library does. A line of text must not end a training run.
        return None
