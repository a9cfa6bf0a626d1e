"""Adapts a step's output to a metric that needs another form: the metric's `input` function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, overload

from torch import Tensor

from ..errors import OutputError
from .base import AccumulatedText, Metric, Scalar

Update = Callable[[Any], tuple[Scalar, Scalar]]
Watch = Callable[[Any], None]


@overload
def adapted(metric: Metric) -> Update: ...
@overload
def adapted(metric: AccumulatedText) -> Watch: ...
def adapted(metric: Metric | AccumulatedText) -> Callable[[Any], Any]:
    """Return the metric's `update`; if the metric has an `input`, `update` gets what `input` returns."""
    if metric.input is None:
        return metric.update
    take, update = metric.input, metric.update

    def through(item: Any) -> Any:
        return update(as_fields(metric.name, metric.needs, take(item)))

    return through


def as_fields(name: str, needs: tuple[str, ...], given: Any) -> Any:
    """Return what an input function gave, with the fields that the metric reads.

    >>> as_fields("Accuracy", ("output", "targets"), (1, 2))
    namespace(output=1, targets=2)
    """
    # The check by exact type comes first: it is the usual case. A named tuple has its own field names, and a
    # check by abstract class takes longer than all the rest.
    if needs and type(given) in (tuple, list):
        if len(given) != len(needs):
            raise OutputError(f"{_wants(name, needs)}, but returned {len(given)}")
        return SimpleNamespace(**dict(zip(needs, given, strict=True)))
    if isinstance(given, Mapping):
        return SimpleNamespace(**given)
    if needs and isinstance(given, (Tensor, float, int)):
        if len(needs) != 1:
            raise OutputError(f"{_wants(name, needs)}, but returned one {type(given).__name__}")
        return SimpleNamespace(**{needs[0]: given})
    return given


def _wants(name: str, needs: tuple[str, ...]) -> str:
    return f"the input function of {name} must return {len(needs)} in this order: {', '.join(needs)}"
