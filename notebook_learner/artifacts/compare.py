"""Compares several runs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import StoreError
from ..event.values import Split
from ..store.layout import TEST
from .branches import ORIGIN
from .tables import Table
from .varied import varied

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .recorded_run import RecordedRun

_WIDEST = 120
"""Characters of a line: about as many as a notebook shows in one line."""
_PARTED = re.compile(r"(.+) at epoch (\d{1,18}), (?:train|valid), step .*, training step (\d{1,18})")


class Fork(NamedTuple):
    """The place at which a run was forked from its parent."""

    epoch: int
    """The first epoch with steps of its own; earlier epochs are the parent's."""
    iteration: int


_IN_A_RECIPE = (
    "model",
    "parameters",
    "optimizer",
    "learning rate",
    "precision",
    "accumulation",
    "clipping",
    "average",
    "early stopping",
    "seed",
)
"""Settings that a recipe tells in more detail."""
_SPLITS: tuple[Split, ...] = ("train", "valid")


class RunComparison:
    """The results of several runs, and the settings in which they differ. Prints as a table.

    `table` has one row (a dict) for each run: run, epochs, "valid Loss best", "valid Loss last", ...,
    "test/clean Loss" for an evaluated set, and everything that is not the same in all runs: settings, values
    of `.config(...)`, options of optimizers and loss, data, source text, versions.
    """

    def __init__(self, runs: Sequence[RecordedRun]) -> None:
        if not runs:
            raise StoreError("compare() needs runs: Artifacts.compare(['runs/a', 'runs/b'])")
        self.runs = tuple(runs)
        self.names = _short_names([os.fspath(run.directory) for run in runs])
        self.table: list[dict[str, Any]] = self._rows()

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        from importlib import import_module

        return import_module("pandas").DataFrame(self.table)

    def plot(self, name: str = "Loss", split: Split | str | None = None) -> Figure:
        """Plot one metric of all runs in one figure.

        The curves go by epoch if there are epoch values, else by step. For an evaluated set ("test/clean")
        each run is a bar. The curve of a fork begins at its parent's last point before it if the parent is
        shown, too.
        Runs without the metric are left out; if no run has it, this raises a KeyError. Without a split,
        the split is "valid" if one of the runs has such values, else "train"."""
        if split is None:
            measured = any(name in run.metrics("valid") and _has_values(run, name) for run in self.runs)
            split = (
                "valid" if measured or not any(name in run.metrics("train") for run in self.runs) else "train"
            )
        if split not in _SPLITS:
            return self._bars(name, split)
        from ..renderer.drawing import NotebookFigure

        curves = []
        for label, run in zip(self.names, self.runs, strict=True):
            if name in run.metrics(split):
                curves.append((label, *_curve(run, name, split, self._fork_of(run))))
        if not curves:
            known = sorted({each for run in self.runs for each in run.metrics(split)})
            raise KeyError(
                f"no metric {name!r} in {split} of these runs; there are: {', '.join(known) or 'none'}"
            )
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.ticker import MaxNLocator

        figure = NotebookFigure(figsize=(7, 4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots()
        by_epoch = all(each[3] for each in curves)
        for label, x, y, _ in curves:
            axes.plot(
                x, y, marker="o" if by_epoch and len(x) < 25 else None, markersize=3, label=_safe(label)
            )
        axes.set_xlabel("epoch" if by_epoch else "training step")
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes.set_ylabel(_safe(f"{name} ({split})"))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        return figure

    def _bars(self, name: str, split: str) -> Figure:
        from ..renderer.drawing import bars

        which = split.removeprefix(f"{TEST}/")
        sets = [run.evaluations.get(which) for run in self.runs]
        found = [(label, each) for label, each in zip(self.names, sets, strict=True) if each and name in each]
        if not split.startswith(f"{TEST}/") or not found:
            known = sorted(f"{metric!r} in {TEST}/{each}" for each, metric in self._evaluated())
            raise KeyError(
                f"no metric {name!r} in {split!r} of these runs; of the sets that were evaluated there are: "
                f"{', '.join(known) or 'none'}; and the splits 'train' and 'valid'"
            )
        unit = next((each.units[name] for _, each in found if name in each.units), "")
        values = [(label, each[name], each.shown(name)) for label, each in found]
        return bars(values, f"{name} ({split})" + (f" {unit}" if unit else ""))

    def _fork_of(self, run: RecordedRun) -> Fork | None:
        """Where a run was forked from another one of these runs; None if it was not."""
        told = None if run.run is None else _PARTED.fullmatch(run.run.settings.get(ORIGIN, ""))
        if told is None:
            return None
        others = [os.fspath(each.directory) for each in self.runs if each is not run]
        known = {os.path.abspath(each) for each in others} | {os.path.basename(each) for each in others}
        # By name, because the runs may have been moved since.
        is_here = os.path.abspath(told[1]) in known or os.path.basename(told[1]) in known
        return Fork(int(told[2]), int(told[3])) if is_here else None

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"run": label, "epochs": run.epochs_done, "status": run.status}
            for label, run in zip(self.names, self.runs, strict=True)
        ]
        for split in reversed(_SPLITS):
            for name in dict.fromkeys(name for run in self.runs for name in run.metrics(split)):
                for row, run in zip(rows, self.runs, strict=True):
                    best, last = _best_and_last(run, name, split)
                    row[f"{split} {name} best"], row[f"{split} {name} last"] = best, last
        for name, metric in self._evaluated():
            for row, run in zip(rows, self.runs, strict=True):
                found = run.evaluations.get(name)
                row[f"{TEST}/{name} {metric}"] = None if found is None else found.finals.get(metric)
        for key, values in self._different_settings().items():
            for row, value in zip(rows, values, strict=True):
                row[key] = value
        return rows

    def _evaluated(self) -> list[tuple[str, str]]:
        """The sets of all runs, each with all of its metrics."""
        sets = [each for run in self.runs for each in run.evaluations.values()]
        names: dict[str, dict[str, None]] = {}
        for each in sets:
            names.setdefault(each.name, {}).update(dict.fromkeys(each))
        return [(name, metric) for name, metrics in names.items() for metric in metrics]

    def _different_settings(self) -> dict[str, list[Any]]:
        recipes = [run.recipe for run in self.runs]
        told_there = _IN_A_RECIPE if all(recipes) else ()
        settings = []
        for run in self.runs:
            told = run.run
            own = dict(told.settings) if told is not None else {}
            if told is not None:
                own = {"model": told.model, "parameters": str(told.parameters), **own}
            settings.append(own)
        keys = dict.fromkeys(key for each in settings for key in each if key not in told_there)
        found: dict[str, list[Any]] = {key: [each.get(key) for each in settings] for key in keys}
        if told_there:
            found |= varied(recipes)
        taken = {"run", "epochs", "status"}
        return {
            (f"setting {key}" if key in taken else key): values
            for key, values in found.items()
            if len({*map(repr, values)}) > 1
        }

    def _shown(self) -> Table:
        from ..renderer.text import number

        def shown(value: Any) -> str:
            if isinstance(value, float):
                return number(value)
            return "-" if value is None else str(value)

        headings = list(self.table[0])
        rows = [[shown(row[key]) for key in headings] for row in self.table]
        right = [any(isinstance(row[key], (int, float)) for row in self.table) for key in headings]
        return Table("", headings, rows, right)

    def _printed(self) -> Table:
        """One row for each run; one column for each run if the rows are too long for a line."""
        shown = self._shown()
        width = max(map(len, shown.text().splitlines()))
        return shown.turned() if width > _WIDEST and len(self.runs) < len(shown.headings) else shown

    def __str__(self) -> str:
        return self._printed().text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._shown().html()


