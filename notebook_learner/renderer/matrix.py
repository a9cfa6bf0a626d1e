"""Draw a confusion matrix: how often a class was predicted as another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from .drawing import DARK, LIGHT, NotebookFigure, Palette
from .text import one_line

_WRITTEN = 20
"""Up to this number of classes, each cell shows its number; in smaller cells it would be unreadable."""
_NAMED = 60
"""Up to this number of classes, the axes show the class names."""


def draw_matrix(counts: NDArray[np.int64], names: Sequence[str], title: str, *, dark: bool = False) -> Figure:
    """Draw counts with a row for each true class; colours show the share of the row.

    Args:
        counts: a square table.
        names: the user's names of the classes.
        title: the title above the picture.
        dark: light text on a dark background.
    """
    palette = DARK if dark else LIGHT
    side = min(max(3.6, 1.6 + 0.46 * len(counts)), 11.0)
    figure = NotebookFigure(
        figsize=(side + 0.6, side),
        dpi=80,
        layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1),
        facecolor=palette.paper,
    )
    FigureCanvasAgg(figure)
    if not counts.sum():
        figure.text(0.5, 0.5, "nothing counted yet", color=palette.faint, ha="center", va="center", size=13)
        return figure
    ax = figure.add_subplot()
    due = counts.sum(1, keepdims=True)
    shares = np.divide(counts, due, out=np.zeros(counts.shape), where=due > 0)
    colors = LinearSegmentedColormap.from_list("share", [palette.paper, palette.train])
    ax.imshow(shares, cmap=colors, vmin=0, vmax=1, interpolation="nearest")
    _write(ax, counts, shares, palette)
    _name(ax, [one_line(name) for name in names], palette)
    right = 100 * np.trace(counts) / counts.sum()
    ax.set_title(
        f"{one_line(title)}: {right:.4g} % of {counts.sum()}",
        loc="left",
        color=palette.ink,
        size=12,
        weight="bold",
        parse_math=False,
    )
    return figure


def _write(ax: Axes, counts: NDArray[np.int64], shares: NDArray[np.float64], palette: Palette) -> None:
    if len(counts) > _WRITTEN:
        return
    for (row, column), count in np.ndenumerate(counts):
        color = palette.paper if shares[row, column] > 0.5 else palette.ink
        if count:
            ax.text(column, row, str(count), ha="center", va="center", color=color, size=9)


def _name(ax: Axes, names: Sequence[str], palette: Palette) -> None:
    ax.set_xlabel("answered", color=palette.faint)
    ax.set_ylabel("true class", color=palette.faint)
    ax.tick_params(colors=palette.faint, labelsize=9, length=0)
    for spine in ax.spines.values():
        spine.set_color(palette.grid)
    if len(names) > _NAMED:
        return
    upright = len(names) > 6 or max(map(len, names)) > 8
    ax.set_xticks(range(len(names)), names, rotation=90 if upright else 0)
    ax.set_yticks(range(len(names)), names)
    for label in (*ax.get_xticklabels(), *ax.get_yticklabels()):
        label.set_parse_math(False)
