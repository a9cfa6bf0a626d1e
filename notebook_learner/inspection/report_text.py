"""The report as plain text."""

from __future__ import annotations

from ..renderer.numbers import number
from ..renderer.summary import text_table
from .findings import Findings
from .report_tables import Cell, ReportTable, headline, remarks, tables
from .statistics import Histogram

MOST_LAYERS, MOST_SAMPLES = 40, 8
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_LEFT_OUT = ("min", "max")
"""Columns of the layers that text leaves out, for lack of room; their values are in `inspection.layers`."""


def report(inspection: Findings) -> str:
    """Return all parts of an inspection as text, one below the other."""
    head = [headline(inspection)]
    if inspection.loss is not None:
        head.append(f"loss {number(inspection.loss)}")
    head += [f"{kind}: {text}" for kind, text in remarks(inspection)]
    parts = ["\n".join(head)]
    for table in tables(inspection, most_layers=MOST_LAYERS, most_samples=MOST_SAMPLES):
        parts.append("\n".join([table.title, *(f"  {line.rstrip()}" for line in _lines(table))]))
    return "\n\n".join(parts)


def _lines(table: ReportTable) -> list[str]:
    left_out = _LEFT_OUT if table.title == "Layers" else ()
    kept = [
        at
        for at, column in enumerate(table.columns)
        if column.heading not in left_out and any(row[at] not in ("", None) for row in table.rows)
    ]
    headings = [table.columns[at].heading for at in kept]
    right = [table.columns[at].right for at in kept]
    rows = [[_text(row[at]) for at in kept] for row in table.rows]
    return [*text_table(headings, rows, right), *table.lines]


def _text(cell: Cell) -> str:
    return sparkline(cell) if isinstance(cell, Histogram) else cell or ""


def sparkline(histogram: Histogram) -> str:
    """Draw a histogram with block characters, one for every two bins.

    >>> sparkline(Histogram(0.0, 1.0, (4, 4, 1, 0, 0, 0, 8, 8)))
    '▄▁ █'
    """
    pairs = [sum(histogram.counts[at : at + 2]) for at in range(0, len(histogram.counts), 2)]
    highest = max(pairs, default=0) or 1
    # Rounded up: a single value must be visible next to a million.
    return "".join(_HEIGHTS[-(-(len(_HEIGHTS) - 1) * size // highest)] for size in pairs)
