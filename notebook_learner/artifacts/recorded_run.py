"""A run that has ended or still trains, read from its directory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from torch import nn

from ..checkpoint.folder import CheckpointFolder
from ..checkpoint.info import CheckpointInfo
from ..errors import DamagedError, StateError, names_descriptors
from ..event.training_time import timed
from ..event.values import Floats, MetricInfo, RunOpened, Split
from ..logger.history import History
from ..store.layout import SPLITS, RunLayout
from .asked import WithAsked, asked_names
from .branches import ORIGIN, Branches, branches_in, forks_in
from .claims import Claims
from .clock import Clock, Series, series_of
from .evaluations import Evaluation, Evaluations
from .follow import News, follow
from .index import read_header
from .live_index import FILE
from .read_record import evaluated_in, read_record
from .recorded_recipe import RecordedRecipe
from .run_info import RunInfo
from .run_status import Standing, logs_in, require_run, standing, test_logs_in
from .tables import Table
from .timeline import TimelineMark, TimelineTable, read_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..renderer.summary import Summary

M = TypeVar("M", bound=nn.Module)


class Checkpoints(list[CheckpointInfo]):
    """The checkpoints of a run in the order they were saved. Prints as a table."""

    def _table(self) -> Table:
        from ..renderer.text import number, size_text

        rows = []
        for info in self:
            valid = info.metrics.get("valid") or info.metrics.get("train") or {}
            metrics = ", ".join(f"{name} {number(value)}" for name, value in valid.items())
            saved = f"{info.when:%Y-%m-%d %H:%M:%S}" if info.saved_at else "-"
            state = "damaged" if info.damage else "complete" if info.exact else "complete, half precision"
            rows.append((info.label, info.place, size_text(info.size), saved, metrics, state))
        headings = ("label", "place", "size", "saved", "metrics", "state")
        return Table("", headings, rows, (False, False, True, False, False, False), "no checkpoints")

    def __repr__(self) -> str:
        return self._table().text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self._table().html()


class RecordedRun:
    """A run in its directory: each value is read from the files when you ask for it. Nothing is written."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._seen: Any = None
        self._history = History()

    # What was measured -------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """All measurements of the run, in the form of `learner.history`."""
        require_run(self.directory)
        seen = self.signature()
        if seen != self._seen:
            run = self.run
            infos = run.metrics if run is not None else ()
            history = History()
            history.handle(_opened(self._described(run)))
            record = timed(read_record(self.directory, infos), self._clock().seconds)
            history.restore(record)
            for evaluated in evaluated_in(self.directory, infos, self.timeline, record):
                history.handle(evaluated)
            self._history, self._seen = history, seen
        return self._history

    @property
    def evaluations(self) -> Evaluations:
        """The evaluated sets, as a table: `artifacts.evaluations["clean"]["Loss"]`."""
        return Evaluations.of(map(Evaluation.of, self.history.evaluated.values()))

    def series(self, name: str, split: Split | str = "train", epoch: int | None = None) -> Series:
        """Return a metric step by step, as arrays: value, weight, epoch, step, iteration, time.

        "test/clean" is the split of an evaluated set; its epoch and iteration are those of the weights. A
        metric that the run did not measure is the one of `learner.ask`, if that was asked.
        """
        if name not in self.history.metrics(split) and name in (asked := self.asked).metrics(split):
            return replace(series_of(asked, self._clock(), name, split, epoch), asked=True)
        return series_of(self.history, self._clock(), name, split, epoch)

    def epochs(self, name: str, split: Split | str = "valid") -> Floats:
        """Return a metric's value for every epoch that has ended."""
        return self.history.epochs(name, split)

    def metrics(self, split: Split | str) -> tuple[str, ...]:
        """Return the names of the numeric metrics of a split."""
        return self.history.metrics(split)

    def to_pandas(self, form: Literal["wide", "long"] = "wide") -> Any:
        """Return all steps as a pandas DataFrame: a column per metric ("wide"), or a row per value ("long").

        The steps of an evaluated set have "test/" and its name as `split`; `evaluations.to_pandas()` has
        one row for each set.
        """
        return self.history.to_pandas(form)

    def summary(self) -> Summary:
        """Return the model, the settings, and the best and worst epochs of every metric."""
        return self._summary(self.history)

    @names_descriptors
    def _summary(self, history: History) -> Summary:
        from ..renderer.summary import Summary, summary_rows

        run = self._described(self.run)
        settings = {**run.settings, "epochs": f"{_epochs_done(history)} of {run.num_epochs}"}
        return Summary(run.model, run.parameters, settings, summary_rows(history, run.metrics or None))

    @names_descriptors
    def plot(self, metrics: str | Iterable[str] | None = None) -> Figure:
        """Plot the curves of one metric, of several, or of all, as a matplotlib figure. What `learner.ask`
        measured is "Accuracy (asked)"."""
        from ..renderer.figure import plot

        return plot(WithAsked(self.history, self.asked), metrics)

    def follow(
        self, poll: float = 0.1, timeout: float | None = None, since: Literal["start", "now"] = "start"
    ) -> Iterator[News]:
        """Yield the values of a run as they come, until the run has finished or stopped.

        It yields `Block` (new steps of one pass with every metric), `EpochValues` (a pass has ended),
        `TakenBack` (forget what came after a step, since the run was rewound or started over) and
        `Evaluation` (a set was evaluated; it replaces an earlier one of that name). If the directory does not
        exist yet, the generator waits for it. The run is not disturbed: nothing is locked or written.

        Args:
            poll: seconds between two looks.
            timeout: end after so many seconds without a new value; None: never.
            since: "start" begins with the values that exist already, "now" with the next one.
        """
        return follow(self.directory, poll, timeout, since)

    # What it was -------------------------------------------------------------------------------------

    @property
    def run(self) -> RunInfo | None:
        """What was trained, how, when and where; None if neither `artifacts.h5` nor a checkpoint says it."""
        require_run(self.directory)
        about = self._about()
        try:
            return RunInfo.from_json(about["run"]) if about else None
        except DamagedError:
            return None

    @property
    def recipe(self) -> RecordedRecipe:
        """What made the run, as plain values: each optimizer's options, schedule, loss, loaders and a
        fingerprint of the data, source text, versions, commit, hardware, and what was changed by hand."""
        require_run(self.directory)
        return RecordedRecipe.parse(self._recipe_text)

    @property
    def config(self) -> dict[str, Any]:
        """The values that the program gave to `LearnerBuilder.config`."""
        return dict(self.recipe.get("config", {}))

    @property
    def asked(self) -> History:
        """What `learner.ask(metric)` measured afterwards, in the form of `history`."""
        require_run(self.directory)
        history = History()
        folder = RunLayout(self.directory).asked
        infos = [MetricInfo(name, split) for name in asked_names(folder) for split in SPLITS]
        history.restore(read_record(folder, infos))
        return history

    @property
    def branches(self) -> Branches:
        """The lines that the run has left by going back and on in another way, as a table and a tree."""
        told, forks = self.run, forks_in(self.recipe.get("changes"))
        origin = "" if told is None else told.settings.get(ORIGIN, "")
        return branches_in(self.directory, self._infos(), self.history.snapshot(), None, forks, origin)

    @property
    def timeline(self) -> TimelineTable:
        """Pauses, failures, changes by hand, ways back and checkpoints, in the order they happened."""
        return TimelineTable(self._marks())

    def _marks(self) -> list[TimelineMark]:
        require_run(self.directory)
        marks: list[TimelineMark] = []
        try:
            rows = Claims(self._about(), "an artifacts.h5").items("timeline")
            marks = [TimelineMark.from_json(row) for row in rows]
        except DamagedError:
            pass
        logged = read_timeline(RunLayout(self.directory).experiment_log)
        if not marks:
            return sorted(logged, key=lambda mark: mark.when)
        known = {_place(mark) for mark in marks}
        first, last = marks[0].when, max(mark.when for mark in marks)
        later = [
            mark
            for mark in logged
            if mark.when > last + 0.01 or (mark.when >= first and _place(mark) not in known)
        ]
        return sorted([*marks, *later], key=lambda mark: mark.when)

    @property
    def status(self) -> Standing:
        """running, paused, failed, stopped or finished; unfinished if the process was killed, say."""
        return standing(self.directory, self.timeline)

    @property
    def finished(self) -> bool:
        """Whether training came to its end once. It stays true when the run goes back and on from there."""
        return self.status == "finished" or any(mark.kind == "finished" for mark in self.timeline)

    @property
    def epochs_done(self) -> int:
        """How many epochs have ended."""
        return _epochs_done(self.history)

    # Checkpoints -------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Checkpoints:
        """All checkpoints in the order in which they were saved; a damaged one says what is wrong with it."""
        require_run(self.directory)
        return Checkpoints(self._folder.list())

    def find(self, which: int | str = "best") -> CheckpointInfo:
        """Return the checkpoint of an epoch number or a label, or the "best" or "latest" one."""
        require_run(self.directory)
        return self._folder.find(which)

    @names_descriptors
    def state_dict(self, epoch: int | str = "best") -> dict[str, Any]:
        """Return the weights of a checkpoint by name, on the CPU, including non-persistent buffers."""
        from .weights import state_dict_of

        info, value = self._model_file(epoch)
        return state_dict_of(value, info.label)

    @names_descriptors
    def load_model(self, model: M, epoch: int | str = "best", *, average: bool = False) -> M:
        """Load a checkpoint's weights into a model of the same shape, and return that model.

        Args:
            model: it keeps its device and its dtypes.
            epoch: an epoch's number, "best", "latest", or a label such as "3-117".
            average: load the moving average of the weights, if the run kept one with `.ema(...)`.

        Raises:
            StateError: there is no such checkpoint, or it has another model: every difference is listed.
            DamagedError: the checkpoint is damaged. In both cases the model is as it was.
        """
        from .weights import load_into

        info, value = self._model_file(epoch)
        if average:
            value = self._average(info)
            if value is None:
                raise StateError(f"checkpoint {info.label} has no moving average of the weights")
        load_into(model, value, info.label)
        return model

    @names_descriptors
    def has_average(self, epoch: int | str = "best") -> bool:
        """Whether a checkpoint holds a moving average of the weights."""
        return self._average(self._model_file(epoch)[0]) is not None

    def _average(self, info: CheckpointInfo) -> Any:
        from .weights import average_in

        return average_in(self._folder.read(info, "state"), info.label)

    # To look at --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        try:
            require_run(self.directory)
        except Exception:
            return f"Artifacts({os.fspath(self.directory)!r}: no run there yet)"
        return self._said(self.history)

    def _said(self, history: History) -> str:
        facts = [self.status, _plural(_epochs_done(history), "epoch"), _plural(len(history), "training step")]
        try:
            facts.append(_plural(len(self._folder.list()), "checkpoint"))
        except (DamagedError, OSError) as error:
            facts.append(f"checkpoints cannot be read: {error}")
        return f"Artifacts({os.fspath(self.directory)!r}: {', '.join(facts)})"

    @names_descriptors
    def _repr_html_(self) -> str:
        from html import escape

        from .tables import plain

        try:
            require_run(self.directory)
        except Exception:
            return f"<p><code>{escape(plain(repr(self)))}</code></p>"
        history = self.history  # read once: each further call would look at all files again
        head = f"<p><code>{escape(plain(self._said(history)))}</code></p>"
        sets = Evaluations.of(map(Evaluation.of, history.evaluated.values()))
        shown = sets._repr_html_() if sets else ""
        try:
            saved = self.checkpoints._repr_html_()
        except (DamagedError, OSError):  # the first line says why
            saved = ""
        return head + self._summary(history)._repr_html_() + shown + saved

    # -------------------------------------------------------------------------------------------------

    @cached_property
    def _folder(self) -> CheckpointFolder:
        return CheckpointFolder(RunLayout(self.directory).checkpoint)

    def _model_file(self, which: int | str) -> tuple[CheckpointInfo, Any]:
        require_run(self.directory)
        info = self._folder.find(which)
        if info.damage:
            raise DamagedError(info.damage)
        if "model" not in info.files:
            raise StateError(f"checkpoint {info.label} has no model; it has {', '.join(info.files)}")
        return info, self._folder.read(info, "model")

    def _infos(self) -> tuple[MetricInfo, ...]:
        run = self.run
        return () if run is None else run.metrics

    def _about(self) -> Mapping[str, Any]:
        """What `artifacts.h5` says of its run, or else the newest checkpoint."""
        try:
            return read_header(self.directory / FILE)
        except (OSError, DamagedError):
            pass
        try:
            for info in reversed(self._folder.list()):
                if not info.damage:
                    commit = self._folder.read(info, "state")
                    told = commit.get("run")
                    if isinstance(told, dict) and told:
                        return {
                            "recipe": commit.get("recipe"),
                            "run": told,
                            "clock": self._clock_of(commit),
                            "timeline": told.get("timeline", []),
                        }
        except (OSError, DamagedError, StateError):
            pass
        return {}

    def _clock_of(self, commit: Mapping[str, Any]) -> list[Any]:
        """When steps were taken, from a checkpoint and the `passes.jsonl` next to it."""
        clock = Clock.from_json(commit["run"].get("clock", []))
        for _, told in self._folder.earlier(commit):
            clock.update(Clock.from_json(told.get("clock", [])))
        return clock.to_json()

    @property
    def _recipe_text(self) -> str:
        told = self._about().get("recipe")
        return told if isinstance(told, str) else ""

    def _clock(self) -> Clock:
        try:
            return Clock.from_json(self._about().get("clock", []))
        except DamagedError:
            return Clock()

    def _described(self, run: RunInfo | None) -> RunInfo:
        """The run, or a description of a run of which nothing is known."""
        if run is not None:
            return run
        return RunInfo(os.fspath(self.directory), "an unknown model", 0, 0)

    def signature(self) -> Any:
        """A value that changes when something is written."""
        seen = []
        for path in (self.directory / FILE, *logs_in(self.directory), *test_logs_in(self.directory)):
            try:
                there = os.lstat(path)
            except OSError:
                continue
            seen.append((os.fspath(path), there.st_mtime_ns, there.st_size, there.st_ino))
        return seen


_SPLITS: tuple[Split, ...] = ("train", "valid")


def _opened(run: RunInfo) -> RunOpened:
    return RunOpened(run.directory, run.model, run.parameters, run.num_epochs, run.metrics, run.settings)


def _epochs_done(history: History) -> int:
    return max((len(history.epoch_numbers(split)) for split in _SPLITS), default=0)


def _place(mark: TimelineMark) -> tuple[str, int, str, int]:
    return mark.kind, mark.epoch, mark.split, mark.step


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}s"
