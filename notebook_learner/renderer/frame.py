"""The lines of the live display.

This module computes the layout: a rich table of this size costs about 8 ms per refresh, this about 0.5 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from ..event import Notice, Split
from .history_source import SPLIT_STYLES, SPLITS
from .tally import Tally
from .text import count, encodable, number, one_line, percent, rate, remaining

Piece = tuple[str, str]
"""A text and its rich style."""
Line = list[Piece]

TRAIN, VALID, DIM = SPLIT_STYLES["train"], SPLIT_STYLES["valid"], "dim"
STATUS_STYLES = {
    "ready": "dim",
    "running": "green",
    "paused": "yellow",
    "failed": "bold red",
    "stopped": "magenta",
    "finished": "bold green",
}
LEVEL_STYLES = {"info": "dim", "warning": "yellow", "error": "bold red"}
LAST = "last batch"
"""The heading of the last training batch's values."""
_BAR_MOST, _BAR_LEAST = 50, 8


class Frame:
    """Finished lines, ready for rich."""

    def __init__(self, lines: list[Line], encoding: str = "utf-8") -> None:
        self._lines = lines
        self._encoding = encoding

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in self._lines:
            for text, style in line:
                yield Segment(encodable(text, self._encoding), console.get_style(style) if style else None)
            yield Segment.line()


def frame(tally: Tally, width: int, height: int, encoding: str = "utf-8") -> Frame:
    """The display of a run, no wider and no higher than the terminal."""
    ascii_only = not encoding.lower().startswith("utf")
    head = [_title(tally, width), *_bars(tally, width, ascii_only)]
    notices = [_fit([(notice_text(note), LEVEL_STYLES[note.level])], width) for note in tally.notices]
    table = _metrics(tally, width)
    room = height - 1 - len(head)  # the last line stays free, else the terminal scrolls
    lines = list(head)
    for block in (table, _texts(tally, width), notices):
        if block and room >= 3:
            shown = _cut(block, room - 1, width)
            lines += [[], *shown] if block is not notices or not tally.texts else shown
            room -= len(shown) + 1
    return Frame(lines[: max(height - 1, 1)], encoding)


def notice_text(notice: Notice) -> str:
    """A notice in one line, with its level as a word: not everyone sees a warning from its colour."""
    return one_line(notice.text) if notice.level == "info" else f"{notice.level}: {one_line(notice.text)}"


def _cut(block: list[Line], room: int, width: int) -> list[Line]:
    if len(block) <= room:
        return block
    left_out = len(block) - room + 1
    return [*block[: room - 1], _fit([(f"… and {left_out} more", DIM)], width)]


def _title(tally: Tally, width: int) -> Line:
    status: Piece = (tally.status, STATUS_STYLES[tally.status])
    room = width - cell_len(tally.status) - 2
    run = tally.run
    if run is None:
        return _spread([], status, width)
    line: Line = [(one_line(run.model), "bold"), (f" · {count(run.parameters)} parameters", DIM)]
    if run.directory:
        line.append((f" · {one_line(run.directory)}", DIM))
    return _spread(_fit(line, room), status, width)


# Bars


def _bars(tally: Tally, width: int, ascii_only: bool) -> list[Line]:
    left, pass_left = tally.seconds_left(), tally.pace.left_in_pass(tally.split, tally.step, tally.total)
    speed, samples = tally.pace.steps_per_second, tally.pace.samples_per_second
    running = tally.status == "running"
    facts = [f"{remaining(pass_left)} left" if running and pass_left is not None else ""]
    of_training = "" if tally.split == "train" else "training "
    facts += [f"{of_training}{rate(speed, 'steps')}" if speed else ""]
    facts += [rate(samples, "samples") if samples else ""]
    of = "" if tally.total is None else f"/{tally.total}"
    share = None if tally.total is None else tally.step / max(tally.total, 1)
    total_left = [f"{remaining(left)} left" if running and left is not None else ""]
    places = [f"{tally.epoch}/{tally.num_epochs}", f"{tally.step}{of}"]
    wide = max(map(len, places))
    bar = _bar_width(width, wide, facts)
    rows = [
        _Bar("epoch", places[0].rjust(wide), tally.progress, "green", total_left),
        _Bar(tally.split, places[1].rjust(wide), share, SPLIT_STYLES[tally.split], facts),
    ]
    return [row.line(width, bar, ascii_only) for row in rows]


def _bar_width(width: int, wide: int, facts: list[str]) -> int:
    """The width of both bars: the space that the label, the numbers and the facts leave."""
    fixed = 5 + 1 + wide + 2 + 2 + 5
    wish = width - fixed - sum(len(fact) + 3 for fact in facts if fact)
    return min(max(wish, min(20, width - fixed)), _BAR_MOST)


