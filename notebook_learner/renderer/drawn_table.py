"""A small table of numbers as part of a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from .drawing import Palette
from .evaluated_sets import SetTable

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
