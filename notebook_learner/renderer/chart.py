"""The data of a chart: one metric with its splits, without colours or layout."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..event import Split
from .curves import Curve, Floats


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """One split of one metric: its steps, and the final values at the ends of epochs."""

    split: Split
    raw: Curve
    smooth: Curve | None
    final_x: Floats
    finals: Floats

    @property
    def empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not len(self.raw) and not np.isfinite(self.finals).any()


@dataclass(frozen=True, slots=True)
class Chart:
    """One metric with its splits, ready to be drawn."""

    name: str
    unit: str
    higher_is_better: bool | None
    series: tuple[ChartSeries, ...]