@dataclass(frozen=True, slots=True)
class _Bar:
    label: str
    place: str
    share: float | None
    style: str
    facts: list[str]

    def line(self, width: int, bar: int, ascii_only: bool) -> Line:
        line: Line = [(f"{self.label:<5} ", self.style), (f"{self.place}  ", "")]
        if self.share is not None:
            if bar >= _BAR_LEAST:
                line += bar_pieces(self.share, bar, self.style, ascii_only)
                line.append(("  ", ""))
            line.append((f"{percent(self.share):>5}", ""))
        used = sum(cell_len(text) for text, _ in line)
        for index, fact in enumerate(fact for fact in self.facts if fact):
            gap = "   " if index == 0 else " · "
            if used + len(gap) + len(fact) > width:
                break
            line.append((gap + fact, DIM))
            used += len(gap) + len(fact)
        return _fit(line, width)


def bar_pieces(share: float, width: int, style: str, ascii_only: bool) -> Line:
    """A bar of exactly `width` cells, filled by half cells."""
    halves = round(2 * width * min(max(share, 0.0), 1.0))
    full, half = divmod(halves, 2)
    if ascii_only:
        return [("#" * full, style), ("." * (width - full), DIM)]
    return [("━" * full + "╸" * half, style), ("─" * (width - full - half), DIM)]


# Metrics


@dataclass(frozen=True, slots=True)
class _FrameColumn:
    heading: str
    cells: list[str]
    style: str
    right: bool = True

    @property
    def width(self) -> int:
        return max(map(cell_len, [self.heading, *self.cells]))

    @property
    def empty(self) -> bool:
        return not any(self.cells)


def _metrics(tally: Tally, width: int) -> list[Line]:
    names = tally.names()
    if not names:
        return []
    label = _FrameColumn("metric", [one_line(name) for name in names], "bold", right=False)
    columns = _fitting(tally, names, label, width)
    room = width - sum(column.width + 2 for column in columns)
    name_width = max(min(label.width, room), 1)
    lines = [_row(label.heading, name_width, DIM, [(c.heading, c.width, DIM, c.right) for c in columns])]
    for index, name in enumerate(label.cells):
        cells = [(column.cells[index], column.width, column.style, column.right) for column in columns]
        lines.append(_row(name, name_width, label.style, cells))
    return [_fit(line, width) for line in lines]


def _fitting(tally: Tally, names: list[str], label: _FrameColumn, width: int) -> list[_FrameColumn]:
    """The columns that fit. The last ones of `wanted` are dropped first."""
    made = {column.heading: column for column in _columns(tally, names)}
    averages = [_epoch_of(tally, split) for split in SPLITS]
    wanted = [*averages, "best valid", "", LAST]
    shown = {heading: made[heading] for heading in wanted if heading in made and not made[heading].empty}
    for heading in reversed(wanted):
        least = min(label.width, max(12, width // 4))
        if least + sum(column.width + 2 for column in shown.values()) <= width:
            break
        shown.pop(heading, None)
    return [column for heading, column in made.items() if heading in shown]


def _columns(tally: Tally, names: list[str]) -> list[_FrameColumn]:
    return [
        _FrameColumn("", [one_line(tally.unit(name)) for name in names], DIM, right=False),
        _FrameColumn(LAST, [_shown(tally.last(name, "train")) for name in names], TRAIN),
        _FrameColumn(
            _epoch_of(tally, "train"), [_shown(tally.average(name, "train")) for name in names], TRAIN
        ),
        _FrameColumn(
            _epoch_of(tally, "valid"), [_shown(tally.average(name, "valid")) for name in names], VALID
        ),
        _FrameColumn("best valid", [_best(tally, name) for name in names], ""),
    ]


def _epoch_of(tally: Tally, split: Split) -> str:
    """The epoch of the averages: a finished one, or one that still runs."""
    return f"{split} {'so far' if tally.open(split) else 'avg'}"


def _shown(value: float | None) -> str:
    return "" if value is None else number(value)


def _best(tally: Tally, name: str) -> str:
    best = tally.best(name)
    return "" if best is None else f"{number(best[0])} (epoch {best[1]})"


def _row(name: str, width: int, style: str, cells: Iterable[tuple[str, int, str, bool]]) -> Line:
    line: Line = [(_clip(name, width, pad=True), style)]
    for text, size, cell_style, right in cells:
        space = " " * (size - cell_len(text))
        line.append(("  " + (space + text if right else text + space), cell_style))
    return line


def _texts(tally: Tally, width: int) -> list[Line]:
    return [
        _fit([(f"{one_line(name)}  ", "bold"), (one_line(text), DIM)], width)
        for name, text in tally.texts.items()
    ]


# Fitting text into cells (a wide character takes two)


def _clip(text: str, width: int, pad: bool = False) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, max(width - 1, 0)) + "…"
    return text + " " * (width - cell_len(text)) if pad else text


def _fit(line: Line, width: int) -> Line:
    fitted: Line = []
    room = max(width, 0)
    for text, style in line:
        if room <= 0:
            break
        clipped = _clip(text, room)
        fitted.append((clipped, style))
        room -= cell_len(clipped)
    return fitted


def _spread(left: Line, right: Piece, width: int) -> Line:
    used = sum(cell_len(text) for text, _ in left) + cell_len(right[0])
    return _fit([*left, (" " * max(width - used, 1), ""), right], width)
