"""Describe an optimizer: the settings of its groups, and the size of its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .statistics import read, rows_of, values_in, wide

Option = int | float | bool | str | None | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StateSize:
    """One key of the optimizer's state over a whole group: the mean and the maximum of its magnitudes."""

    key: str
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Group:
    """One parameter group.

    Attributes:
        index: its number among the groups of all optimizers, from 0.
        label: its number; of several optimizers, with the optimizer's name.
        options: the learning rate and all other settings that are plain values.
        tensors: the number of parameters that it trains.
        elements: the number of values in them.
        state: its state, key by key; empty before the first update.
        steps: the most updates of any parameter; None if the optimizer does not count them.
    """

    index: int
    label: str
    options: Mapping[str, Option]
    tensors: int
    elements: int
    state: tuple[StateSize, ...]
    steps: int | None


def describe_optimizer(optimizer: Any) -> tuple[Group, ...]:
    """Return a row for every parameter group; no rows for an object without groups.

    >>> [group.options["lr"] for group in describe_optimizer(torch.optim.SGD([torch.ones(1)], lr=0.5))]
    [0.5]
    """
    found: list[Group] = []
    for name, each in getattr(optimizer, "named", {"": optimizer}).items():
        state = getattr(each, "state", None) or {}
        for number, group in enumerate(getattr(each, "param_groups", None) or []):
            found.append(_group(len(found), f"{name} {number}".strip(), group, state))
    return tuple(found)


def _group(index: int, label: str, group: Mapping[str, Any], state: Mapping[Any, Any]) -> Group:
    parameters = [parameter for parameter in group["params"] if isinstance(parameter, Tensor)]
    held = [state[parameter] for parameter in parameters if parameter in state]
    held = [one for one in held if isinstance(one, Mapping)]
    options = {str(key): _option(value) for key, value in group.items() if _is_option(key, value)}
    elements = sum(parameter.numel() for parameter in parameters)
    return Group(index, label, options, len(parameters), elements, _sizes(held), _steps(held))


def _is_option(key: Any, value: Any) -> bool:
    if key == "params":
        return False
    if isinstance(value, tuple):
        return 0 < len(value) <= 4 and all(_is_option("", one) for one in value)
    return isinstance(value, (int, float, str)) or (isinstance(value, Tensor) and value.numel() == 1)


def _option(value: Any) -> Option:
    if isinstance(value, tuple):
        return tuple(float(one) for one in value)
    plain: Option = value.item() if isinstance(value, Tensor) else value
    return plain


def _steps(held: list[Mapping[Any, Any]]) -> int | None:
    counted = [one["step"] for one in held if isinstance(one.get("step"), (int, float, Tensor))]
    tensors = [value for value in counted if isinstance(value, Tensor) and value.numel() == 1]
    plain = [value for value in counted if not isinstance(value, Tensor)]
    _, rows = read(rows_of(values_in(tensors), _magnitudes))
    numbers = [*(row[0] for row in rows.tolist()), *plain]
    return int(max(numbers)) if numbers else None


def _sizes(held: list[Mapping[Any, Any]]) -> tuple[StateSize, ...]:
    found: dict[Any, list[Tensor]] = {}
    for one in held:
        for key, value in one.items():
            if key != "step" and _is_state(value):
                found.setdefault(key, []).append(value)
    sizes = (_size(str(key), tensors) for key, tensors in found.items())
    return tuple(size for size in sizes if size is not None)


def _size(key: str, tensors: list[Tensor]) -> StateSize | None:
    values = values_in(tensors)
    places, rows = read(rows_of(values, _magnitudes))
    if not places:
        return None
    sums, most = rows.T
    return StateSize(key, float(sums.sum()) / sum([one.numel() for one in values]), float(most.max()))


def _is_state(value: Any) -> bool:
    number = isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
    return number and value.numel() > 0 and not value.is_meta


def _magnitudes(values: Tensor) -> Tensor:
    """For each row: the sum and the greatest of the magnitudes."""
    sizes = values.to(wide(values.device)).abs()
    return torch.stack([sizes.sum(1), sizes.amax(1)], 1)
