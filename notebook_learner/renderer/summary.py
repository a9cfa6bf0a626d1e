"""The lines and tables that stay on the screen: epochs, evaluated sets, and the end of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..event import Evaluated, MetricInfo, SetProgress, Split
from .history_source import SPLIT_STYLES, SPLITS, EpochSource, metric_infos, plotted_names
from .tally import Tally
from .text import count, duration, number, one_line, percent, place

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
        infos: the names and units of the metrics, and which are plotted; the others are left out, and so are
            readings.
            Default: `history.infos`, and every metric if the history has no infos.
    """
    known = metric_infos(history, infos)
    rows = []
    for split in SPLITS:
        for name in sorted(plotted_names(history, split, known), key=str.casefold):
            info = known.get((name, split), MetricInfo(name, split))
            row = _row(history, name, split, info.unit)
            if row is not None and info.of_epochs:
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


_CELL = 9
"""Wide enough for `1.234e-12`, so that columns do not shift."""
_TIME = 10
_GAP = "   "


def epoch_header(tally: Tally) -> list[str]:
    """The two header lines: the numeric metrics, and the splits below them."""
    over, under = [" " * _left(tally)], [f"{'epoch':>{_left(tally)}}"]
    for name, splits in _groups(tally):
        width = _width(tally, name, splits)
        over.append(f"{_title(tally, name):^{width}}")
        under.append("  ".join(f"{split:>{_CELL}}" for split in splits).rjust(width))
    return [_GAP.join(over).rstrip(), _GAP.join([*under, f"{'time':>{_TIME}}"])]


def epoch_cells(tally: Tally) -> list[tuple[str, list[Split]]]:
    """The titles of the numeric metrics, with the splits that each has."""
    return [(_title(tally, name), splits) for name, splits in _groups(tally)]


def epoch_values(tally: Tally, epoch: int) -> list[str]:
    """The number of an epoch, its final values, and the time its steps took."""
    values = [_final(tally, name, split, epoch) for name, splits in _groups(tally) for split in splits]
    return [f"{epoch}/{tally.num_epochs}", *values, duration(tally.pace.epoch(epoch))]


def epoch_row(tally: Tally, epoch: int) -> str:
    """The final values of an epoch, and the time its steps took."""
    cells = [f"{f'{epoch}/{tally.num_epochs}':>{_left(tally)}}"]
    for name, splits in _groups(tally):
        values = "  ".join(f"{_final(tally, name, split, epoch):>{_CELL}}" for split in splits)
        cells.append(values.rjust(_width(tally, name, splits)))
    return _GAP.join([*cells, f"{duration(tally.pace.epoch(epoch)):>{_TIME}}"])


HEADER_EVERY = 25
"""Rows after which the headings are repeated, so that they are on the screen."""


class EpochRows:
    """The rows of one epoch after the other, now and then with the headings."""

    def __init__(self) -> None:
        self._since_header = HEADER_EVERY
        self._header: list[str] = []

    def next(self, tally: Tally, epoch: int) -> list[str]:
        """The lines for an epoch that has ended."""
        header = list(epoch_header(tally))
        begins = self._since_header >= HEADER_EVERY or header != self._header
        self._since_header, self._header = (1 if begins else self._since_header + 1), header
        return [*(header if begins else ()), epoch_row(tally, epoch)]

    def begin_anew(self) -> None:
        """Other lines came in between, or another run: the headings come again."""
        self._since_header = HEADER_EVERY


def _groups(tally: Tally) -> list[tuple[str, list[Split]]]:
    """The metrics that have a value of an epoch, with the splits they are plotted for. A training without
    validation has no column for it."""
    measured = [split for split in SPLITS if split == "train" or tally.finals.get(split)]
    plotted = {key for key, info in tally.infos.items() if info.plotted and info.of_epochs}
    groups = [(name, [split for split in measured if (name, split) in plotted]) for name in tally.names()]
    return [(name, splits) for name, splits in groups if splits]


def _title(tally: Tally, name: str) -> str:
    unit = tally.unit(name)
    return one_line(f"{name} {unit}" if unit else name)


def _width(tally: Tally, name: str, splits: list[Split]) -> int:
    return max(len(_title(tally, name)), len(splits) * (_CELL + 2) - 2)


