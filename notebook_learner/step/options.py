"""An optimizer's options as a program gave them, beside those of a checkpoint."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .optimizers import named_of
from .schedule import Constant, Schedule, Schedules

_HOW = ("params", "foreach", "fused", "capturable", "differentiable")
"""What says how a step is computed, and not what it computes."""
_MOVED = ("lr", "betas", "momentum")
"""What a schedule may move."""

Options = dict[str, dict[str, Any]]
"""By group: the values that the optimizer's class takes."""


@dataclass(frozen=True)
class OtherOption:
    """An option that the program gave in another way than a checkpoint has it."""

    group: dict[str, Any]
    """The group, as it was restored."""
    name: str
    label: str
    given: Any
    kept: Any
    moved: bool
    """Whether a schedule moves it, so that the checkpoint's is kept in any case."""

    def __str__(self) -> str:
        given, kept = _said(self.given), _said(self.kept)
        told = f"{self.label}: the cell says {given}, the checkpoint {kept}: kept {kept}"
        return told + (
            "; a schedule moves it" if self.moved else '. .resume(settings="given") takes the cell\'s'
        )

    def take(self) -> str:
        """Take what the program gave, and tell it."""
        if self.moved:
            return str(self)
        live = self.group[self.name]
        if isinstance(live, Tensor):  # it must stay the same tensor, as in CUDA graphs
            live.copy_(self.given)
        else:
            self.group[self.name] = self.given
        return (
            f"{self.label}: the checkpoint says {_said(self.kept)}, the cell {_said(self.given)}: "
            f"took {_said(self.given)}"
        )


def options_of(optimizer: Optimizer) -> Options:
    """What its groups say now.

    >>> import torch
    >>> options_of(torch.optim.SGD([torch.ones(1)], lr=0.1))[""]["lr"]
    0.1
    """
    return {
        label: {key: _kept(group[key]) for key in (*keys, "initial_lr") if key in group}
        for _, label, group, keys in _groups(optimizer)
    }


def other_options(given: Options, optimizer: Optimizer, schedule: Schedule) -> Iterator[OtherOption]:
    """The options that differ, after the optimizer was restored.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
    >>> given = options_of(optimizer)
    >>> optimizer.param_groups[0]["lr"] = 0.01
    >>> [str(each) for each in other_options(given, optimizer, Constant(optimizer, None))]
    ['lr: the cell says 0.1, the checkpoint 0.01: kept 0.01. .resume(settings="given") takes the cell\\'s']
    """
    for name, label, group, keys in _groups(optimizer):
        mine = given.get(label, {})
        own = schedule.named.get(name) if isinstance(schedule, Schedules) else schedule
        moves = own is not None and type(own) is not Constant
        for key in keys:
            moved = moves and key in _MOVED
            first = "initial_lr" if moved and key == "lr" else key
            if moved and first == key:
                continue  # where a schedule stands is no setting
            if first in mine and first in group and not _same(mine[first], group[first]):
                told = f"{key} of {label}" if label else key
                yield OtherOption(group, key, told, mine[first], _kept(group[first]), moved)


Groups = list[dict[str, Any]]


def groups_now(optimizer: Optimizer) -> Groups:
    """The options of each group, as they are now."""
    return [
        {key: _plain(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def said_changes(before: Groups, now: Groups) -> str:
    """What differs between the same groups at two moments, in words; empty if nothing does.

    >>> said_changes([{"lr": 0.1, "momentum": 0.0}], [{"lr": 0.05, "momentum": 0.9}])
    'lr = 0.05, momentum = 0.9'
    """
    keys = dict.fromkeys(key for group in now for key in group)
    changed = [key for key in keys if [each.get(key) for each in before] != [each.get(key) for each in now]]
    return ", ".join(f"{key} = {_each_said([each.get(key) for each in now])}" for key in changed)


def dials(optimizer: Optimizer, waits: bool) -> list[dict[str, Any]]:
    """The name of each group, its rate, momentum and weight decay: those that it has, as text.

    Args:
        optimizer: whose groups these are.
        waits: whether a value on a device may be waited for; else it is left out.

    >>> import torch
    >>> dials(torch.optim.AdamW([{"params": [torch.ones(1)], "name": "head"}], lr=0.01), True)
    [{'name': 'head', 'lr': '0.01', 'momentum': '0.9', 'weight_decay': '0.01'}]
    """
    told = []
    named = named_of(optimizer).items()
    for label, group in (found for name, each in named for found in _labelled(name, each)):
        given: dict[str, Any] = {**group}
        if "betas" in group:
            given["momentum"] = group["betas"][0]
        found = {key: given[key] for key in ("lr", "momentum", "weight_decay") if key in given}
        known = {
            key: _said(value)
            for key, value in found.items()
            if waits or not isinstance(value, Tensor) or value.device.type == "cpu"
        }
        told.append({"name": str(group.get("name") or label)} | known)
    return told


def _each_said(values: list[Any]) -> str:
    said = [_said(value) for value in values]
    return said[0] if len({*said}) == 1 else ", ".join(said)


def _groups(optimizer: Optimizer) -> Iterator[tuple[str, str, dict[str, Any], list[str]]]:
    """Each group: the optimizer's name, the group's, the group itself, and what the class takes of it."""
    for name, each in named_of(optimizer).items():
        taken = inspect.signature(type(each).__init__).parameters
        for label, group in _labelled(name, each):
            yield name, label, group, [key for key in group if key in taken and key not in _HOW]


def _labelled(name: str, optimizer: Optimizer) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, group in enumerate(optimizer.param_groups):
        place = f"group {number}" if len(optimizer.param_groups) > 1 else ""
        yield " ".join(filter(None, (name, place))), group


def _kept(value: Any) -> Any:
    """A value as it is now: a checkpoint is put into a tensor in place."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(one: Any, other: Any) -> bool:
    one, other = _plain(one), _plain(other)
    return type(one) is type(other) and bool(one == other)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _said(value: Any) -> str:
    value = _plain(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_said, value))})"
    return f"{value:g}" if isinstance(value, float) else repr(value)
