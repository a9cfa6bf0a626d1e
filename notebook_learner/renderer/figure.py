"""`plot`: the curves of a run as a figure. matplotlib is imported when the first one is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..event import MetricInfo, Split
from .curves import Axis, Chart, ChartSeries, Curve, training_axis
from .history_source import SPLITS, StepSource, metric_infos, plotted_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AUTO_SHARE = 0.03
"""The default share of a curve that a smoothed point averages over."""
AUTO_FROM = 120
"""From this number of points on, a curve is smoothed by default."""
MOST = 60
"""The charts that are drawn if no metrics are named. Matplotlib would draw 5,000 for many minutes, and the
picture would have more rows than an image can have."""


def plot(
    history: StepSource,
    metrics: Iterable[str] | str | None = None,
    *,
    smoothing: float | None = None,
    dark: bool = False,
    infos: Sequence[MetricInfo] | None = None,
) -> Figure:
    """Draw each metric over the training steps, training and validation in one picture.

    Training has a point for each step. Validation has a point for each epoch, at the step where it took
    place. A notebook displays the figure; `savefig` saves it.

    Args:
        history: what was measured.
        metrics: which metrics, in which order; default: all that are registered as numeric, at most 60.
        smoothing: how much of the curve each point of the smoothed line averages over, from 0 (no
            smoothing) to 1; default: a little, once there are many points.
        dark: light lines on a dark background.
        infos: units and directions; default: what the history knows.

    Raises:
        ValueError: a metric that the history does not have, or a smoothing out of range.
    """
    if smoothing is not None and not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be from 0 (none) to below 1, not {smoothing}")
    known = metric_infos(history, infos)
    names = _chosen(history, metrics, known)
    trained = history.steps("train")
    axis = training_axis(trained["epoch"], trained["step"])
    shown = names[:MOST] if metrics is None else names
    charts = [chart_of(history, name, axis, smoothing, known) for name in shown]

    from .drawing import draw

    left = len(names) - len(shown)
    note = (
        f"{len(shown)} of {len(names):,} metrics; name others: plot([{names[MOST]!r}, ...])" if left else ""
    )
    return draw([chart for chart in charts if chart.series], axis, dark, note)


def _chosen(
    history: StepSource, metrics: Iterable[str] | str | None, known: dict[tuple[str, str], MetricInfo]
) -> list[str]:
    if metrics is None:
        return list(dict.fromkeys(name for split in SPLITS for name in plotted_names(history, split, known)))
    if not isinstance(metrics, Iterable):
        raise TypeError(
            f"plot({metrics!r}): give the name of a metric, a list of names, or None for all of them"
        )
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    exist = list(dict.fromkeys(name for split in SPLITS for name in history.metrics(split)))
    missing = [name for name in names if name not in exist]
    if missing:
        have = ", ".join(repr(name) for name in exist) or "none yet"
        raise ValueError(f"there is no metric {', '.join(map(repr, missing))}; this history has {have}")
    return names


def chart_of(
    history: StepSource,
    name: str,
    axis: Axis,
    smoothing: float | None,
    known: dict[tuple[str, str], MetricInfo],
) -> Chart:
    """Return the chart of one metric: both splits, smoothed if they have many points."""
    info = known.get((name, "train")) or known.get((name, "valid"))
    series = [
        _series(history, name, split, axis, smoothing) for split in SPLITS if name in history.metrics(split)
    ]
    return Chart(
        name,
        info.unit if info else "",
        info.higher_is_better if info else None,
        tuple(one for one in series if not one.empty),
    )


def _series(history: StepSource, name: str, split: Split, axis: Axis, smoothing: float | None) -> ChartSeries:
    finals = np.asarray(history.epochs(name, split), dtype=np.float64)
    # Another thread may have ended an epoch between these two reads.
    numbers = [int(epoch) for epoch in history.epoch_numbers(split)]
    finals, numbers = finals[: len(numbers)], numbers[: len(finals)]
    final_x = np.array([_epoch_x(axis, epoch, split) for epoch in numbers], dtype=np.float64)
    if split == "valid":
        nothing = Curve.of(np.empty(0), np.empty(0))
        return ChartSeries(split, nothing, None, final_x, finals)
    raw = Curve.of(axis.steps, np.asarray(history.values(name, split)))
    return ChartSeries(split, raw, _smoothed(raw, smoothing), final_x, finals)


def _epoch_x(axis: Axis, epoch: int, split: Split) -> float:
    """The x of an epoch's value: the epoch's end for validation, its middle for a training mean."""
    if not axis.ends:
        return epoch  # a run that only validates has no training steps
    end = axis.ends.get(epoch, float("nan"))
    return end if split == "valid" else end - axis.lengths.get(epoch, 0.0) / 2


def _smoothed(raw: Curve, smoothing: float | None) -> Curve | None:
    if smoothing is not None:
        return raw.smooth(smoothing) if smoothing else None
    if len(raw) < AUTO_FROM:
        return None
    smooth = raw.smooth(AUTO_SHARE)
    # A schedule of learning rates has no noise: smoothing would only round its corners.
    return smooth if raw.travel > 3 * smooth.travel else None
