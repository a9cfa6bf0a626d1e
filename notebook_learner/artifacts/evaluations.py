"""The results of evaluated sets: a value for each metric, and a table of all sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..event.values import Evaluated, Split
from .tables import Table

_PLACE = ("epoch", "split", "step")


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Mapping[str, float]):
    """The values of one evaluated set by metric, and the place of its weights. Prints as a table.

    >>> clean = Evaluation("clean", {"Loss": 0.25, "Accuracy": 91.25}, 20, (3, "train", 7), {"Accuracy": "%"})
    >>> clean["Loss"], len(clean), dict(clean)
    (0.25, 2, {'Loss': 0.25, 'Accuracy': 91.25})
    >>> clean
    clean: 20 batches, with the weights of epoch 3, train, step 7
    <BLANKLINE>
    metric      value
    --------  -------
    Loss       0.2500
    Accuracy  91.25 %
    """

    name: str
    finals: Mapping[str, float]
    """The values of the whole set; the evaluation is a Mapping of them by metric."""
    batches: int
    place: tuple[int, Split, int] | None = None
    """Epoch, split and step at which the training stood; None if that is not known."""
    units: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, event: Evaluated) -> Evaluation:
        """The evaluation that an event reports."""
        units = {info.name: info.unit for info in event.metrics if info.unit}
        place = (event.epoch, event.split, event.step) if event.epoch else None
        return cls(event.name, dict(event.record.finals or {}), event.record.steps, place, units)

    def __getitem__(self, metric: str) -> float:
        if metric not in self.finals:
            raise KeyError(
                f"no value of {metric!r} for {self.name!r}; there are: {', '.join(self) or 'none'}"
            )
        return self.finals[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self.finals)

    def __len__(self) -> int:
        return len(self.finals)

    def __bool__(self) -> bool:
        return True  # also where no metric was asked for

    @property
    def where(self) -> str:
        """The place, in words."""
        return "" if self.place is None else "epoch {}, {}, step {}".format(*self.place)

    def shown(self, metric: str) -> str:
        """A value as text for a person; empty if the set has no such value."""
        from ..renderer.text import number  # loaded only when a person looks

        return number(self.finals[metric], self.units.get(metric, "")) if metric in self.finals else ""

    def _table(self) -> Table:
        batches = "1 batch" if self.batches == 1 else f"{self.batches:,} batches"
        weights = f", with the weights of {self.where}" if self.place else ""
        rows = [(metric, self.shown(metric)) for metric in self]
        title = f"{self.name}: {batches}{weights}"
        return Table(title, ("metric", "value"), rows, (False, True), "no metrics")

    def __repr__(self) -> str:
        return self._table().text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self._table().html()


class Evaluations(dict[str, Evaluation]):
    """Evaluated sets by name, in the order of their evaluation. Prints as one table.

    >>> clean, noisy = Evaluation("clean", {"Loss": 0.25}, 20), Evaluation("noisy", {"Loss": 1.5}, 20)
    >>> print(Evaluations.of([clean, noisy]))
    set      Loss  batches  weights of
    -----  ------  -------  ----------
    clean  0.2500       20
    noisy   1.500       20
    """

    @classmethod
    def of(cls, evaluations: Iterable[Evaluation]) -> Evaluations:
        """These evaluations by their names."""
        return cls({each.name: each for each in evaluations})

    def to_pandas(self) -> Any:
        """Make a pandas DataFrame with one row for each set: set, the metrics, batches, epoch, split, step.

        The last three are the place in the training whose weights were measured."""
        from importlib import import_module

        metrics = list(dict.fromkeys(metric for each in self.values() for metric in each))
        rows = [
            {
                "set": each.name,
                **{metric: each.finals.get(metric, float("nan")) for metric in metrics},
                "batches": each.batches,
                **dict(zip(_PLACE, each.place or (None, None, None), strict=True)),
            }
            for each in self.values()
        ]
        return import_module("pandas").DataFrame(rows, columns=["set", *metrics, "batches", *_PLACE])

    def _table(self) -> Table:
        from ..renderer.summary import SetRow, set_table  # loaded only when a person looks

        rows = [
            SetRow(each.name, {metric: each.shown(metric) for metric in each}, each.batches, each.where)
            for each in self.values()
        ]
        return Table("", *set_table(rows), "nothing was evaluated")

    def __repr__(self) -> str:
        return self._table().text()

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self._table().html()