def _left(tally: Tally) -> int:
    return max(7, 2 * len(str(tally.num_epochs)) + 1)


def _final(tally: Tally, name: str, split: Split, epoch: int) -> str:
    value = tally.finals.get(split, {}).get(name, {}).get(epoch)
    return "-" if value is None else number(value)


class SetRow(NamedTuple):
    """A set in words."""

    name: str
    values: Mapping[str, str]
    """By metric."""
    batches: int
    where: str
    """The position in the training whose weights were measured; "" if it is unknown."""


class SetTable(NamedTuple):
    """Headings and cells. Some columns of metrics may be left out if there is little room."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]
    """Which columns are aligned to the right."""


def set_row(event: Evaluated) -> SetRow:
    """The row of an evaluated set."""
    units = {info.name: one_line(info.unit) for info in event.metrics}
    finals = (event.record.finals or {}).items()
    values = {one_line(name): number(value, units.get(name, "")) for name, value in finals}
    where = place(event.epoch, event.split, event.step, None) if event.epoch else ""
    return SetRow(one_line(event.name), values, event.record.steps, where)


def set_table(rows: Sequence[SetRow]) -> SetTable:
    """The table of these sets.

    >>> row = SetRow("clean", {"Loss": "0.2500", "Accuracy": "91.25 %"}, 20, "epoch 3, train, step 7")
    >>> print("\\n".join(line.rstrip() for line in text_table(*set_table([row]))))
    set      Loss  Accuracy  batches  weights of
    -----  ------  --------  -------  ----------------------
    clean  0.2500   91.25 %       20  epoch 3, train, step 7
    """
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.values))
    cells = [
        (row.name, *(row.values.get(metric, "") for metric in metrics), count(row.batches), row.where)
        for row in rows
    ]
    return SetTable(
        ("set", *metrics, "batches", "weights of"), cells, (False, *(True for _ in metrics), True, False)
    )


def sets_text(events: Iterable[Evaluated]) -> str:
    """The table as aligned text; "" if no set was evaluated."""
    lines = text_table(*set_table([set_row(event) for event in events]))
    return "\n".join(line.rstrip() for line in lines)


def because(reason: str) -> str:
    """A reason as the end of a sentence, if one is known."""
    return f": {one_line(reason)}" if reason else ""


def whereabouts(tally: Tally) -> str:
    """The text after the status: how long the run took, or its position and the reason of the stop."""
    if tally.status != "finished":
        return f" at {tally.place()}{because(tally.reason)}"
    elapsed = tally.pace.elapsed
    return f" after {duration(elapsed)}" if elapsed else ""  # a finished run needs no reason


def news(tally: Tally) -> Summary | None:
    """The summary at the end, and at a pause if a pass ended since the last one (not at every step)."""
    run = tally.run
    rows = summary_rows(tally, list(tally.infos.values()))
    if run is None or not rows or not (tally.fresh or tally.status == "finished"):
        return None
    tally.fresh = False
    epochs = f"{tally.epochs_done} of {tally.num_epochs}"
    return Summary(run.model, run.parameters, {**run.settings, "epochs": epochs}, rows)


def evaluation(event: Evaluated) -> str:
    """An evaluated set in one line."""
    units = {info.name: one_line(info.unit) for info in event.metrics}
    finals = (event.record.finals or {}).items()
    values = [f"{one_line(name)} {number(value, units.get(name, ''))}" for name, value in finals]
    steps = event.record.steps
    batches = f"{count(steps)} batch{'' if steps == 1 else 'es'}"
    return " · ".join([f"evaluated {one_line(event.name)}", *values, batches])


def tour(event: SetProgress) -> str:
    """The progress of an evaluation on other data, or of a replay.

    >>> tour(SetProgress("evaluate clean", 5, 20))
    'evaluate clean: batch 5 of 20 (25 %)'
    >>> tour(SetProgress("on the way back to epoch 1, train, step 9", 0, 9, unit="step"))
    'on the way back to epoch 1, train, step 9: step 0 of 9 (0 %)'
    """
    of = f" of {count(event.total)} ({percent(event.step / event.total)})" if event.total else ""
    return f"{one_line(event.what)}: {event.unit} {count(event.step)}{of}"
