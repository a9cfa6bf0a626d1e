"""What the machine's processors and memory are doing. psutil is imported at the first reading."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import StepError, a_kind
from .base import Reading

REFRESH = 0.2
"""Seconds a CPU reading stands for, as in Burn: the counters tick 100 times a second, and a shorter
window measures the ticks."""


class CpuUse(Reading):
    """The share of all processors that was busy, in percent, at most five readings a second.

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
        """Start the clock at the first split; a reading that spans two splits is as good."""
        if self._since == float("-inf"):
            self._mark()

    def sample(self) -> float:
        """Compare the counters with those of the last reading.

        Counters of our own, since `psutil.cpu_percent` keeps them per process: any other caller
        would cut our window short.
        """
        if time.monotonic() - self._since < REFRESH:
            return self._last
        busy, total = self._busy, self._total
        self._mark()
        if self._total > total:
            self._last = 100.0 * (self._busy - busy) / (self._total - total)
        return self._last

    def _mark(self) -> None:
        import psutil

        times = psutil.cpu_times()
        # Linux counts the time of guests twice: it is part of `user` too.
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
        """Read it now."""
        import psutil

        return float(psutil.virtual_memory().used) * 1e-9


Sensors = Callable[[], Mapping[str, Sequence[Any]]]
"""As `psutil.sensors_temperatures`: by chip, readings with a temperature `current`."""

CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")
"""Linux's names of the sensors in processors: Intel, AMD, AMD by another driver, ARM."""


class CpuTemperature(Reading):
    """The hottest sensor of the processors, in degrees Celsius, at most five readings a second.

    Where the machine tells none (many virtual machines and containers, macOS, Windows) the values are
    NaN, and a warning of the logger "notebook_learner" says so once.

    Args:
        sensors: where to ask, by default `psutil.sensors_temperatures`.

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
        """Ask the sensors, which takes the kernel up to milliseconds, hence not more often."""
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

        # psutil has the function on Linux and FreeBSD only.
        sensors: Sensors = getattr(psutil, "sensors_temperatures", dict)
        return sensors()
