"""The report of a step as text, as HTML for a notebook, and as sections for a narrow panel."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from itertools import groupby
from typing import TypedDict

from ..renderer.summary import text_table
from ..renderer.text import count, number
from .batch import Picture
from .findings import Findings
from .layers import Layer
from .report_tables import (
    Alarm,
    Cell,
    Heading,
    ReportTable,
    bound,
    classes,
    example,
    headline,
    is_alarming,
    layers_table,
    maybe,
    memory_table,
    name,
    option,
    remark,
    remarks,
    samples_table,
    share,
    tables,
    times_table,
)
from .statistics import Histogram

_LAYERS_IN_TEXT, _SAMPLES_IN_TEXT = 40, 8
_HEIGHTS = " ▁▂▃▄▅▆▇█"
_LEFT_OUT = ("min", "max")
"""Columns of the layers that text leaves out, for lack of room; their values are in `inspection.layers`."""


def as_text(inspection: Findings) -> str:
    """Return all parts of an inspection as text, one below the other."""
    head = [headline(inspection)]
    if inspection.loss is not None:
        head.append(f"loss {number(inspection.loss)}")
    head += [f"{kind}: {text}" for kind, text in remarks(inspection)]
    parts = ["\n".join(head)]
    for table in tables(inspection, most_layers=_LAYERS_IN_TEXT, most_samples=_SAMPLES_IN_TEXT):
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


_LAYERS_IN_HTML, _SAMPLES_IN_HTML = 200, 12
_WIDE, _HIGH = 80, 18
_LONG = 48
"""Letters from which a cell's text is broken into lines, so that its table stays narrow."""

# JupyterLab's own colours follow its theme; elsewhere the page's text colour does. The class stands twice
# because JupyterLab's own rules for tables and headings would override a single one.
_STYLE = """
.nl-look{--ink:var(--jp-ui-font-color1,currentColor);--line:var(--jp-border-color2,rgba(128,128,128,.35));
--bar:var(--jp-brand-color1,#1e88e5);--bad:var(--jp-error-color1,#e53935);color:var(--ink);
font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);max-width:100%}
.nl-look.nl-look h3{font-size:15px;font-weight:600;margin:4px 0 2px}
.nl-look.nl-look h4{font-size:11px;font-weight:600;letter-spacing:.06em;text-transform:uppercase;opacity:.7;
margin:18px 0 4px}
.nl-look.nl-look p{margin:3px 0}
.nl-look.nl-look .nl-note{border-left:3px solid var(--line);padding:3px 10px;margin:6px 0}
.nl-look.nl-look .nl-wrong{border-left-color:var(--bad)}
.nl-look.nl-look .nl-row{display:flex;flex-wrap:wrap;gap:0 48px;align-items:flex-start}
.nl-look.nl-look .nl-row>div{max-width:100%}
.nl-look.nl-look .nl-box{overflow:auto;max-height:520px}
.nl-look.nl-look table{color:inherit;border-collapse:collapse;border:0;margin:0;font-size:12px;
font-variant-numeric:tabular-nums}
.nl-look.nl-look tr,.nl-look.nl-look tbody tr:nth-child(odd),
.nl-look.nl-look tbody tr:nth-child(even){background:none}
.nl-look.nl-look th,.nl-look.nl-look td{padding:3px 14px 3px 0;border:0;
border-bottom:1px solid var(--line);text-align:left;white-space:nowrap;vertical-align:middle}
.nl-look.nl-look .nl-long{white-space:normal;min-width:220px;max-width:420px;overflow-wrap:anywhere}
.nl-look.nl-look th{font-weight:500;opacity:.7}
.nl-look.nl-look .nl-right{text-align:right}
.nl-look.nl-look .nl-bad{color:var(--bad);font-weight:600}
.nl-look.nl-look svg{display:block;color:var(--bar)}
.nl-look.nl-look .nl-small{font-size:12px;opacity:.8;overflow-wrap:anywhere}
.nl-look.nl-look img{display:block;image-rendering:pixelated;margin:4px 0;max-width:100%;border:0}
"""


