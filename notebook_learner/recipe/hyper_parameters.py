"""What was chosen for a run: options of optimizers, schedules and loss; numbers that functions read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..step.optimizers import named_of
from ..step.schedule import Constant, Function, Schedule, Schedules, schedulers_of
from .plain_values import plain

Told = dict[str, Any]


def optimizers(optimizer: Optimizer, schedule: Schedule) -> Told:
    """The class and every option of each group; of several optimizers, by name.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.ones(1)], lr=0.1)
    >>> told = optimizers(sgd, Constant(sgd, None))["optimizer"]
    >>> told["class"], told["lr"], told["momentum"]
    ('SGD', 0.1, 0)
    """
    named = {name: _optimizer(each, _moves(schedule, name)) for name, each in named_of(optimizer).items()}
    return {"optimizer": named[""]} if [*named] == [""] else {"optimizers": named}


def put_options(optimizer: Optimizer, members: Mapping[str, Any]) -> None:
    """Set options of an optimizer's groups, by the names that they have in a recipe.

    >>> import torch
    >>> sgd = torch.optim.SGD([torch.ones(1)], lr=0.1)
    >>> put_options(sgd, {"optimizer.lr": 0.05, "optimizer.nesterov": True})
    >>> sgd.param_groups[0]["lr"], sgd.param_groups[0]["nesterov"]
    (0.05, True)
    """
    for name, each in named_of(optimizer).items():
        first = f"optimizers.{name}." if name else "optimizer."
        for number, group in enumerate(each.param_groups):
            place = first if len(each.param_groups) == 1 else f"{first}group {number}."
            for key in group.keys() & {path[len(place) :] for path in members if path.startswith(place)}:
                _put(group, key, members[place + key])


def _put(group: dict[str, Any], key: str, value: Any) -> None:
    live = group[key]
    if isinstance(live, Tensor):  # it must stay the same tensor
        live.copy_(torch.as_tensor(value))
    else:
        group[key] = tuple(value) if isinstance(live, tuple) else value


def _moves(schedule: Schedule, name: str) -> bool:
    own = schedule.named.get(name) if isinstance(schedule, Schedules) else schedule
    return own is not None and type(own) is not Constant


def _optimizer(optimizer: Optimizer, moved: bool) -> Told:
    groups = [_group(group, moved) for group in optimizer.param_groups]
    told = groups[0] if len(groups) == 1 else {f"group {number}": each for number, each in enumerate(groups)}
    return {"class": type(optimizer).__qualname__, **told}


def _group(group: Mapping[str, Any], moved: bool) -> Told:
    """A group's options; of what a schedule moves, the first value, if it is known."""
    told = {name: plain(value) for name, value in [*group.items()] if name not in ("params", *_MOVED)}
    if moved:
        return told | ({"lr": plain(group["initial_lr"])} if "initial_lr" in group else {})
    return told | {name: plain(group[name]) for name in _MOVED[1:] if name in group}


_MOVED = ("initial_lr", "lr", "betas", "momentum")
"""What a schedule may move."""


def schedule_of(schedule: Schedule) -> Any:
    """The class of a schedule, and what it was made with; None for a constant rate."""
    if isinstance(schedule, Schedules):
        return {name: schedule_of(each) for name, each in schedule.named.items()}
    if isinstance(schedule, Function):
        return {"class": "function", "per": schedule.when, **function_of(schedule.function)}
    found = schedulers_of(schedule)
    return {"per": schedule.when, **_scheduler(found[0])} if found else None


def _scheduler(scheduler: Any) -> Told:
    taken = inspect.signature(type(scheduler).__init__).parameters
    options = {
        name: plain(getattr(scheduler, name))
        for name in taken
        if name not in ("self", "optimizer", "last_epoch") and hasattr(scheduler, name)
    }
    members = [_scheduler(each) for each in getattr(scheduler, "_schedulers", ())]
    return {"class": type(scheduler).__name__, **options, **({"members": members} if members else {})}


def function_of(function: Any) -> Told:
    """The name of a function or a layer, its options, and the numbers that it reads from around it.

    >>> smoothing = 0.1
    >>> def loss(output, targets, *, scale=2):
    ...     return output * smoothing
    >>> function_of(loss)
    {'name': 'loss', 'reads': {'smoothing': 0.1, 'scale': 2}}
    >>> function_of(nn.CrossEntropyLoss(label_smoothing=0.1))["label_smoothing"]
    0.1
    """
    options: Told = {}
    while isinstance(function, partial):
        options = {name: plain(value) for name, value in function.keywords.items()} | options
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    if hasattr(function, "cell_text"):
        return {"name": name, **function.options}
    if isinstance(function, nn.Module):
        return {"name": name, **module_options(function), **options}
    reads = dict(_numbers_read(function))
    return {"name": name, **({"reads": reads} if reads else {}), **options}


def module_options(module: nn.Module) -> Told:
    """The numbers, texts and small buffers that a layer keeps of how it was made."""
    # Copies, which take one instruction: the writer thread reads while a step may add a name.
    own = {name: value for name, value in [*vars(module).items()] if name[0] != "_" and name != "training"}
    kept = {name: plain(value) for name, value in own.items() if isinstance(value, (bool, int, float, str))}
    return kept | {name: plain(each) for name, each in [*module._buffers.items()] if each is not None}


def _numbers_read(function: Any) -> Iterator[tuple[str, Any]]:
    """Numbers alone: a text may be a secret."""
    code = getattr(function, "__code__", None)
    if code is None:
        return
    read: dict[str, Any] = {}
    for name in code.co_names:
        if name in getattr(function, "__globals__", {}):
            read[name] = function.__globals__[name]
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            read[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name, parameter in _parameters(function):
        if parameter.default is not inspect.Parameter.empty:
            read[name] = parameter.default
    for name, value in read.items():
        if isinstance(value, (bool, int, float)):
            yield name, plain(value)


def _parameters(function: Any) -> Any:
    try:
        return inspect.signature(function).parameters.items()
    except (TypeError, ValueError):
        return ()
