"""The renderer of a notebook.

It shows a panel on a page, and lines in a program that collects outputs. Below both it puts a picture that
needs no running kernel, and below a panel a table.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePath
from threading import Lock, Timer
from time import monotonic
from typing import Any
from uuid import uuid4

from ..event import EpochEnded, Evaluated, Event, Notice, RunOpened, Sink, StatusChanged
from ..renderer.plain import PlainRenderer
from . import notebook
from .notebook import BundleError
from .panel import Panel
from .shown_learner import ShownLearner
from .still_panel import Still

LONG = 1.0
"""Seconds of training after which the picture is always drawn again; manual steps take less time."""
_OVER = ("paused", "failed", "stopped", "finished")


def display_of_page() -> NotebookRenderer | None:
    """The panel for a learner with another renderer or none; None if the front end is not a page."""
    return NotebookRenderer() if notebook.front_end() == "page" else None


class NotebookRenderer:
    """Shows a learner in a notebook: `renderer("panel")`, the default there.

    On a page (JupyterLab, Notebook 7, VS Code, Colab, marimo) it shows the live panel. Under nbclient,
    nbconvert and papermill, which have no user at a page, it writes lines. Below, it draws a picture of the
    curves with the evaluated sets, at epochs, pauses and the end, and below a panel the epochs as a table. A
    page hides both while the panel lives; a saved notebook shows them. marimo saves no outputs, and gets
    neither.
    """

    def __init__(self) -> None:
        self._panel: Panel | None = None
        self._lines: Sink | None = None
        self._still: Still | None = None
        self._learner: weakref.ref[ShownLearner] | None = None
        self._opened: RunOpened | None = None
        self._name = f"notebook-learner-{uuid4().hex}"
        self._cell = ""
        """The cell in which it appeared last."""
        self._fitting = False
        self._since = monotonic()
        """The time at which the learner began to run."""
        self._frozen = False
        self._begins = False
        """Whether a run was opened and has taken no step yet."""
        self._behind = False
        """Whether the picture is drawn again when the cell ends."""
        self._drawing = Lock()
        self._drawn = -1
        """The training step that the picture shows."""
        self._soon: Timer | None = None

    def __repr__(self) -> str:
        return "NotebookRenderer()"

    def attach(self, learner: ShownLearner, /) -> None:
        """Show this learner, without keeping it alive. The panel closes when the learner is gone."""
        self._learner = weakref.ref(learner)
        if notebook.front_end() == "page":
            self._panel = self._opened_panel(learner)
        if self._panel is None:
            self._lines = self._lines or PlainRenderer()

    def _opened_panel(self, learner: ShownLearner) -> Panel | None:
        from .shell import servicing

        try:
            from .panel_view import View
        except BundleError as missing:
            self._lines = PlainRenderer()
            self._lines.handle(Notice(str(missing), "warning"))
            return None
        panel = Panel(View, servicing())
        panel.attach(learner)
        panel.before_saving = _weakly_before_saving(self)
        # Not when the process ends: the page hears of that itself, and says how to go on.
        weakref.finalize(learner, panel.leave).atexit = False
        return panel

    def handle(self, event: Event, /) -> None:
        """Take one event."""
        for sink in (self._panel, self._lines):
            if sink is not None:
                sink.handle(event)
        if isinstance(event, StatusChanged):
            self._begins = False
        match event:
            case RunOpened():
                self._opened, self._begins = event, True
            case Notice() if (self._begins or event.answers) and self._panel is not None:
                # The panel keeps only the last log lines. The fate of an earlier run, and the reason why
                # nothing was done, must stay longer.
                notebook.say(event.text if event.level == "info" else f"{event.level}: {event.text}")
            case EpochEnded() if self._panel is not None:  # else it would stand between the lines of epochs
                self._draw(final=False)
            case StatusChanged(status="running"):
                self._since = monotonic()
            case StatusChanged() if event.status in _OVER and (self._fitting or not notebook.cell()):
                # A button may have started this run, long after the training cell was over. A call in a
                # later cell prints the learner's position; the picture stays as its own cell left it.
                if self._fitting or monotonic() - self._since > LONG:
                    self._draw(final=True)
                else:
                    self._draw_soon()
                self._fitting = False
            case Evaluated():
                self._draw_later()
            case _:
                pass

    def show(self) -> None:
        """Appear below the running cell, once, because it trains."""
        self._fitting = True
        if self._is_new_here():
            if self._still is None or self._drawn >= 0:  # the picture of an earlier fit stays as it is
                self._still, self._drawn = Still() if notebook.keeps_outputs() else None, -1
            self._publish(self._still)

    def appear(self) -> bool:
        """Appear below the running cell, once, because it shows the learner; its picture is that of the cell
        before. Return False if it does not, and only the panel can be shown."""
        if self._panel is None or not self._is_new_here():
            return False
        learner = None if self._learner is None else self._learner()
        if self._still is None and notebook.keeps_outputs():
            self._still = Still(text=repr(learner))
        self._publish(self._still)
        if self._drawn < 0 and learner is not None and learner.status != "running":
            self._draw_soon()  # of what was trained before; not now, because the user waits for the cell
        return True

    def _is_new_here(self) -> bool:
        return not self._frozen and notebook.cell() not in ("", self._cell)

    def _publish(self, still: Still | None) -> None:
        self._cell = notebook.cell()
        if self._panel is not None:
            # A front end that cannot show the widget shows this text: picture and table say more.
            notebook.publish({"text/plain": "", **self._panel.wire.bundle()}, self._name)
            if still is not None:
                # Right behind each other, as the style in the table expects them: panel, table, picture.
                notebook.publish(self._panel.epochs(), f"{self._name}-epochs")
                still.begin()

    def blocking(self) -> AbstractContextManager[Callable[[], None]]:
        """Return a context in which a cell trains or waits."""
        return nullcontext(_nothing) if self._panel is None else self._panel.blocking()

    def bundle(self) -> dict[str, Any]:
        """Return the panel, for a place that is no cell of its own."""
        return {} if self._panel is None or self._frozen else self._panel.wire.bundle()

    def freeze(self) -> None:
        """Draw the picture and the table now, and close the panel."""
        if notebook.keeps_outputs() and self._still is None:
            self._still = Still()
        self._draw(final=True)
        if self._panel is not None and not self._frozen:
            if self._cell:  # else a saved notebook would report a missing widget
                notebook.publish({"text/plain": ""}, self._name, update=True)
            self._panel.close()
        self._frozen = True

    def _draw_soon(self) -> None:
        """Draw once after many short runs: a hand presses Step faster than a picture is drawn."""
        if self._soon is not None:
            self._soon.cancel()
        self._soon = Timer(LONG, lambda: self._draw(final=True))
        self._soon.daemon = True
        self._soon.start()

    def _draw_later(self) -> None:
        """Draw once for all sets of a cell: a picture takes time, and a cell may evaluate a set per step."""
        if self._still is None or self._frozen or self._behind:
            return
        self._behind = True
        if not notebook.at_end_of_cell(self._catch_up):
            self._catch_up()

    def _catch_up(self) -> None:
        self._behind = False
        self._draw(final=True)

    def _draw(self, *, final: bool) -> None:
        learner = None if self._learner is None else self._learner()
        if learner is None or self._still is None or self._frozen:
            return
        infos = None if self._opened is None else self._opened.metrics
        run = "" if self._opened is None else f"{PurePath(self._opened.directory).name} · "
        # During a run the picture is drawn from time to time, and names the step that it shows.
        status = "as of" if learner.status == "running" else f"{learner.status} at"
        headline = f"{run}{status} {learner.position}"
        history = learner.history
        sets = history.evaluated.values()
        summary = str(learner.summary())
        with self._drawing:
            drawn = self._still.update(history, infos, summary, headline, evaluated=sets, final=final)
        self._drawn = learner.position.iteration if drawn else self._drawn
        if drawn and self._panel is not None:
            notebook.publish(self._panel.epochs(), f"{self._name}-epochs", update=True)

    def _before_saving(self) -> bool:
        """Draw what is measured by now, if the picture is of an earlier step; return whether it was."""
        learner = None if self._learner is None else self._learner()
        if learner is None or self._still is None or self._drawn == learner.position.iteration:
            return False
        self._draw(final=True)
        return True


def _weakly_before_saving(renderer: NotebookRenderer) -> Callable[[], bool]:
    known = weakref.ref(renderer)

    def before_saving() -> bool:
        here = known()
        return here is not None and here._before_saving()

    return before_saving


def _nothing() -> None:
    pass
