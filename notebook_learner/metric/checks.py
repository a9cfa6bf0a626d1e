"""What a step and a metric's update returned: is it what was asked for? Runs at first sight, not per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import OutputError, StepError
from .base import Metric, Scalar

_OUTPUTS = "ClassificationOutput, RegressionOutput, MultiLabelClassificationOutput and SequenceOutput"
_THEIR_FIELDS = {"loss", "output", "targets"}


def checked(metric: Metric, pair: Any) -> tuple[Scalar, Scalar]:
    """Return what `update` gave if it is a pair of scalars; looks at no device value."""
    checked_type(metric, pair)
    value, weight = pair
    for role, scalar in (("value", value), ("weight", weight)):
        if not _is_scalar(scalar):
            raise StepError(
                f"{metric.name}.update returned as its {role} {_said(scalar)}; it must be one real number "
                "(of any type) or a tensor with one element: reduce it with .mean() or .sum(). A step "
                "without a value returns (float('nan'), 0)"
            )
    return value, weight


def checked_type(metric: Metric, pair: Any) -> None:
    """Raise where an update did not return a pair."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise StepError(
            f"{metric.name}.update returned {_said(pair)}; it must return two things, the step's value and "
            "its weight (how many samples stand behind the value): `return value, weight`"
        )


def _is_scalar(scalar: Any) -> bool:
    if isinstance(scalar, Tensor):
        return scalar.numel() == 1 and not scalar.is_complex()
    return isinstance(scalar, Real) or (isinstance(scalar, np.generic) and scalar.dtype.kind in "biuf")


def _said(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def require_fields(metrics: Sequence[Metric], item: Any) -> None:
    """Raise where the output lacks a field that some metric reads; name both, and who has it."""
    missing = {metric.name: [need for need in metric.needs if not hasattr(item, need)] for metric in metrics}
    lacks = {name: needs for name, needs in missing.items() if needs}
    if not lacks:
        return
    wishes = "; ".join(f"{name} needs {_listed(needs)}" for name, needs in lacks.items())
    has = _fields(item)
    raise OutputError(
        f"{wishes}; but the step returned a {type(item).__name__} with "
        f"{_listed(has) if has else 'no fields'}. {_advice(lacks, item)}"
    )


def _advice(lacks: Mapping[str, Sequence[str]], item: Any) -> str:
    ours = all(set(needs) <= _THEIR_FIELDS for needs in lacks.values())
    where = f"{_OUTPUTS} have `loss`, `output` and `targets`: return one of them, " if ours else "Return "
    keys = " (keys of a dict are no fields: types.SimpleNamespace(**it) has them)" if _is_dict(item) else ""
    return f"{where}{'or ' if ours else ''}an output with these fields{keys}, or leave the metric out"


def _is_dict(item: Any) -> bool:
    return isinstance(item, Mapping)


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return " and ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


def _fields(item: Any) -> list[str]:
    """Name the fields of an output without evaluating its properties."""
    if is_dataclass(item):
        return [field.name for field in fields(item)]
    named: Any = getattr(item, "_fields", None) or getattr(item, "__dict__", None) or ()
    return [name for name in named if not name.startswith("_")]
