"""The renderers without a live display: plain lines for pipes, CI and notebooks, and nothing."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from ..event import (
    EpochEnded,
    Evaluated,
    Event,
    MetricBlock,
    Notice,
    Rewound,
    RunOpened,
    SetProgress,
    SplitStarted,
    StatusChanged,
)
from .summary import EpochRows, because, evaluation, news, tour, whereabouts
from .tally import Tally
from .text import count, encodable, number, one_line, percent, rate, remaining


class PlainRenderer:
    """Writes one line per epoch, and progress lines during a long epoch.

    Args:
        file: the stream to write to; default: `sys.stdout`, read anew for every line.
        progress_seconds: seconds of an epoch without a line, after which a progress line follows.

    A stream that is closed, or that cannot write a character, never stops the training.
    """

    def __init__(self, file: TextIO | None = None, *, progress_seconds: float = 30.0) -> None:
        self._file = file
        self._progress_seconds = progress_seconds
        self._tally = Tally()
        self._rows = EpochRows()
        self._spoke = time.monotonic()
        self._announced = False
        self._gone = False

    def __repr__(self) -> str:
        return "PlainRenderer()"

    def handle(self, event: Event, /) -> None:
        """Take one event, and write a line if it needs one."""
        begins = self._tally.tour is None
        self._tally.handle(event)
        match event:
            case MetricBlock():
                if time.monotonic() - self._spoke >= self._progress_seconds:
                    self._write(self._progress())
            case SplitStarted():
                self._announce()
            case EpochEnded():
                self._epoch(event.epoch)
            case StatusChanged():
                self._status(event)
            case Notice():
                mark = "" if event.level == "info" else f"{event.level}: "
                self._write(mark + one_line(event.text))
            case Rewound():
                self._write(f"now at {self._tally.place()}{because(event.reason)}")
            case SetProgress(over=False):
                # The user asked for a position and waits for it: say at once that it takes a while.
                waited_for = begins and event.unit == "step"
                if waited_for or time.monotonic() - self._spoke >= self._progress_seconds:
                    self._write(f"  {tour(event)}")
            case Evaluated():
                self._write(evaluation(event))
            case RunOpened():
                self._announced = False
            case _:
                pass

    def _announce(self) -> None:
        """One line when the run starts, not when the learner is built."""
        run = self._tally.run
        if self._announced or run is None:
            return
        self._announced = True
        self._rows.begin_anew()
        epochs = f"{count(run.num_epochs)} epoch{'' if run.num_epochs == 1 else 's'}"
        where = f" · {one_line(run.directory)}" if run.directory else ""
        self._write(f"{one_line(run.model)} · {count(run.parameters)} parameters · {epochs}{where}")

    def _epoch(self, epoch: int) -> None:
        for line in self._rows.next(self._tally, epoch):
            self._write(line)

    def _progress(self) -> str:
        tally = self._tally
        done = "" if not tally.total else f" of {count(tally.total)} ({percent(tally.step / tally.total)})"
        parts = [f"  epoch {tally.epoch}, {tally.split}, step {count(tally.step)}{done}"]
        values = []
        for name in tally.names():
            info, value = tally.info(name, tally.split), tally.average(name, tally.split)
            if info is not None and info.plotted and value is not None:
                values.append(f"{one_line(name)} {number(value, one_line(info.unit))}")
        parts += [f"so far: {values[0]}", *values[1:]] if values else []
        speed = tally.pace.steps_per_second
        left = tally.pace.left_in_pass(tally.split, tally.step, tally.total)
        of_training = "" if tally.split == "train" else "training "
        parts += [] if speed is None else [of_training + rate(speed, "steps")]
        parts += [] if left is None else [f"{remaining(left)} left"]
        return " · ".join(parts)

    def _status(self, event: StatusChanged) -> None:
        if event.status in ("ready", "running"):
            self._announce()
            self._spoke = time.monotonic()  # a pause does not count as silence
            return
        self._write(event.status + whereabouts(self._tally))
        summary = news(self._tally)
        if summary is not None:
            for line in ("", *str(summary).splitlines(), ""):
                self._write(line)
            self._rows.begin_anew()

    def _write(self, line: str) -> None:
        self._spoke = time.monotonic()
        file = sys.stdout if self._file is None else self._file
        if self._gone or file is None:
            return
        text = line.rstrip() + "\n"
        try:
            try:
                file.write(text)
            except UnicodeEncodeError:
                file.write(encodable(text, file.encoding))
            file.flush()
        except BrokenPipeError:
            self._gone = True  # `python train.py | head`: the reader has ended; the training goes on
        except (OSError, ValueError):
            pass  # a full disk or a closed file costs this line; the next may work


class SilentRenderer:
    """Shows nothing: for hyper-parameter searches and tests. Logs and history are kept as usual.

    >>> from notebook_learner.event import Notice
    >>> SilentRenderer().handle(Notice("this is not shown"))
    """

    def handle(self, event: Event, /) -> None:
        """Ignore the event."""

    def __repr__(self) -> str:
        return "SilentRenderer()"
