"""The epochs as a table below the panel, for a notebook without a kernel; and what a page hides of it.

For a panel whose kernel is gone, JupyterLab says "Error displaying widget: model not found" in the output of
the panel. Nothing of a widget runs there, so a style in the table hides that line. While the panel lives, the
style hides the table and the picture behind it instead. A viewer that removes styles shows both.
"""

from __future__ import annotations

from html import escape

from ..renderer.summary import epoch_cells, epoch_header, epoch_row, epoch_values
from ..renderer.tally import Tally
from ..renderer.text import count

MOST_EPOCHS = 50
"""The last epochs that are in the table."""

_OUTPUT, _TABLE = ".jp-OutputArea-child", ".jp-OutputArea-child:has(.nl-saved-style)"
_LIVES = f"{_OUTPUT}:has(.nl-panel:not([data-over=followed]))"
_STYLE = f"""\
{_LIVES}+{_TABLE},{_LIVES}+{_TABLE}+{_OUTPUT},{_OUTPUT}:has(.nl-saved:empty),
{_OUTPUT}:has(+{_OUTPUT} .nl-saved-style):not(:has(>.jp-OutputArea-output>*)){{display:none}}"""


def text_of(tally: Tally) -> str:
    """The table for viewers that show no HTML; empty before the first epoch is over."""
    epochs = _epochs(tally)
    return "\n".join([*epoch_header(tally), *(epoch_row(tally, each) for each in epochs)]) if epochs else ""


def html_of(tally: Tally) -> str:
    """The table, and the style; only the style before the first epoch is over."""
    table = f'<div class="nl-saved">{_table(tally)}</div>'
    return f'<div class="nl-saved-style"><style>{_STYLE}</style>{table}</div>'


def _epochs(tally: Tally) -> list[int]:
    return [int(each) for each in sorted({*tally.epoch_numbers("train"), *tally.epoch_numbers("valid")})][
        -MOST_EPOCHS:
    ]


def _table(tally: Tally) -> str:
    epochs = _epochs(tally)
    if not epochs:
        return ""
    first, second = ['<th rowspan="2">epoch</th>'], []
    for title, splits in epoch_cells(tally):
        first.append(f'<th colspan="{len(splits)}" style="text-align: center">{escape(title)}</th>')
        second += [f"<th>{split}</th>" for split in splits]
    first.append('<th rowspan="2">time</th>')
    rows = "".join(f"<tr>{_row(tally, each)}</tr>" for each in epochs)
    before = epochs[0] - 1
    note = f"<p>the last {count(MOST_EPOCHS)} epochs of {count(epochs[-1])}</p>" if before else ""
    head = f"<thead><tr>{''.join(first)}</tr><tr>{''.join(second)}</tr></thead>"
    return f'{note}<div style="overflow-x: auto"><table>{head}<tbody>{rows}</tbody></table></div>'


def _row(tally: Tally, epoch: int) -> str:
    return "".join(f"<td>{escape(cell)}</td>" for cell in epoch_values(tally, epoch))
