"""The table at the end of a run: Burn's learner summary, as text, as HTML and for rich."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from ..event import MetricInfo, Split
from .history_source import SPLIT_STYLES, SPLITS, EpochSource, metric_infos, plotted_names
from .numbers import count, number
from .text import one_line

if TYPE_CHECKING:
    from rich.console import Group

HEADINGS = ("Split", "Metric", "Min.", "Epoch", "Max.", "Epoch")
_RIGHT = (False, False, True, True, True, True)
_EMPTY = "no epoch has finished yet"


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """The lowest and the highest final value of one metric of one split, and their epochs.

    An epoch is None if the metric never had a number as its value.
    """

    split: Split
    metric: str
    minimum: float
    minimum_epoch: int | None
    maximum: float
    maximum_epoch: int | None
    unit: str = ""

    def cells(self) -> tuple[str, ...]:
        """The texts of the row's cells."""
        return (
            self.split,
            one_line(self.metric),
            number(self.minimum, self.unit),
            _epoch(self.minimum_epoch),
            number(self.maximum, self.unit),
            _epoch(self.maximum_epoch),
        )


def _epoch(epoch: int | None) -> str:
    return "-" if epoch is None else str(epoch)


def summary_rows(history: EpochSource, infos: Sequence[MetricInfo] | None = None) -> list[SummaryRow]:
    """Return a row for each metric and split: train first, metrics in alphabetical order.

    Args:
        history: any object with the final values by epoch.
        infos: the names and units of the metrics, and which are plotted; the others are left out.
            Default: `history.infos`, and every metric if the history has no infos.
    """
    known = metric_infos(history, infos)
    rows = []
    for split in SPLITS:
        for name in sorted(plotted_names(history, split, known), key=str.casefold):
            info = known.get((name, split))
            row = _row(history, name, split, info.unit if info else "")
            if row is not None:
                rows.append(row)
    return rows


def _row(history: EpochSource, name: str, split: Split, unit: str) -> SummaryRow | None:
    finals = np.asarray(history.epochs(name, split), dtype=np.float64)
    numbers = np.asarray(history.epoch_numbers(split))  # read last: never fewer than the values
    if not len(finals):
        return None
    if np.isnan(finals).all():
        nan = float("nan")
        return SummaryRow(split, name, nan, None, nan, None, unit)
    low, high = int(np.nanargmin(finals)), int(np.nanargmax(finals))
    return SummaryRow(
        split, name, float(finals[low]), int(numbers[low]), float(finals[high]), int(numbers[high]), unit
    )


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """The settings and best values of a run. It prints as a table; a notebook shows an HTML table."""

    model: str
    parameters: int
    settings: Mapping[str, str] = field(default_factory=dict)
    rows: Sequence[SummaryRow] = ()

    @property
    def title(self) -> str:
        """The model and its size, in one line."""
        plural = "" if self.parameters == 1 else "s"
        return f"{one_line(self.model)} · {count(self.parameters)} parameter{plural}"

    def _settings(self) -> list[tuple[str, str]]:
        return [(one_line(key), one_line(value)) for key, value in self.settings.items()]

    def __str__(self) -> str:
        parts = [self.title]
        settings = self._settings()
        wide = max((len(key) for key, _ in settings), default=0)
        parts += [f"  {key:<{wide}}  {value}" for key, value in settings]
        parts += ["", *(text_table(HEADINGS, [row.cells() for row in self.rows], _RIGHT) or [_EMPTY])]
        return "\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = _html_row("th", HEADINGS, (False,) * len(HEADINGS))
        body = "".join(_html_row("td", row.cells(), _RIGHT) for row in self.rows)
        table = f"<table><thead>{head}</thead><tbody>{body}</tbody></table>" if body else f"<p>{_EMPTY}</p>"
        settings = " · ".join(f"{escape(key)}: {escape(value)}" for key, value in self._settings())
        return (
            f"<p><strong>{escape(self.title)}</strong></p>{f'<p>{settings}</p>' if settings else ''}{table}"
        )

    def __rich__(self) -> Group:
        """The summary for rich: `rich.print(learner.summary())`."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        settings = self._settings()
        wide = max((len(key) for key, _ in settings), default=0)
        head = Text().append(self.title, style="bold")
        for key, value in settings:
            head.append(f"\n  {key:<{wide}}  ", style="dim").append(value)
        if not self.rows:
            return Group(head, Text(_EMPTY, style="dim"))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for heading, right in zip(HEADINGS, _RIGHT, strict=True):
            table.add_column(heading, justify="right" if right else "left", no_wrap=heading != "Metric")
        for row in self.rows:
            first, *others = row.cells()
            table.add_row(Text(first, style=SPLIT_STYLES[row.split]), *(Text(cell) for cell in others))
        return Group(head, Text(), table)


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """The lines of an aligned table; no lines for a table without rows."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    return [_text_row(cells, widths, right) for cells in (headings, rule, *rows)]


def _text_row(cells: Iterable[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = zip(cells, widths, right, strict=True)
    return "  ".join(
        f"{cell:>{width}}" if to_right else f"{cell:<{width}}" for cell, width, to_right in placed
    )


def _html_row(tag: str, cells: Iterable[str], right: Sequence[bool]) -> str:
    placed = zip(cells, right, strict=True)
    return f"<tr>{''.join(_html_cell(tag, cell, to_right) for cell, to_right in placed)}</tr>"


def _html_cell(tag: str, text: str, right: bool) -> str:
    return f'<{tag} style="text-align: {"right" if right else "left"}">{escape(text)}</{tag}>'
