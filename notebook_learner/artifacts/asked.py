"""What was measured afterwards: the names of its metrics, which log files do not tell exactly, and its curves
beside those of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedError
from ..event.values import MetricInfo, Split
from ..logger.history import History
from ..store import durable
from ..store.json_text import parse
from ..store.layout import check_metric_name
from ..store.run_folder import RunPath

ASKED = "asked.json"
_LARGEST = 1 << 20


def asked_names(folder: RunPath) -> list[str]:
    """The names of the metrics that were asked; none if the file is not there, or is a stranger's."""
    try:
        with durable.opened(folder / ASKED) as file:
            text = file.read(0, min(file.size, _LARGEST))
        told = parse(text, len(text))
    except (OSError, ValueError, DamagedError):
        return []
    names = told.get("metrics") if isinstance(told, dict) else None
    return [name for name in names if check_metric_name(name) is None] if isinstance(names, list) else []


class WithAsked:
    """A run's history, and beside it the curves that were asked: "Accuracy (asked)"."""

    def __init__(self, history: History, asked: History) -> None:
        self._history, self._asked = history, asked

    @property
    def infos(self) -> tuple[MetricInfo, ...]:
        """Units and directions."""
        more = (MetricInfo(_marked(info.name), info.split, info.unit) for info in self._asked.infos)
        return (*self._history.infos, *more)

    def metrics(self, split: Split) -> Sequence[str]:
        """The numeric metrics of a split."""
        return (*self._history.metrics(split), *map(_marked, self._names(split)))

    def epoch_numbers(self, split: Split) -> NDArray[Any]:
        """The numbers of the run's epochs."""
        return self._history.epoch_numbers(split)

    def epochs(self, name: str, split: Split) -> NDArray[Any]:
        """The final value of each finished epoch; NaN where it was not asked."""
        if (of := self._of(name, split)) is None:
            return self._history.epochs(name, split)
        known = dict(zip(self._asked.epoch_numbers(split), self._asked.epochs(of, split), strict=True))
        return np.array([known.get(each, np.nan) for each in self.epoch_numbers(split)])

    def values(self, name: str, split: Split) -> NDArray[Any]:
        """One value for each step; NaN where it was not asked."""
        if (of := self._of(name, split)) is None:
            return self._history.values(name, split)
        known = dict(zip(self._asked.steps(split).tolist(), self._asked.values(of, split), strict=True))
        return np.array([known.get(each, np.nan) for each in self.steps(split).tolist()])

    def steps(self, split: Split) -> NDArray[Any]:
        """The run's steps."""
        return self._history.steps(split)

    def _names(self, split: Split) -> Sequence[str]:
        return [each for each in self._asked.metrics(split) if len(self._asked.values(each, split))]

    def _of(self, name: str, split: Split) -> str | None:
        return next((each for each in self._names(split) if _marked(each) == name), None)


def _marked(name: str) -> str:
    return f"{name} (asked)"
