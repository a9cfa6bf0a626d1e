"""What renderers ask of a history. The logger's `History` fits, and so does anything else that answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from ..event import MetricInfo, Split

SPLITS: tuple[Split, Split] = ("train", "valid")
SPLIT_STYLES: dict[Split, str] = {"train": "cyan", "valid": "yellow"}
"""In terminals: the blue and orange of the figures, out of the sixteen colours that themes adapt."""


class EpochSource(Protocol):
    """Final values, epoch by epoch."""

    def metrics(self, split: Split) -> Sequence[str]:
        """The numeric metrics of a split."""

    def epochs(self, name: str, split: Split) -> NDArray[Any]:
        """The final value of each finished epoch."""

    def epoch_numbers(self, split: Split) -> NDArray[Any]:
        """The epochs that `epochs` speaks of."""


class StepSource(EpochSource, Protocol):
    """Values of every step as well: what a plot draws."""

    def values(self, name: str, split: Split) -> NDArray[Any]:
        """One value a step, NaN where the step has none."""

    def steps(self, split: Split) -> NDArray[Any]:
        """Where each value belongs: the fields `epoch`, and `step` within it (from 1)."""


def metric_infos(history: object, infos: Sequence[MetricInfo] | None) -> dict[tuple[str, str], MetricInfo]:
    """Units and directions by (name, split): those given, or those the history knows itself."""
    known = getattr(history, "infos", ()) if infos is None else infos
    if callable(known):
        known = known()
    return {(info.name, info.split): info for info in known}


def plotted_names(history: EpochSource, split: Split, infos: dict[tuple[str, str], MetricInfo]) -> list[str]:
    """The metrics registered as numeric; all of the history's where nothing is known about them."""

    def wanted(name: str) -> bool:
        info = infos.get((name, split))
        return info is None or (info.plotted and info.kind == "numeric")

    return [name for name in history.metrics(split) if wanted(name)]