def as_html(inspection: Findings) -> str:
    """Return all parts of an inspection as HTML. Names and texts are escaped: their source is not trusted."""
    parts = [f"<h3>{escape(headline(inspection))}</h3>"]
    if inspection.loss is not None:
        parts.append(f"<p>loss <strong>{escape(number(inspection.loss))}</strong></p>")
    parts += [_remark(kind, text) for kind, text in remarks(inspection)]
    shown = tables(inspection, most_layers=_LAYERS_IN_HTML, most_samples=_SAMPLES_IN_HTML)
    pictures = "".join(_picture(one) for one in inspection.thumbnails)
    # The table of layers takes the full width; the small tables before and after it stand side by side.
    for wide, group in groupby(shown, key=lambda table: table.title == "Layers"):
        sections = [_section(table, pictures if table.title == "Batch" else "") for table in group]
        parts += sections if wide else [f'<div class="nl-row">{"".join(sections)}</div>']
    return f'<div class="nl-look"><style>{_STYLE}</style>{"".join(parts)}</div>'


def _remark(kind: str, text: str) -> str:
    wrong = "" if kind == "note" else " nl-wrong"
    return f'<p class="nl-note{wrong}"><strong>{escape(kind)}</strong> {escape(text)}</p>'


def _section(table: ReportTable, below: str = "") -> str:
    kept = [at for at in range(len(table.columns)) if any(row[at] not in ("", None) for row in table.rows)]
    head = "".join(_cell("th", table.columns[at], table.columns[at].heading) for at in kept)
    body = "".join(
        f"<tr>{''.join(_cell('td', table.columns[at], row[at]) for at in kept)}</tr>" for row in table.rows
    )
    whole = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if body else ""
    lines = "".join(f'<p class="nl-small">{escape(line)}</p>' for line in table.lines)
    box = f'<div class="nl-box" tabindex="0" role="group" aria-label="{escape(table.title)}">{whole}</div>'
    return f"<div><h4>{escape(table.title)}</h4>{box if whole else ''}{lines}{below}</div>"


def _cell(tag: str, column: Heading, cell: Cell) -> str:
    if isinstance(cell, Histogram):
        return f"<{tag}>{_bars(cell)}</{tag}>"
    text = cell or ""
    classes = {"nl-right": column.right, "nl-bad": isinstance(cell, Alarm), "nl-long": len(text) > _LONG}
    chosen = " ".join(name for name, holds in classes.items() if holds)
    return f'<{tag} class="{chosen}">{escape(text)}</{tag}>' if chosen else f"<{tag}>{escape(text)}</{tag}>"


def _bars(histogram: Histogram) -> str:
    highest = max(histogram.counts) or 1
    wide = _WIDE / len(histogram.counts)
    # Every bar is at least one pixel high: a single value must be visible next to a million.
    bars = "".join(
        f"M{at * wide:g} {_HIGH}v-{max(1.0, _HIGH * size / highest):.3g}h{wide - 1:g}V{_HIGH}z"
        for at, size in enumerate(histogram.counts)
        if size
    )
    said = escape(
        f"{number(histogram.low)} to {number(histogram.high)}, {count(sum(histogram.counts))} values"
    )
    return (
        f'<svg width="{_WIDE}" height="{_HIGH}" viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="{said}">'
        f'<title>{said}</title><path d="{bars}" fill="currentColor"/></svg>'
    )


