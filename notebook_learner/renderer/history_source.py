"""What renderers need from a history. The logger's `History` has it; any other class with it works too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from ..event import MetricInfo, Split

SPLITS: tuple[Split, Split] = ("train", "valid")
SPLIT_STYLES: dict[Split, str] = {"train": "cyan", "valid": "yellow"}
"""The colours in terminals: the figures' blue and orange, from the sixteen colours that themes adapt."""


class EpochSource(Protocol):
    """Final values, epoch by epoch."""

    def metrics(self, split: Split) -> Sequence[str]:
        """The numeric metrics of a split."""

    def epochs(self, name: str, split: Split) -> NDArray[Any]:
        """The final value of each finished epoch."""

    def epoch_numbers(self, split: Split) -> NDArray[Any]:
        """The numbers of the epochs in `epochs`."""


class StepSource(EpochSource, Protocol):
    """Final values, and the values of every step: the data of a plot."""

    def values(self, name: str, split: Split) -> NDArray[Any]:
        """One value for each step; NaN for a step without a value."""

    def steps(self, split: Split) -> NDArray[Any]:
        """The position of each value: the fields `epoch`, and `step` within it (from 1)."""


def metric_infos(history: object, infos: Sequence[MetricInfo] | None) -> dict[tuple[str, str], MetricInfo]:
    """Units and directions by (name, split), from the arguments or else from the history."""
    known = getattr(history, "infos", ()) if infos is None else infos
    if callable(known):
        known = known()
    return {(info.name, info.split): info for info in known}


def plotted_names(history: EpochSource, split: Split, infos: dict[tuple[str, str], MetricInfo]) -> list[str]:
    """The numeric metrics; all of the history's metrics if there is no information about them."""

    def wanted(name: str) -> bool:
        info = infos.get((name, split))
        return info is None or (info.plotted and info.kind == "numeric")

    return [name for name in history.metrics(split) if wanted(name)]
