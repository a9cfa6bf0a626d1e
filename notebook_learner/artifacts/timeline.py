"""What happened to a run, and when: pauses, failures, rewinds, checkpoints, breakpoints, edits, forks,
evaluations."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..checkpoint.info import CheckpointInfo
from ..errors import DamagedError, NoDescriptorsError
from ..event.values import Evaluated, Event, Marked, Rewound, RunOpened, Split, StatusChanged
from ..logger.file import evaluated_text
from ..store import durable
from ..store.log_lines import lines_between
from .claims import LARGEST, Claims
from .tables import Table

KINDS = (
    "opened",
    "paused",
    "failed",
    "stopped",
    "finished",
    "rewound",
    "checkpoint",
    "breakpoint",
    "edited",
    "forked",
    "evaluated",
)

MOST_MARKS = 1 << 17
"""The most marks of a timeline: only the latest so many are kept."""
_WHOLE = 1 << 25
_FIRST = 1 << 16
_LAST = 1 << 24
"""Bytes of an application log that are read: all of it, or so many at its beginning and its end."""
_LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z  ?(?:INFO|WARN|ERROR) +(.*)")
_PLACE = re.compile(
    r"(?:(paused|failed|stopped|finished|breakpoint|edited|forked|evaluated) at|(rewound) to) "
    r"epoch (\d{1,18}), (train|valid), step (\d{1,18})(?: of \d+)?(?:: (.*))?"
)
_OPENED = re.compile(r"run opened in .*?; (.*?) with \d+ parameters; .*")
_SAVED = re.compile(r"checkpoint (\d{1,18})(?:-(valid)-(\d{1,18})|-(\d{1,18}))? (?:was )?saved\b.*", re.I)


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """An event of a run, with its place in the training and its time.

    >>> TimelineMark("paused", 3, "train", 117, when=1795241581.0, text="asked to").to_json()
    ['paused', 3, 'train', 117, 1795241581.0, 'asked to']
    """

    kind: str
    """One of `KINDS`."""
    epoch: int
    split: Split
    step: int
    when: float
    """Seconds since 1970."""
    text: str = ""
    """The reason; the label of a checkpoint; the model of a run that opened; an evaluated set's values."""

    def to_json(self) -> list[Any]:
        """The same as plain JSON values."""
        return [self.kind, self.epoch, self.split, self.step, self.when, self.text]

    @classmethod
    def from_json(cls, value: object) -> TimelineMark:
        """Read the mark that `to_json` wrote.

        Raises:
            DamagedError: it cannot have written this.
        """
        row = value if isinstance(value, list) and len(value) == 6 else [None] * 6
        names = ("kind", "epoch", "split", "step", "when", "text")
        told = Claims(dict(zip(names, row, strict=True)), "a mark of an artifacts.h5")
        if told.text("kind") not in KINDS:
            told.refuse("kind", f"one of {', '.join(KINDS)}")
        return cls(
            told.text("kind"),
            told.whole("epoch", 0, LARGEST),
            told.split("split"),
            told.whole("step"),
            told.number("when"),
            told.text("text"),
        )


class TimelineTable(list[TimelineMark]):
    """What happened to a run, in its order. Prints as a table."""

    def _table(self) -> Table:
        rows = [
            (
                datetime.fromtimestamp(each.when).strftime("%Y-%m-%d %H:%M:%S") if each.when else "-",
                f"epoch {each.epoch}, {each.split}, step {each.step}",
                each.kind,
                each.text,
            )
            for each in self
        ]
        return Table("", ("when", "at", "what", ""), rows, (False, False, False, False))

    def __repr__(self) -> str:
        return self._table().text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self._table().html()


def mark_of(event: Event, now: float) -> TimelineMark | None:
    """The mark of an event on the timeline; None for most events."""
    if isinstance(event, StatusChanged) and event.status in KINDS:
        return TimelineMark(event.status, event.epoch, event.split, event.step, now, event.reason)
    if isinstance(event, Rewound):
        return TimelineMark("rewound", event.epoch, event.split, event.step, now, event.reason)
    if isinstance(event, Marked):
        return TimelineMark(event.kind, event.epoch, event.split, event.step, now, event.text)
    if isinstance(event, Evaluated):
        return TimelineMark("evaluated", event.epoch, event.split, event.step, now, evaluated_text(event))
    if isinstance(event, RunOpened):
        return TimelineMark("opened", 1, "train", 0, now, event.model)
    return None


def mark_of_checkpoint(info: CheckpointInfo) -> TimelineMark:
    """The mark of a checkpoint on the timeline."""
    return TimelineMark("checkpoint", info.epoch, info.split, info.step, info.saved_at, info.label)


def read_timeline(experiment_log: Path, problems: list[str] | None = None) -> list[TimelineMark]:
    """Read the latest `MOST_MARKS` marks of a run from its application log. What cannot be read is skipped
    and reported. Of a log of over 32 MiB only the first line and the end are read."""
    problems = [] if problems is None else problems
    marks: deque[TimelineMark] = deque(maxlen=MOST_MARKS)
    try:
        with durable.opened(experiment_log) as file:
            start = 0 if file.size <= _WHOLE else file.size - _LAST
            if start:
                problems.append(
                    f"{experiment_log} has {file.size:,} bytes; of those before the last {_LAST:,} only the "
                    "first line is read"
                )
                head = next(lines_between(file, 0, min(_FIRST, file.size)))
                marks += parse_timeline(line.decode(errors="replace") for line in head[:1])
            for lines in lines_between(file, start, file.size):
                marks += parse_timeline(line.decode(errors="replace") for line in lines)
    except FileNotFoundError:
        return []
    except NoDescriptorsError:
        raise
    except OSError as error:
        problems.append(f"{experiment_log}: {error.strerror or error}")
    except DamagedError:
        problems.append(f"{experiment_log} was cut while it was read")
    return list(marks)


def parse_timeline(lines: Iterable[str]) -> list[TimelineMark]:
    """Find the marks among the lines of an application log; all other lines are skipped.

    >>> parse_timeline(["2026-11-21T05:47:00.123Z  INFO  paused at epoch 3, train, step 117: asked to"])
    [TimelineMark(kind='paused', epoch=3, split='train', step=117, when=1795240020.123, text='asked to')]
    """
    marks = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        with suppress(ValueError):  # the 31st of February
            when = datetime.fromisoformat(_to_microseconds(match[1])).replace(tzinfo=timezone.utc)
            mark = _mark(match[2], when.timestamp())
            if mark is not None:
                marks.append(mark)
    return marks


def _mark(text: str, when: float) -> TimelineMark | None:
    place = _PLACE.fullmatch(text)
    if place is not None:
        split: Split = "train" if place[4] == "train" else "valid"
        return TimelineMark(place[1] or place[2], int(place[3]), split, int(place[5]), when, place[6] or "")
    opened = _OPENED.fullmatch(text)
    if opened is not None:
        return TimelineMark("opened", 1, "train", 0, when, opened[1])
    saved = _SAVED.fullmatch(text)
    if saved is None:
        return None
    label = "-".join(part for part in saved.groups() if part)
    return TimelineMark(
        "checkpoint",
        int(saved[1]),
        "valid" if saved[2] else "train",
        int(saved[3] or saved[4] or 0),
        when,
        label,
    )


def _to_microseconds(time: str) -> str:
    """Python 3.10 reads only three or six digits after the point."""
    whole, _, rest = time.partition(".")
    return f"{whole}.{rest:0<6}"
