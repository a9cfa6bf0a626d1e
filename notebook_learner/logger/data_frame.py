"""A history as a pandas DataFrame. Only this module imports pandas, and only when the user calls it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np

from ..event.values import Split
from ..store.layout import TEST


class FrameSteps(Protocol):
    """The methods of a history that a table needs."""

    @property
    def evaluated(self) -> Mapping[str, object]:
        """The sets that were evaluated, by name."""

    def metrics(self, split: Split | str) -> tuple[str, ...]:
        """The names of the metrics."""

    def steps(self, split: Split | str) -> Any:
        """The epoch and step of each value."""

    def iterations(self, split: Split | str) -> Any:
        """The number of training steps taken at each value."""

    def values(self, name: str, split: Split | str) -> Any:
        """One value per step."""

    def weights(self, name: str, split: Split | str) -> Any:
        """The weight of each value."""


SPLITS: tuple[Split, ...] = ("train", "valid")


def to_pandas(history: FrameSteps, form: Literal["wide", "long"]) -> Any:
    """One row per step and one column per metric ("wide"), or one row per value ("long")."""
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError(
            "history.to_pandas() needs pandas, which is not installed; `pip install pandas`, or take the "
            "arrays: history.values('Loss', 'train')"
        ) from error
    if form not in ("wide", "long"):
        raise ValueError(
            f"form is {form!r}; it must be 'wide' (a column per metric) or 'long' (a row per value)"
        )
    splits = [*SPLITS, *(f"{TEST}/{name}" for name in history.evaluated)]
    tables = [_table(history, split, form, pandas) for split in splits]
    rows = [table for table in tables if len(table)] or tables[:1]
    frame = pandas.concat(rows, ignore_index=True)
    return frame.sort_values(["epoch", "split", "step"], kind="stable", ignore_index=True)


def _table(history: FrameSteps, split: Split | str, form: str, pandas: Any) -> Any:
    steps = history.steps(split)
    place = {
        "epoch": steps["epoch"],
        "split": np.full(len(steps), split, dtype=object),
        "step": steps["step"],
        "iteration": history.iterations(split),
    }
    names = history.metrics(split)
    frame = pandas.DataFrame
    if form == "wide":
        return frame({**place, **{name: history.values(name, split) for name in names}})
    columns = [
        {
            **place,
            "metric": name,
            "value": history.values(name, split),
            "weight": history.weights(name, split),
        }
        for name in names
    ]
    empty = frame({**place, "metric": "", "value": np.nan, "weight": np.nan}).iloc[:0]
    return pandas.concat([frame(column) for column in columns]) if columns else empty