def _picture(picture: Picture) -> str:
    # Tiny images are enlarged by a whole factor, so that the user can recognize them.
    times = max(1, 56 // picture.height)
    said = escape(f"the first {picture.count} of {name(picture.path) or 'batch'}")
    return (
        f'<img src="{picture.uri}" alt="{said}" title="{said}" '
        f'width="{times * picture.width}" height="{times * picture.height}">'
    )


MOST_ROWS = 12
_MOST_SAMPLES = MOST_ROWS - 4
_TOO_MUCH = ("parameters", "min", "max")
"""Columns of the report that a panel leaves out, for lack of room."""

Row = list[str]


class Grid(TypedDict):
    """The data of `rows` in columns."""

    heads: list[str]
    right: list[bool]
    """Which columns hold numbers."""
    cells: list[list[str]]
    wrong: list[bool]
    """Which rows are highlighted."""
    more: str
    """A text about what is left out, if anything."""


class Section(TypedDict):
    """A title and its rows, each a name and a text; also a table if there is more to compare."""

    title: str
    rows: list[Row]
    grid: Grid | None


def sections(inspection: Findings) -> list[Section]:
    """The parts of the report that are not empty, each with at most a dozen rows."""
    found = {
        "Step": _step(inspection),
        "Batch": _batch(inspection),
        "Worst samples": _samples(inspection),
        "Layers": _layers(inspection),
        "Optimizer": _optimizer(inspection),
        "Memory": [
            [str(kind), f"{size}  {part}".rstrip()] for kind, size, part in memory_table(inspection).rows
        ],
        "Time": [[str(part), f"{time}  {of}"] for part, time, of in times_table(inspection).rows],
    }
    grids = _grids(inspection)
    return [
        {"title": title, "rows": _cut(rows), "grid": grids.get(title)}
        for title, rows in found.items()
        if rows
    ]


def _grids(inspection: Findings) -> dict[str, Grid]:
    few = replace(inspection, layers=tuple(_flagged_first(inspection)[:MOST_ROWS]))
    tables = [samples_table(inspection, _MOST_SAMPLES), layers_table(few, MOST_ROWS)]
    whole = {"Worst samples": len(inspection.samples or ()), "Layers": len(inspection.layers)}
    return {table.title: _grid(table, whole[table.title] - len(table.rows)) for table in tables if table.rows}


def _grid(table: ReportTable, lost: int) -> Grid:
    rows = [[one if isinstance(one, str) else "" for one in row] for row in table.rows]
    kept = [
        at
        for at, column in enumerate(table.columns)
        if column.heading not in _TOO_MUCH and any(row[at] for row in rows)
    ]
    return {
        "heads": [table.columns[at].heading for at in kept],
        "right": [table.columns[at].right for at in kept],
        "cells": [[str(row[at]) for at in kept] for row in rows],
        "more": f"and {count(lost)} more" if lost else "",
        "wrong": [any(isinstance(one, Alarm) and one for one in row) for row in rows],
    }


def _cut(rows: list[Row]) -> list[Row]:
    if len(rows) <= MOST_ROWS:
        return rows
    return [*rows[: MOST_ROWS - 1], ["…", f"and {count(len(rows) - MOST_ROWS + 1)} more"]]


def _step(inspection: Findings) -> list[Row]:
    loss = [] if inspection.loss is None else [["loss", number(inspection.loss)]]
    return loss + [[kind, text] for kind, text in remarks(inspection)]


def _batch(inspection: Findings) -> list[Row]:
    rows = []
    for one in inspection.batch:
        values, path = one.statistics, name(one.path) or "batch"
        text = f"{one.dtype} {list(one.shape)}"
        if values is not None and values.count > values.nan + values.inf:
            text += f"  {bound(one, values.min)} … {bound(one, values.max)}"
        wrong = {"NaN": values.nan, "inf": values.inf} if values is not None else {}
        text += "".join(f", {count(many)} {kind}" for kind, many in wrong.items() if many)
        rows.append([path, text])
        rows += [[f"{path} classes", classes(one)]] if one.classes else []
        rows += [[f"{path} text", one.texts[0]]] if one.texts else []
    return rows


def _samples(inspection: Findings) -> list[Row]:
    rows = []
    for one in (inspection.samples or ())[:_MOST_SAMPLES]:
        text = f"loss {number(one.loss)}"
        said = {"target": example(one.target), "prediction": example(one.prediction)}
        rows.append(
            [
                f"sample {one.index}",
                text + "".join(f", {what} {value}" for what, value in said.items() if value),
            ]
        )
    return rows


def _layers(inspection: Findings) -> list[Row]:
    return [[name(layer.name) or name(layer.kind), _layer(layer)] for layer in _flagged_first(inspection)]


def _flagged_first(inspection: Findings) -> list[Layer]:
    """The layers with the flagged ones first: a panel shows a dozen of perhaps hundreds."""
    return sorted(inspection.layers, key=lambda layer: not is_alarming(layer))


def _layer(layer: Layer) -> str:
    values = layer.activation
    parts = [remark(layer)]
    if values is not None and values.count > values.nan + values.inf:
        parts.append(f"mean {number(values.mean)}, std {number(values.std)}, {share(values.zeros)} zero")
    if layer.gradient_norm is not None:
        parts.append(f"gradient {maybe(layer.gradient_norm)}")
    if layer.update_ratio is not None:
        parts.append(f"update/weight {maybe(layer.update_ratio)}")
    return ", ".join(part for part in parts if part) or "not seen"


def _optimizer(inspection: Findings) -> list[Row]:
    rows = []
    for group in inspection.optimizer:
        steps = "" if group.steps is None else f", {count(group.steps)} steps"
        rows.append(
            [
                f"group {group.label}",
                f"lr {option(group.options.get('lr'))}, {count(group.elements)} parameters{steps}",
            ]
        )
        rows += [[one.key, f"mean {number(one.mean)}, max {number(one.max)}"] for one in group.state]
    return rows
