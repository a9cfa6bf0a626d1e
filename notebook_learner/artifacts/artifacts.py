"""`Artifacts`: a run's directory, read, checked and repaired."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ..checkpoint.info import CheckpointInfo
from ..errors import names_descriptors
from ..store import durable
from . import verification
from .branches import RecordedBranch, passes_of_branches
from .certificate import Certificate, problems_with, read_certificate
from .diff import RunDifference, Side, difference
from .index import encode_index
from .live_index import FILE
from .recorded_run import RecordedRun
from .run_status import is_run, require_run
from .timeline import TimelineMark, mark_of_checkpoint
from .varied import edits_of

if TYPE_CHECKING:
    from ..widget.panel import Panel
    from .compare import RunComparison
    from .verification import Report


Given: TypeAlias = "Artifacts | RecordedBranch | str | os.PathLike[str]"


class Artifacts(RecordedRun):
    """A run, read from its directory in any process, also while another process trains it.

    Each value is read from the files when you ask for it, which does not disturb the run. Only `repair`,
    `renew` and `export` write. Opening a stranger's run runs no code.

    >>> import tempfile, numpy as np
    >>> from notebook_learner.event import Column, MetricBlock, SplitEnded
    >>> from notebook_learner.logger.file import FileMetricLogger
    >>> directory = tempfile.TemporaryDirectory()
    >>> logger = FileMetricLogger(directory.name)
    >>> loss = Column(np.array([0.75, 0.25]), np.array([32.0, 32.0]))
    >>> logger.handle(MetricBlock(1, "train", 1, 2, 2, {"Loss": loss}, {}, 0.1))
    >>> logger.handle(SplitEnded(1, "train", 2, {"Loss": 0.5}))
    >>> artifacts = Artifacts(directory.name)
    >>> artifacts.series("Loss", "train").value
    array([0.75, 0.25])
    >>> artifacts.epochs("Loss", "train"), artifacts.metrics("train")
    (array([0.5]), ('Loss',))
    >>> directory.cleanup()
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(directory)
        self._panel: Panel | None = None

    @names_descriptors
    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        told: dict[str, Any] = {"text/plain": repr(self), "text/html": self._repr_html_()}
        from ..widget.notebook import front_end  # only IPython asks

        if front_end() == "page" and is_run(self.directory):
            if self._panel is None:
                from .watch_panel import watched

                self._panel = watched(self)
            told.update(self._panel.wire.bundle())
        return told

    def verify(self, certificate: Certificate | str | os.PathLike[str] | None = None) -> Report:
        """Check every byte of the checkpoints, logs and artifacts.h5.

        The report is true if all is right; else it says what is wrong and what to do.

        Args:
            certificate: what `learner.verify(replay=True)` wrote, or the path of its file: check, too, that
                the run is the one that was replayed there, by measured values, weights and data.
        """
        require_run(self.directory)
        report = verification.verify(self.directory, self._infos())
        if certificate is None:
            return report
        told = read_certificate(certificate)
        data = self.recipe.get("data", {})
        found = [*problems_with(told, self.directory, self.history.snapshot(), data)]
        note = f"a certificate of {told.replayed} of {told.steps} training steps"
        return replace(report, notes=(*report.notes, note), problems=(*report.problems, *found))

    def repair(self) -> Report:
        """Remove what a killed process left unfinished, and write a missing `artifacts.h5` again.

        A damaged checkpoint stays as it is: its other files may be all that is left of the user's work.

        Raises:
            StoreError: a running process writes here.
        """
        require_run(self.directory)
        return verification.repair(self.directory, self._infos(), self._rebuild)

    def renew(self) -> None:
        """Write `artifacts.h5` again from logs and checkpoints. A run that trains does this for you."""
        require_run(self.directory)
        self._rebuild()

    @names_descriptors
    def export(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the whole run into one HDF5 file, and return its path.

        The file needs no other file. It has metadata, series, epoch values and every complete checkpoint
        with all of its tensors."""
        from .export import export

        require_run(self.directory)
        whole = [info for info in self._folder.list() if not info.damage]
        return export(Path(target), self._folder, whole, self._encoded, overwrite)

    @staticmethod
    @names_descriptors
    def compare(runs: Iterable[Artifacts | str | os.PathLike[str]]) -> RunComparison:
        """Compare several runs: `Artifacts.compare(["runs/a", "runs/b"])`."""
        from .compare import RunComparison

        return RunComparison([run if isinstance(run, Artifacts) else Artifacts(run) for run in runs])

    @staticmethod
    @names_descriptors
    def diff(
        one: Given,
        other: Given,
        *,
        builder: Callable[[Path], Any] | None = None,
    ) -> RunDifference:
        """In what two runs differ: `Artifacts.diff("runs/a", "runs/b")` shows what differs in what made them,
        and the first step that measured something else. A branch of a run can be given, too; without a
        builder its cause is what was changed by hand.

        Args:
            one: a run, its directory, or a branch.
            other: likewise.
            builder: a function of a run's directory that builds its learner again, with `.resume()`. Both
                then take their steps again, aside, up to the first that left other weights, and
                `cause` says what was not the same there: the order of the data, a batch's content, weights
                before, the rate, the random state, a module's output ...
        """
        found = difference(*_sides(one, other))
        if builder is None:
            return found
        places = [
            Artifacts(each).directory if isinstance(each, (str, os.PathLike)) else each.directory
            for each in (one, other)
        ]
        for place in places:
            require_run(place)
        names = tuple(each.name if isinstance(each, RecordedBranch) else "" for each in (one, other))
        mine = builder(places[0])
        its = mine if places[0] == places[1] else builder(places[1])
        cause, notes = mine.tools._first_cause(its, names, found.first)
        return replace(found, cause=cause, notes=notes)

    def ask(self, what: Any, *, builder: Callable[[], Any], **options: Any) -> Any:
        """Compute what the run did not measure, as `learner.ask` does.

        Args:
            what: a metric, or a function of the learner.
            builder: a function that builds the run's learner again, with `.resume()`: this class reads files
                and has no model.
            options: `steps`, `every` and `split`, as for `learner.ask`.
        """
        require_run(self.directory)
        return builder().ask(what, **options)

    def _encoded(self, checkpoints: Sequence[CheckpointInfo]) -> bytes:
        return self._index_of(self.timeline, checkpoints)

    def _rebuild(self) -> None:
        known = [info for info in self._folder.list() if not info.damage]
        told = self.timeline
        noted = {mark.text for mark in told if mark.kind == "checkpoint"}
        marks = [*told, *(mark_of_checkpoint(info) for info in known if info.label not in noted)]
        marks.sort(key=lambda mark: mark.when)
        data = self._index_of(marks, known)
        durable.replace(self.directory / FILE, [data], len(data))

    def _index_of(self, timeline: Sequence[TimelineMark], checkpoints: Sequence[CheckpointInfo]) -> bytes:
        run, history = self._described(self.run), self.history
        return encode_index(
            run,
            history.snapshot(),
            self._clock(),
            timeline,
            checkpoints,
            evaluated=tuple(history.evaluated.values()),
            recipe=self._recipe_text,
            branches=passes_of_branches(self.directory, run.metrics),
        )


def _sides(one: Given, other: Given) -> tuple[Side, Side]:
    """What `diff` compares of two runs; of a branch, what was changed by hand on it."""
    begins = [each.begin.iteration for each in (one, other) if isinstance(each, RecordedBranch)]
    return _side(one, begins), _side(other, begins)


def _side(given: Given, begins: Sequence[int]) -> Side:
    if isinstance(given, RecordedBranch):
        return Side(f"branch {given.name}", None, given.record, "; ".join(given.changes))
    run = given if isinstance(given, Artifacts) else Artifacts(given)
    since = edits_of(run.recipe, min(begins)) if begins else []
    return Side(str(run.directory), run.recipe, run.history.snapshot(), "; ".join(since))
