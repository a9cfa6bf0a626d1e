"""The panel of a run that another process trains or has trained: the same page, without buttons."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..event import (
    EpochEnded,
    MetricBlock,
    MetricInfo,
    Rewound,
    RunOpened,
    Split,
    SplitEnded,
    Status,
    StatusChanged,
    cut,
)
from ..logger.branches import read_branches
from ..store.layout import SPLITS
from ..widget.branch_lines import LeftBranches
from .branches import own_passes
from .clock import Clock
from .evaluations import Evaluation
from .follow import Block, EpochValues, News, TakenBack, follow
from .run_status import Standing, last_lines

if TYPE_CHECKING:
    from ..event.values import Record
    from ..widget.panel import Panel
    from .recorded_run import RecordedRun

POLL = 0.5
"""Seconds between two reads of the files."""
_TAIL = 1 << 14
"""Bytes at the end of the application log whose lines the panel shows."""
_GONE = "the process that trained it is gone; .checkpoint('latest') goes on from its last checkpoint"


class Watching:
    """Shows a run's files in a panel, from the run's beginning, as long as the panel exists."""

    def __init__(self, run: RecordedRun, panel: Panel) -> None:
        self.panel = panel
        self._run = run
        self._over = threading.Event()
        self._before: dict[int, int] = {}
        """Training steps before each epoch."""
        self._trained = 0
        self._at: tuple[int, Split, int] = (1, "train", 0)
        self._told: Any = None
        self._known: RunOpened | None = None
        self._clock = Clock()
        """When steps were taken, as the files said when they were opened."""

    def start(self) -> None:
        """Show what the files hold, and go on in the background: even a run that has ended may go on."""
        before = self._run.signature()  # what is written from now on may be missing in what is read below
        self._show_files()
        self._open()
        self._again(self._run.history.snapshot())
        for evaluated in self._run.history.evaluated.values():
            self._tell(evaluated)
        self._stand()
        threading.Thread(
            target=self._watch, args=(before,), name="notebook_learner watcher", daemon=True
        ).start()

    def stop(self) -> None:
        """Stop: the panel is not needed any more."""
        self._over.set()

    def _watch(self, before: Any) -> None:
        seen = None if self._run.status == "running" else before
        while not self._over.is_set():
            now = self._run.signature()
            if now == seen:
                self._over.wait(POLL)
                continue
            seen = now
            self._follow()

    def _follow(self) -> None:
        self._open()
        self._again(())  # from the beginning: what came meanwhile is not missed
        if self._run.status == "running":
            self._stand()
        for news in follow(self._run.directory, POLL, enough=self._enough):
            self._take(news)
        self._stand()

    def _enough(self) -> bool:
        self._stand()  # after all values were sent: the log is ahead of them
        if self._over.is_set() or self._run.status not in ("running", "paused"):
            return True
        return self._opened() != self._known  # a file that came after the first values describes its metrics

    def _take(self, news: News) -> None:
        match news:
            case Block():
                self._block(news)
            case EpochValues():
                steps = self._at[2]
                self._tell(SplitEnded(news.epoch, news.split, steps, news.values))
            case Evaluation():
                evaluated = self._run.history.evaluated.get(news.name)
                if evaluated is not None:  # or it was deleted since
                    self._tell(evaluated)
            case TakenBack():
                # Only up to there: what follows is sent again, step by step.
                record = self._run.history.snapshot()
                self._again(cut(record, news.epoch, news.split, news.step))
                self._show_branches()

    def _block(self, block: Block) -> None:
        last = block.first + block.count - 1
        if block.epoch > self._at[0] and self._known is not None:
            self._tell(EpochEnded(self._at[0], self._known.num_epochs))  # no file says when
        if block.split == "train":
            before = self._before.setdefault(block.epoch, self._trained)
            self._trained = before + last
        texts = {name: told[-1] for name, told in block.texts.items() if told}
        self._at = (block.epoch, block.split, last)
        steps = MetricBlock(
            block.epoch, block.split, block.first, block.count, self._trained, block.columns, texts, 0.0
        )
        self._tell(replace(steps, seconds=self._clock.seconds(steps)))

    def _again(self, record: Record) -> None:
        """Send everything again, from what was measured."""
        self._before, self._trained = {}, 0
        self._at = (1, "train", 0)
        for past in record:
            self._at = (past.epoch, past.split, past.steps)
            if past.split == "train":
                self._before[past.epoch] = self._trained
                self._trained += past.steps
        self._tell(Rewound(*self._at, record, 0, 0))

    def _stand(self) -> None:
        standing = self._run.status
        status, reason = _shown(standing)
        if (status, self._at) == self._told:
            return
        self._told = (status, self._at)
        self._show_files()
        self._tell(StatusChanged(status, *self._at, None, reason))

    def _show_files(self) -> None:
        self.panel.show_files(self._run.checkpoints, last_lines(self._run.directory, _TAIL)[-100:])

    def _show_branches(self) -> None:
        directory, known = self._run.directory, () if self._known is None else self._known.metrics
        self.panel.show_branches(
            LeftBranches(
                read_branches(directory), lambda branch: own_passes(directory, branch, known), lambda _: 0
            )
        )

    def _open(self) -> None:
        self._known, self._told = self._opened(), None
        self._clock = self._run._clock()
        self._tell(self._known)
        self._show_branches()

    def _opened(self) -> RunOpened:
        run = self._run.run
        directory = os.fspath(self._run.directory)
        if run is None:
            found = [MetricInfo(name, split) for split in SPLITS for name in self._run.metrics(split)]
            return RunOpened(directory, "an unknown model", 0, 0, tuple(found))
        return RunOpened(directory, run.model, run.parameters, run.num_epochs, run.metrics, run.settings)

    def _tell(self, event: Any) -> None:
        self.panel.handle(event)


def watched(run: RecordedRun) -> Panel:
    """The panel of a run, which gets new values for as long as the `Artifacts` object exists."""
    from ..widget.panel import Panel
    from ..widget.panel_view import View

    panel = Panel(View)
    watching = Watching(type(run)(run.directory), panel)
    watching.start()
    weakref.finalize(run, _end, watching.stop, panel.close)
    return panel


def _end(*endings: Callable[[], None]) -> None:
    for ending in endings:
        ending()


def _shown(standing: Standing) -> tuple[Status, str]:
    return ("stopped", _GONE) if standing == "unfinished" else (standing, "")
