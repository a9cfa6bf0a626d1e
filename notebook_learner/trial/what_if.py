"""Two walks from the same step over the same batches: without a change, and with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat
from numbers import Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..errors import StateError, a_kind
from ..event import Notice
from ..event.position import Position
from ..run.bounds import Trained
from ..run.compared import Compared, options_of
from ..run.loop import Act, Loop
from ..run.replica import Replica
from ..step.optimizers import named_of
from ..step.step import StepFunction
from ..store.tensors import digest_of_tensor
from .changes import Changes, Comparison, require_step
from .excursion import excursion


@dataclass(frozen=True)
class Trial:
    """Which step was tried, what it returned, and what the step of a cell left."""

    position: Position
    output: Any
    locals: Mapping[str, Any] = field(default_factory=dict)


def try_step(replica: Replica, function: StepFunction | None) -> Trial:
    """Take the next training step, with another function if one is given, and undo it.

    It costs a step and a copy of the state. If the learner is in a validation, or before one, it also costs
    the rest of that validation.
    """
    __tracebackhide__ = True
    loop = replica.loop
    if function is not None:
        require_step("try_step(function)", function)
    tried = {} if function is None else {"train_step": function}
    with excursion(replica, what="a dry step", first=True) as trip:
        next_one = loop.iteration + 1
        trip.walk(Trained(next_one), changes=Changes(tried, quiet=True))  # logged names make no metric
        if loop.iteration < next_one:
            raise StateError("the last training step has been taken, so no step is left to try")
        return Trial(loop.position, loop.output)


_OTHERS = ("train_step", "batch", "clip_norm")


def what_if(replica: Replica, steps: int, changes: Mapping[str, Any]) -> Comparison:
    """Take some training steps as the run would, and again with changes; then undo all of them."""
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"what_if(steps={steps!r}): try a whole number of steps, from 1")
    said = {name: _said(value) for name, value in changes.items()}
    optimizer = replica.loop.update.optimizer
    changes = {name: _for_each_group(optimizer, name, value) for name, value in changes.items()}
    _check(replica.loop, changes)
    beyond = replica.timeline.beyond
    same = beyond is not None and beyond.options == options_of(replica.loop.update.optimizer)
    compared = Compared(beyond.known if same else ())
    with excursion(replica, what="what_if()") as trip:
        until = Trained(trip.start.position.iteration + steps)
        baseline = trip.walk(until, compared=compared)
        first = _weights(replica)
        trip.back()
        if (then := changes.get("then")) is not None:
            replica.shape.try_out("", then)
        other = trip.walk(until, changes=Changes({k: v for k, v in changes.items() if k != "then"}))
        second = _weights(replica)
    if found := compared.difference(replica.carried.left_names()):
        told = "the unchanged steps are not what was measured before the rewind, unless you changed something"
        replica.emit(Notice(f"{told}: {found}", "warning"))
    return Comparison(trip.start.position, said, (baseline, other), (first, second))


def _weights(replica: Replica) -> str:
    """A digest of the weights, if this rank has all of them."""
    if replica.ranks is not None and replica.ranks.in_parts:
        return ""
    return " ".join(map(digest_of_tensor, replica.loop.update.model.parameters()))


def _for_each_group(optimizer: Optimizer, name: str, value: Any) -> Any:
    """An option that is given by the optimizers' names, as a list for all groups."""
    named = named_of(optimizer)
    if not isinstance(value, Mapping) or name in _OTHERS or "" in named:
        return value
    if strange := [each for each in value if each not in named]:
        raise ValueError(
            f"what_if({name}=...): there is no optimizer {strange[0]!r}; there are: {', '.join(named)}"
        )
    groups = [(each, group) for each, single in named.items() for group in single.param_groups]
    if any(name not in group for _, group in groups):
        return value  # an error below says what can be changed
    return [value.get(each, group[name]) for each, group in groups]


def _check(loop: Loop, changes: Mapping[str, Any]) -> None:
    groups = loop.update.optimizer.param_groups
    options = [key for key in groups[0] if key not in ("params", "initial_lr")]
    known = [*_OTHERS, *options, "then"]
    if not changes:
        raise ValueError(f"what_if() compares with a change; it can change {', '.join(known)}")
    for name, value in changes.items():
        if name not in known:
            raise ValueError(
                f"what_if({name}=...): there is no {name} here; it can change {', '.join(known)}"
            )
        if name in options and isinstance(value, list) and len(value) != len(groups):
            raise ValueError(
                f"what_if({name}={value!r}): the optimizer has {len(groups)} groups; give one value, or a "
                f"list of {len(groups)}"
            )
        if name in options:
            for group, each in zip(groups, value if isinstance(value, list) else repeat(value), strict=False):
                _require_like(name, each, group[name])
    if "train_step" in changes:
        require_step("what_if(train_step=...)", changes["train_step"])
    if "then" in changes and not isinstance(changes["then"], Act):
        raise ValueError(f"what_if(then={changes['then']!r:.60}): give a function fn(learner)")
    if "clip_norm" in changes and not (_is_number(changes["clip_norm"]) and changes["clip_norm"] > 0):
        raise ValueError(f"what_if(clip_norm={changes['clip_norm']!r}): give a norm above 0, such as 1.0")


def _require_like(name: str, value: Any, live: Any) -> None:
    """Raise if the new value is of another kind than the option (a number, a pair): the step would fail."""
    fits = True
    if isinstance(live, bool):
        fits = isinstance(value, bool)
    elif _is_number(live):
        fits = _is_number(value)
    elif isinstance(live, tuple):
        fits = isinstance(value, tuple) and len(value) == len(live)
    if not fits:
        raise ValueError(
            f"what_if({name}={value!r:.60}): the optimizer has {live!r:.60} there; give another "
            f"{type(live).__name__}"
        )


def _is_number(value: Any) -> bool:
    one = isinstance(value, Tensor) and value.numel() == 1
    return one or (isinstance(value, Real) and not isinstance(value, bool))


def _said(value: Any) -> str:
    if value is None or isinstance(value, (int, float, str)):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, Act):
        return _said(value.function)
    if callable(value):
        return str(getattr(value, "__name__", "another"))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_said(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        said = ", ".join(map(_said, value))
        return f"[{said}]" if isinstance(value, list) else f"({said})"
    return a_kind(value)
