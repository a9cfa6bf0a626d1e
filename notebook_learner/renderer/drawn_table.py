"""Tables and a confusion matrix as part of a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from .drawing import DARK, LIGHT, NotebookFigure, Palette
from .summary import SetTable
from .text import one_line

LINE = 0.24
"""Inches from one row to the next."""
_LETTER = 0.088
"""Inches for a letter of this size; nearly all letters are narrower."""
_GAP = 0.22
"""Inches between two columns."""
_LONGEST = 24
"""Letters of a cell; a longer text is cut."""
_MOST_ROWS = 8
_SIZE = 9


class _DrawnColumn(NamedTuple):
    heading: str
    right: bool
    cells: Sequence[str]

    @property
    def inches(self) -> float:
        return _LETTER * max(map(len, (self.heading, *self.cells))) + _GAP


def fitted(table: SetTable, inches: float) -> SetTable:
    """Drop columns that do not fit: the batches, then the positions, then the last metrics, with a note.

    >>> wide = SetTable(("set", "Loss", "Accuracy", "batches", "weights of"), [("a", "1", "2", "3", "4")],
    ...     (False, True, True, True, False))
    >>> for inches in (9.0, 2.9, 2.2, 1.5):
    ...     print(*fitted(wide, inches).headings, sep=", ")
    set, Loss, Accuracy, batches, weights of
    set, Loss, Accuracy, weights of
    set, Loss, Accuracy
    set, Loss, 1 more
    """
    by_column = zip(table.headings, table.right, zip(*_few(table.rows), strict=True), strict=True)
    columns = [
        _DrawnColumn(_cut(head), right, [_cut(cell) for cell in cells]) for head, right, cells in by_column
    ]
    name, *metrics = columns[:-2]
    beside = columns[-2:]
    while beside and _inches([name, *metrics, *beside]) > inches:
        beside.pop(0)
    kept = list(metrics)
    while len(kept) > 1 and _inches([name, *kept, *_note(metrics, kept), *beside]) > inches:
        kept.pop()
    drawn = [name, *kept, *_note(metrics, kept), *beside]
    rows = list(zip(*(column.cells for column in drawn), strict=True))
    return SetTable([column.heading for column in drawn], rows, [column.right for column in drawn])


def _few(rows: Sequence[Sequence[str]]) -> Iterator[Sequence[str]]:
    """All sets, or only the latest ones if there are too many."""
    if len(rows) > _MOST_ROWS:
        first = rows[0]
        yield (f"{len(rows) - _MOST_ROWS + 1} earlier sets", *("" for _ in first[1:]))
        rows = rows[1 - _MOST_ROWS :]
    yield from rows


def _cut(cell: str) -> str:
    return cell if len(cell) <= _LONGEST else f"{cell[: _LONGEST - 1].rstrip()}…"


def _note(metrics: Sequence[_DrawnColumn], kept: Sequence[_DrawnColumn]) -> list[_DrawnColumn]:
    left_out = len(metrics) - len(kept)
    return [_DrawnColumn(f"{left_out} more", False, ["" for _ in metrics[0].cells])] if left_out else []


def _inches(columns: Sequence[_DrawnColumn]) -> float:
    return sum(column.inches for column in columns) - _GAP


def height(table: SetTable) -> float:
    """Inches that the drawn table takes."""
    return LINE * (1 + len(table.rows))


def draw_table(ax: Axes, table: SetTable, palette: Palette) -> None:
    """Draw the table in axes of the height that `height` returns. No text is read as a formula."""
    ax.set_axis_off()
    ax.plot([0, 1], [1 - 1 / (1 + len(table.rows))] * 2, color=palette.grid, linewidth=0.8, clip_on=False)
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    rows = 1 + len(table.rows)
    left = 0.0
    for column in range(len(table.headings)):
        cells = [table.headings[column], *(row[column] for row in table.rows)]
        wide = _LETTER * max(map(len, cells))
        right = table.right[column]
        for row, cell in enumerate(cells):
            ax.annotate(
                cell,
                (0.0, 1 - (row + 0.5) / rows),
                xycoords="axes fraction",
                xytext=(72 * (left + wide * right), 0),
                textcoords="offset points",
                ha="right" if right else "left",
                va="center",
                color=palette.faint if row == 0 else palette.ink,
                fontsize=_SIZE,
                annotation_clip=False,
                parse_math=False,
            )
        left += wide + _GAP


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
