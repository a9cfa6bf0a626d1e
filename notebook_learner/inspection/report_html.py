"""The report as HTML for a notebook: tables, small histograms, pictures."""

from __future__ import annotations

from html import escape
from itertools import groupby

from ..renderer.numbers import count, number
from .findings import Findings
from .pictures import Picture
from .report_tables import Alarm, Cell, Heading, ReportTable, headline, name, remarks, tables
from .statistics import Histogram

MOST_LAYERS, MOST_SAMPLES = 200, 12
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


def report(inspection: Findings) -> str:
    """Return all parts of an inspection as HTML. Names and texts are escaped: their source is not trusted."""
    parts = [f"<h3>{escape(headline(inspection))}</h3>"]
    if inspection.loss is not None:
        parts.append(f"<p>loss <strong>{escape(number(inspection.loss))}</strong></p>")
    parts += [_remark(kind, text) for kind, text in remarks(inspection)]
    shown = tables(inspection, most_layers=MOST_LAYERS, most_samples=MOST_SAMPLES)
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