def _best_and_last(run: RecordedRun, name: str, split: Split) -> tuple[float | None, float | None]:
    if name not in run.metrics(split):
        return None, None
    values = run.epochs(name, split)
    known = values[~np.isnan(values)]
    if not len(known):
        return None, None
    try:
        best = run.history.best(name, split, "min" if name == "Loss" else None)
    except ValueError:  # the metric does not say which way is better
        return None, float(known[-1])
    return (None if best is None else best.value), float(known[-1])


def _curve(run: RecordedRun, name: str, split: Split, fork: Fork | None) -> tuple[Any, Any, bool]:
    values = run.epochs(name, split)
    if len(values):
        x, begin, by_epoch = run.history.epoch_numbers(split), fork and fork.epoch, True
    else:
        series = run.series(name, split)
        x, values, by_epoch = series.iteration, series.value, False
        begin = fork and fork.iteration + 1
    # A fork begins with its parent's last point: else there would be a gap.
    first = 0 if begin is None else max(0, int(np.searchsorted(x, begin)) - 1)
    return x[first:], values[first:], by_epoch


def _has_values(run: RecordedRun, name: str) -> bool:
    return len(run.history.values(name, "valid")) > 0


def _safe(text: str) -> str:
    """Dollar signs would be read as a formula, a leading underscore would hide a label."""
    return "\u200b" * text.startswith("_") + text.replace("$", r"\$")


def _short_names(paths: Sequence[str]) -> list[str]:
    """The paths without their common beginning."""
    whole = [os.path.abspath(path) for path in paths]
    if len(set(whole)) < 2:
        return [os.path.basename(path) for path in whole]
    shared = os.path.commonpath(whole)
    return [os.path.relpath(path, shared) if path != shared else os.path.basename(path) for path in whole]
