"""Draw the figure: matplotlib's `Figure` with the Agg canvas, because pyplot keeps every figure alive."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from .curves import Axis, Chart, ChartSeries, limits, spread_ticks
from .text import number, one_line

MANY_EPOCHS = 25
"""From this number of epochs on, the marks at the epochs would touch each other."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of Okabe and Ito, which colour-blind people can distinguish."""

    paper: str
    ink: str
    faint: str
    grid: str
    train: str
    valid: str


LIGHT = Palette("#ffffff", "#1f2328", "#656d76", "#e6e8eb", "#0072b2", "#d55e00")
DARK = Palette("#111418", "#e6e8eb", "#9aa3ad", "#2a3038", "#56b4e9", "#f0a030")


class NotebookFigure(Figure):
    """A figure that a notebook shows without the inline backend."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a character that the font lacks must not cause a failure
            self.savefig(buffer, format="png", dpi=2 * self.dpi, facecolor=self.get_facecolor())
        # Twice the pixels at the same size: sharp on fine screens.
        width, height = self.get_size_inches() * self.dpi
        return buffer.getvalue(), {"width": round(width), "height": round(height)}


def draw(charts: list[Chart], axis: Axis, dark: bool, note: str = "") -> Figure:
    """Draw one panel for each metric, and a note above them."""
    palette = DARK if dark else LIGHT
    columns = _columns(len(charts))
    rows = max(math.ceil(len(charts) / columns), 1)
    size = {1: (7.2, 3.6), 2: (11.0, 3.5 * rows), 3: (13.5, 3.3 * rows)}[columns]
    room = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.03, hspace=0.05)
    figure = NotebookFigure(figsize=size, dpi=80, layout=room, facecolor=palette.paper)
    FigureCanvasAgg(figure)
    if not charts:
        figure.text(0.5, 0.5, "nothing to plot yet", color=palette.faint, ha="center", va="center", size=13)
    if note:
        title = figure.suptitle(one_line(note), color=palette.faint, size=11, x=0.01, ha="left")
        title.set_parse_math(False)
    for index, chart in enumerate(charts):
        panel(figure.add_subplot(rows, columns, index + 1), chart, axis, palette, labels=8 - columns)
    return figure


def _columns(charts: int) -> int:
    return 1 if charts <= 1 else 2 if charts in (2, 4) else 3


def panel(ax: Axes, chart: Chart, axis: Axis, palette: Palette, labels: int) -> None:
    """Draw one chart, with at most `labels` labels on its axis."""
    _dress(ax, palette)
    handles = [_draw_series(ax, series, chart, palette) for series in chart.series]
    _steps_axis(ax, axis, palette, labels)
    _values_axis(ax, chart, palette)
    ax.set_title(
        one_line(chart.name), loc="left", color=palette.ink, size=12, weight="bold", pad=24, parse_math=False
    )
    legend = ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.005),
        ncols=2,
        frameon=False,
        labelcolor=palette.ink,
        fontsize=9,
        handlelength=2.6,
        columnspacing=1.6,
        borderaxespad=0,
        borderpad=0.2,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _dress(ax: Axes, palette: Palette) -> None:
    ax.set_facecolor(palette.paper)
    ax.grid(True, axis="y", color=palette.grid, linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(colors=palette.faint, labelsize=9, length=0)
    for side, spine in ax.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(palette.grid)


def _draw_series(ax: Axes, series: ChartSeries, chart: Chart, palette: Palette) -> Line2D:
    """Draw a split, and return its line for the legend."""
    train = series.split == "train"
    style: dict[str, Any] = (
        {"color": palette.train, "linestyle": "-", "marker": "o"}
        if train
        else {"color": palette.valid, "linestyle": (0, (4, 1.6)), "marker": "s"}
    )
    if train:
        _draw_curve(ax, series, palette)
    x, y = series.final_x, np.where(np.isfinite(series.finals), series.finals, np.nan)
    size = 5.0 if len(x) <= MANY_EPOCHS else 0.0
    if train:
        ax.plot(
            x, y, **{**style, "linestyle": "none"}, markersize=size, markerfacecolor=palette.paper, zorder=4
        )
    else:
        ax.plot(x, y, **style, linewidth=1.8, markersize=size, markeredgecolor=palette.paper, zorder=5)
        _mark_best(ax, x, y, chart, palette)
    hollow: dict[str, Any] = {"markerfacecolor": palette.paper} if train else {}
    return Line2D([], [], **style, **hollow, linewidth=1.8, markersize=5, label=_label(series, chart))


def _draw_curve(ax: Axes, series: ChartSeries, palette: Palette) -> None:
    raw = series.raw.thin()
    few = len(raw) <= 40
    smooth = None if series.smooth is None else series.smooth.thin()
    faint = smooth is not None
    ax.plot(
        *raw.broken(),
        color=palette.train,
        linewidth=0.8 if faint else 1.6,
        alpha=0.32 if faint else 1.0,
        marker="." if few else "",
        markersize=4,
        solid_joinstyle="round",
        zorder=2,
    )
    if smooth is not None:
        ax.plot(*smooth.broken(), color=palette.train, linewidth=1.8, solid_joinstyle="round", zorder=3)


def _mark_best(ax: Axes, x: Any, y: Any, chart: Chart, palette: Palette) -> None:
    if chart.higher_is_better is None or np.isfinite(y).sum() < 2:
        return
    best = int(np.nanargmax(y) if chart.higher_is_better else np.nanargmin(y))
    ax.plot(
        x[best], y[best], marker="o", markersize=12, markerfacecolor="none", color=palette.valid, zorder=5
    )


def _label(series: ChartSeries, chart: Chart) -> str:
    finals = series.finals[np.isfinite(series.finals)]
    if not len(finals):
        return series.split
    label = f"{series.split} avg {number(float(finals[-1]), chart.unit)}"
    if series.split == "valid" and chart.higher_is_better is not None and len(finals) > 1:
        best = finals.max() if chart.higher_is_better else finals.min()
        label += " (best)" if best == finals[-1] else f" (best {number(float(best))})"
    return label


def _steps_axis(ax: Axes, axis: Axis, palette: Palette, labels: int) -> None:
    if not axis.ends:
        ax.set_xlabel("epoch", color=palette.faint, size=9)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        return
    last = max(axis.ends.values())
    ax.set_xlim(-0.015 * last, 1.025 * last)
    if len(axis.ends) == 1:
        ax.set_xlabel("training step", color=palette.faint, size=9)
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        return
    ticks = spread_ticks(axis.ends, most=labels)
    ax.set_xticks([end for _, end in ticks], [f"{_steps(end)}\nepoch {epoch}" for epoch, end in ticks])
    ax.set_xlabel("training step", color=palette.faint, size=9)
    ends = list(axis.ends.values())
    if len(ends) <= MANY_EPOCHS:
        for end in ends:
            ax.axvline(end, color=palette.grid, linewidth=0.8, zorder=0)


def _steps(value: float) -> str:
    for size, suffix in ((1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.3g}{suffix}"
    return f"{value:,.0f}"


def _values_axis(ax: Axes, chart: Chart, palette: Palette) -> None:
    unit = one_line(chart.unit)
    short = f" {unit}" if 0 < len(unit) <= 2 else ""
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value) + short))
    if unit and not short:
        ax.set_ylabel(unit, color=palette.faint, size=9, parse_math=False)
    for series in chart.series:
        shown = limits(series.raw.y)
        if shown is not None:
            _clip(ax, series, shown, palette)


def _tick(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"
    mantissa, _, power = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def _clip(ax: Axes, series: ChartSeries, shown: tuple[float, float], palette: Palette) -> None:
    """Limit the axis to the usual values of the curve, and mark the extremes outside of it."""
    bottom, top = shown
    inside = [y for line in ax.lines if line.get_marker() == "s" for y in np.asarray(line.get_ydata(), float)]
    finite = [y for y in inside if math.isfinite(y)]
    bottom, top = min([bottom, *finite]), max([top, *finite])
    ax.set_ylim(bottom, top)
    raw = series.raw
    for outside, row, edge, marker in (
        (raw.y > top, int(raw.y.argmax()), 0.98, "^"),
        (raw.y < bottom, int(raw.y.argmin()), 0.02, "v"),
    ):
        if outside.any():
            _point_to(ax, (raw.x[row], edge), marker, number(float(raw.y[row])), palette)


def _point_to(ax: Axes, where: tuple[float, float], marker: str, text: str, palette: Palette) -> None:
    x, edge = where
    mixed = ax.get_xaxis_transform()
    inwards = -1 if edge > 0.5 else 1
    ax.plot(
        [x],
        [edge],
        marker=marker,
        markersize=6,
        color=palette.train,
        transform=mixed,
        clip_on=False,
        zorder=6,
    )
    left = x > np.mean(ax.get_xlim())
    ax.annotate(
        text,
        (x, edge),
        xycoords=mixed,
        xytext=(-7 if left else 7, 2 * inwards),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        color=palette.ink,
        fontsize=9,
        parse_math=False,
    )


def lines(
    curves: Sequence[tuple[str, Any, Any]],
    x_label: str,
    y_label: str,
    palette: Palette,
    *,
    log: bool = False,
    mark: float | None = None,
) -> Figure:
    """Draw a few curves over one axis, to compare them.

    Args:
        curves: (label, x, y) of each curve.
        x_label: the label of the x axis.
        y_label: the label of the y axis.
        palette: colours.
        log: whether the axis is logarithmic.
        mark: an x to mark.
    """
    figure = NotebookFigure(figsize=(7.2, 3.6), dpi=80, layout="constrained", facecolor=palette.paper)
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    for (label, x, y), colour in zip(curves, (palette.train, palette.valid), strict=False):
        ax.plot(
            x, y, label=plain_label(label), color=colour, marker="o" if len(x) <= 25 else None, markersize=3
        )
    if log:
        ax.set_xscale("log")
    if mark is not None:
        ax.axvline(mark, color=palette.faint, linestyle="--", label=f"{number(mark)}")
    ax.set_xlabel(x_label, color=palette.faint)
    ax.set_ylabel(plain_label(y_label), color=palette.faint)
    _dress(ax, palette)
    ax.legend(frameon=False, labelcolor=palette.ink)
    return figure


def bars(values: Sequence[tuple[str, float, str]], label: str, palette: Palette = LIGHT) -> Figure:
    """Draw a bar for each value, with its number next to it.

    Args:
        values: (name, value, value as text) of each bar, the first at the top.
        label: what the values are.
        palette: colours.
    """
    size = (7.2, 1.2 + 0.42 * len(values))
    figure = NotebookFigure(figsize=size, dpi=80, layout="constrained", facecolor=palette.paper)
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    _dress(ax, palette)
    ax.grid(False)
    heights = [value if math.isfinite(value) else 0.0 for _, value, _ in values]
    drawn = ax.barh(range(len(values)), heights, height=0.6, color=palette.train)
    ax.bar_label(drawn, [words for *_, words in values], padding=4, color=palette.ink, fontsize=9)
    ax.set_yticks(range(len(values)), [plain_label(name) for name, *_ in values])
    ax.invert_yaxis()
    ax.margins(x=0.16)
    ax.set_xlabel(plain_label(label), color=palette.faint, size=9)
    return figure


def plain_label(text: str) -> str:
    """Escape a label: matplotlib reads dollar signs as a formula, and a leading underscore hides a label."""
    text = one_line(text)
    return "\u200b" * text.startswith("_") + text.replace("$", r"\$")
