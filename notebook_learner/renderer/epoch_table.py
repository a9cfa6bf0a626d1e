"""A table with a row for each epoch: train and valid side by side under each metric, columns aligned."""

from __future__ import annotations

from ..event import Split
from .history_source import SPLITS
from .numbers import duration, number
from .tally import Tally
from .text import one_line

_CELL = 9
"""Wide enough for `1.234e-12`, so that columns do not shift."""
_TIME = 10
_GAP = "   "


def header(tally: Tally) -> list[str]:
    """The two header lines: the numeric metrics, and the splits below them."""
    over, under = [" " * _left(tally)], [f"{'epoch':>{_left(tally)}}"]
    for name, splits in _groups(tally):
        width = _width(tally, name, splits)
        over.append(f"{_title(tally, name):^{width}}")
        under.append("  ".join(f"{split:>{_CELL}}" for split in splits).rjust(width))
    return [_GAP.join(over).rstrip(), _GAP.join([*under, f"{'time':>{_TIME}}"])]


def row(tally: Tally, epoch: int) -> str:
    """The final values of an epoch, and the time its steps took."""
    cells = [f"{f'{epoch}/{tally.num_epochs}':>{_left(tally)}}"]
    for name, splits in _groups(tally):
        values = "  ".join(f"{_final(tally, name, split, epoch):>{_CELL}}" for split in splits)
        cells.append(values.rjust(_width(tally, name, splits)))
    return _GAP.join([*cells, f"{duration(tally.pace.epoch(epoch)):>{_TIME}}"])


def _groups(tally: Tally) -> list[tuple[str, list[Split]]]:
    """The metrics with the splits they are plotted for."""
    plotted = {key for key, info in tally.infos.items() if info.plotted}
    groups = [(name, [split for split in SPLITS if (name, split) in plotted]) for name in tally.names()]
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
