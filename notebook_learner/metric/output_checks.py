"""Checks what a step and a metric's update returned. It runs at the first output, not at each step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Real
from types import SimpleNamespace
from typing import Any, overload

import numpy as np
from torch import Tensor

from ..errors import OutputError, StepError, a_kind
from .base import AccumulatedText, AnyMetric, Counted, Metric, Scalar
from .inputs import RULE, Inputs, made_by

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
        return update(as_fields(metric.name, metric.needs, take(made_by(item))))

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


_COMMON = frozenset({"loss", "output", "targets", "weight"})
OUTPUTS = {
    "ClassificationOutput": _COMMON,
    "RegressionOutput": _COMMON,
    "MultiLabelClassificationOutput": _COMMON,
    "SequenceOutput": _COMMON | {"logits", "predictions", "ignore_index"},
}
"""The package's outputs and their fields for metrics. Metrics do not know the classes themselves."""


def checked(metric: Metric, pair: Any) -> tuple[Scalar, Scalar]:
    """Return what `update` gave if it is a pair of scalars; this reads no value from the device."""
    checked_type(metric, pair)
    value, weight = pair
    # What a counted metric keeps is not checked here: it becomes a number later.
    roles = (("weight", weight),) if isinstance(metric, Counted) else (("value", value), ("weight", weight))
    for role, scalar in roles:
        if not _is_scalar(scalar):
            raise StepError(
                f"{metric.name}.update returned as its {role} {_said(scalar)}; it must be one real number "
                "(of any type) or a tensor with one element: reduce it with .mean() or .sum(). A step "
                "without a value returns (float('nan'), 0)"
            )
    return value, weight


def gives_one_number(metric: Metric, made: Any) -> bool:
    """Whether an update returned a value without a weight."""
    return _is_scalar(made) and not isinstance(metric, Counted)


def weighted(metric: Metric, update: Callable[[Any], Any]) -> Update:
    """The same update; a value that it returns without a weight has that of the batch's samples."""

    def paired(item: Any) -> Any:
        made = update(item)
        return made if isinstance(made, (tuple, list)) or made is None else (made, metric.context.samples)

    return paired


def checked_type(metric: Metric, pair: Any) -> None:
    """Raise if an update did not return a pair."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise StepError(
            f"{metric.name}.update returned {_said(pair)}; it must return two things, the step's value and "
            "its weight (how many samples stand behind the value): `return value, weight`; or, in a "
            "learner, the value alone, which the batch's samples weight"
        )


def _is_scalar(scalar: Any) -> bool:
    if isinstance(scalar, Tensor):
        return scalar.numel() == 1 and not scalar.is_complex()
    return isinstance(scalar, Real) or (isinstance(scalar, np.generic) and scalar.dtype.kind in "biuf")


def _said(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"{a_kind(value)} of {len(value)}"
    return "None" if value is None else a_kind(value)


def has_fields(metrics: Sequence[AnyMetric], item: Any) -> bool:
    """Whether the output itself has each field that a metric without an input function reads."""
    return all(hasattr(item, need) for metric in metrics if metric.input is None for need in metric.needs)


def require_fields(metrics: Sequence[AnyMetric], item: Any) -> None:
    """Raise if the output lacks a field that a metric reads; name the field and the metric."""
    for metric in metrics:
        if metric.input is not None:
            _require_taken(metric, item)
    plain = [metric for metric in metrics if metric.input is None]
    made = made_by(item)
    missing = {
        metric.name: [need for need in metric.needs if not hasattr(made, need)]
        for metric in plain
        if not all(hasattr(item, need) for need in metric.needs)
    }
    lacks = {name: needs for name, needs in missing.items() if needs}
    if not lacks:
        return
    wishes = "; ".join(f"{name} needs {_listed(needs)}" for name, needs in lacks.items())
    said = f"{wishes}; but the step returned {_described(made)}. {_advice(lacks, made)}"
    asks_for_these = any({"output", "targets"} & {*needs} for needs in lacks.values())
    raise OutputError(f"{said}. {RULE}" if type(item) is Inputs and asks_for_these else said)


def _require_taken(metric: AnyMetric, item: Any) -> None:
    """Raise if a metric's input function does not find a field, or returns too few."""
    assert metric.input is not None
    try:
        taken = metric.input(made_by(item))
    except (AttributeError, LookupError, TypeError) as error:
        raise OutputError(
            f"the input function of {metric.name} raised {type(error).__name__}: {error}; the step returned "
            f"{_described(made_by(item))}: take one of these, or leave the metric out"
        ) from error
    given = as_fields(metric.name, metric.needs, taken)
    if lacking := [need for need in metric.needs if not hasattr(given, need)]:
        raise OutputError(
            f"{metric.name} needs {_listed(lacking)}; but its input function returned {_described(given)}: "
            f"let it return {', '.join(metric.needs)} as a tuple in this order"
        )


def _advice(lacks: Mapping[str, Sequence[str]], item: Any) -> str:
    if advises(item):
        return str(type(item)._advice)
    wanted = {need for needs in lacks.values() for need in needs}
    if having := [name for name, fields_of in OUTPUTS.items() if wanted <= fields_of]:
        theirs = _listed([field for field in _ORDER if field in wanted | {"loss", "output", "targets"}])
        have = f"{_joined(having)} {'have' if len(having) > 1 else 'has'} {theirs}"
        where = f"{have}: return {'one of them' if len(having) > 1 else 'it'}, or an output"
    else:
        where = "Return an output"
    keys = ""
    if _is_dict(item):
        keys = " (keys of a dict without 'loss' are no fields: types.SimpleNamespace(**it) has them)"
    found = ", or name others with the metric's input=lambda item: ..." if _fields(item) else ""
    return f"{where} with these fields{keys}{found}, or leave the metric out"


def advises(item: Any) -> bool:
    """Whether the type says itself what to write instead."""
    return hasattr(type(item), "_advice")


_ORDER = ("loss", "output", "targets", "logits", "predictions", "ignore_index", "weight")


def _described(item: Any) -> str:
    has = _fields(item)
    return f"{a_kind(item)} with {_listed(has) if has else 'no fields'}"


def _is_dict(item: Any) -> bool:
    return isinstance(item, Mapping)


def _listed(names: Sequence[str]) -> str:
    return _joined([f"`{name}`" for name in names])


def _joined(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _fields(item: Any) -> list[str]:
    """Name the fields of an output without evaluating its properties."""
    if is_dataclass(item):
        return [field.name for field in fields(item)]
    named: Any = getattr(item, "_fields", None) or getattr(item, "__dict__", None) or ()
    return [name for name in named if not name.startswith("_")]
