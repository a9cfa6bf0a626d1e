"""What the machine tells: the processor's use, memory and temperature, and those of NVIDIA GPUs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import StepError, a_kind
from .base import Reading, TextMetric

REFRESH = 0.2
"""Seconds of a CPU reading, as in Burn. The counters tick 100 times a second; a shorter window would measure
the ticks."""


class CpuUse(Reading):
    """The share of all processors' time that was busy, in percent, with at most five readings a second.

    The first 0.2 s of a run have no reading yet (NaN).
    """

    name = "CPU Usage"
    unit = "%"
    higher_is_better = False

    def __init__(self) -> None:
        self._since = float("-inf")
        self._busy = self._total = float("nan")
        self._last = float("nan")

    def reset(self) -> None:
        """Start the clock at the first split; a reading across two splits is equally good."""
        if self._since == float("-inf"):
            self._mark()

    def sample(self) -> float:
        """Compare the counters with those of the last reading.

        It keeps its own counters. `psutil.cpu_percent` keeps them per process, so any other caller would make
        this window shorter.
        """
        if time.monotonic() - self._since < REFRESH:
            return self._last
        busy, total = self._busy, self._total
        self._mark()
        if self._total > total:
            share = (self._busy - busy) / (self._total - total)
            self._last = 100.0 * min(max(share, 0.0), 1.0)  # the counters may seem to go back by a rounding
        return self._last

    def _mark(self) -> None:
        import psutil

        times = psutil.cpu_times()
        # Linux counts the time of guests twice: it is part of `user`, too.
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        self._total = sum(times) - guests
        self._busy = self._total - times.idle - getattr(times, "iowait", 0.0)
        self._since = time.monotonic()


class CpuMemory(Reading):
    """The machine's memory in use, in Gb (1e9 bytes)."""

    name = "CPU Memory"
    unit = "Gb"
    higher_is_better = False

    def sample(self) -> float:
        """Return the current value."""
        import psutil

        return float(psutil.virtual_memory().used) * 1e-9


Sensors = Callable[[], Mapping[str, Sequence[Any]]]
"""Like `psutil.sensors_temperatures`: for each chip, readings with a temperature `current`."""

CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")
"""Linux's names of the sensors in processors: Intel, AMD, AMD by another driver, ARM."""


class CpuTemperature(Reading):
    """The temperature of the hottest processor sensor, in degrees Celsius, with at most five readings a
    second.

    If the machine reports none (many virtual machines and containers, macOS, Windows), the values are NaN,
    and the logger "notebook_learner" warns once.

    Args:
        sensors: the function that reads them, by default `psutil.sensors_temperatures`.

    >>> CpuTemperature().unit
    '°C'
    """

    name = "CPU Temperature"
    unit = "°C"
    higher_is_better = False

    def __init__(self, sensors: Sensors | None = None) -> None:
        super().__init__()
        self._sensors = sensors
        self._since = float("-inf")
        self._last = float("nan")
        self._told = False

    def sample(self) -> float:
        """Read the sensors; not more often, because the kernel takes up to milliseconds for it."""
        if time.monotonic() - self._since >= REFRESH:
            self._since = time.monotonic()
            self._last = self._read()
        return self._last

    def _read(self) -> float:
        chips = self._ask()
        found = [reading.current for chip in CPU_CHIPS for reading in chips.get(chip, ())]
        known = [float(current) for current in found if current is not None]
        if known:
            return max(known)
        if not self._told:
            self._told = True
            logging.getLogger("notebook_learner").warning(
                "CPU Temperature: this machine tells no temperature of its processors (its sensors: %s); the "
                "values are NaN",
                ", ".join(chips) or "none",
            )
        return float("nan")

    def _ask(self) -> Mapping[str, Sequence[Any]]:
        if self._sensors is not None:
            told = self._sensors()
            if not isinstance(told, Mapping):
                raise StepError(
                    f"{self.name}: its sensors() gave {a_kind(told)}; give a dict of each chip's readings, "
                    "as psutil.sensors_temperatures() does"
                )
            return told
        import psutil

        # psutil has the function only on Linux and FreeBSD.
        sensors: Sensors = getattr(psutil, "sensors_temperatures", dict)
        return sensors()


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
