"""`learner.panel`: what the panel shows beside the run, and how large it is."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

from ..artifacts import Artifacts
from ..artifacts.run_status import runs_beside
from ..errors import StateError, names_descriptors
from ..event import Split
from ..store.layout import SPLITS
from ..widget.branch_lines import OtherRun
from .core import LearnerCore


class LearnerPanel:
    """What the panel of a learner shows beside the run itself. As a cell's last line it is the panel.

    Every display of the learner shows the same.
    """

    def __init__(self, learner: LearnerCore) -> None:
        self._learner = weakref.ref(learner)
        self._laid_over: dict[Path, OtherRun] = {}
        self.is_compact = False
        """Whether the panel is a strip of 120 pixels."""
        self._changes = 0
        """Grows when another run is laid over or taken away; displays look at it every 1.5 seconds."""

    @property
    def overlays(self) -> tuple[OtherRun, ...]:
        """The runs that lie over this one, in the order in which they came."""
        return (*self._laid_over.values(),)

    @names_descriptors
    def overlay(self, *runs: Artifacts | str | os.PathLike[str]) -> None:
        """Draw the curves of other runs behind those of this one; without a run, take all away.

        A run is read once, now: for the later steps of a run that still trains, lay it over again. The
        panel's own list offers the runs in the same folder.
        """
        found = dict(map(self._read, runs))
        self._laid_over = {**self._laid_over, **found} if runs else {}
        self._changes += 1

    @names_descriptors
    def compact(self, on: bool = True) -> None:
        """Show the panel as a strip of 120 pixels, for a notebook with several learners; `compact(False)`
        shows all of it. The panel has a button for it, too."""
        self.is_compact = bool(on)

    def _lay_over(self, name: str, shown: bool) -> str:
        """Lay over a run that the page offers, or take it away. Return a line that says so."""
        if shown:
            if name not in self._offered:
                raise StateError(f"there is no run {name!r} in the folder of this one")
            self.overlay(self._folder / name)
            return f"run {name} is laid over"
        left = {path: run for path, run in self._laid_over.items() if run.name != name}
        if len(left) == len(self._laid_over):
            raise StateError(f"no run {name!r} is laid over")
        self._laid_over = left
        self._changes += 1
        return f"run {name} is taken away"

    @property
    def _offered(self) -> list[str]:
        """The names of the other runs in the same folder."""
        return [path.name for path in runs_beside(self._own)]

    def __repr__(self) -> str:
        size = "compact" if self.is_compact else "whole"
        over = ", ".join(run.name for run in self.overlays)
        return f"LearnerPanel({size}{f'; laid over: {over}' if over else ''})"

    def _ipython_display_(self) -> None:
        learner: Any = self._alive
        learner._ipython_display_()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        learner: Any = self._alive
        return {**learner._repr_mimebundle_(include, exclude), "text/plain": repr(self)}

    @property
    def _alive(self) -> LearnerCore:
        learner = self._learner()
        if learner is None:
            raise StateError("the learner of this panel is gone; keep it in a variable")
        return learner

    @property
    def _own(self) -> Path:
        return Path(os.path.abspath(self._alive._opened.directory))

    @property
    def _folder(self) -> Path:
        return self._own.parent

    def _read(self, given: Artifacts | str | os.PathLike[str]) -> tuple[Path, OtherRun]:
        run = given if isinstance(given, Artifacts) else Artifacts(given)
        path = Path(os.path.abspath(run.directory))
        name = path.name if path.parent == self._folder else os.fspath(run.directory)
        history = run.history
        names: dict[Split, set[str]] = {split: set(history.metrics(split)) for split in SPLITS}
        return path, OtherRun.of(name, history.snapshot(), names)
