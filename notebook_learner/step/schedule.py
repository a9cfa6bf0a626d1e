"""When the learning rate changes: after each optimizer step or each epoch, as torch documents each
scheduler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from ..errors import StateError, a_kind
from ..event.values import Finals, Source, epoch_value

When = Literal["step", "epoch"]
TorchScheduler = LRScheduler | ReduceLROnPlateau

PER_STEP = (OneCycleLR, CyclicLR)
"""torch's documentation steps these after every batch, and all others after every epoch."""


class Constant:
    """A rate that stays the same: a float given as the scheduler, or no scheduler."""

    when: When = "epoch"
    goes_by: Source | None = None
    """The metric whose epoch value the schedule needs."""

    def __init__(self, optimizer: Optimizer, rate: float | None) -> None:
        if rate is not None:
            set_rate(optimizer, rate)
        self.rate = rate

    def after_update(self, stepped: Collection[str] | None = None) -> None:
        """Do nothing: the rate is constant."""

    def after_epoch(self, finals: Finals) -> None:
        """Do nothing: the rate is constant."""

    def capture(self) -> dict[str, Any]:
        """Return an empty dict."""
        return {}

    def check(self, state: Any, /) -> None:
        """Accept any state: it says nothing."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing: the rate itself is in the optimizer's groups."""

    def __str__(self) -> str:
        return "as the optimizer has it" if self.rate is None else f"constant {self.rate:g}"


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A function of a schedule that goes on in a fork: it was asked for its first rate, and may have counted
    that."""

    function: Callable[[int], Any]


class Function(Constant):
    """A rate computed from the number of optimizer steps so far, or of epochs if the user chose that."""

    def __init__(
        self, optimizer: Optimizer, function: Callable[[int], Any], when: When | None, first: float | None
    ) -> None:
        self.optimizer = optimizer
        self.function = function
        self.when = when or "step"
        self.moves = 0
        super().__init__(optimizer, first)

    def after_update(self, stepped: Collection[str] | None = None) -> None:
        """Count an optimizer step, and set the next rate."""
        if self.when == "step":
            self._move()

    def after_epoch(self, finals: Finals) -> None:
        """Count an epoch, and set the next rate."""
        if self.when == "epoch":
            self._move()

    def capture(self) -> dict[str, Any]:
        """Return the place on the curve."""
        return {"moves": self.moves}

    def check(self, state: Any, /) -> None:
        """Raise a StateError if a state from a file is not a place on the curve."""
        moves = state.get("moves") if isinstance(state, dict) else None
        if type(moves) is not int or moves < 0:
            raise StateError(
                "the state of the schedule is not a number of steps; it was captured from another one"
            )

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a place on the curve."""
        self.check(state)
        self.moves = state["moves"]

    def __str__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"{'a function' if name == '<lambda>' else name}, per {_unit(self.when)}"

    def _move(self) -> None:
        self.moves += 1
        set_rate(self.optimizer, float(self.function(self.moves)))


class Torch:
    """A scheduler of torch.optim, stepped at the right time."""

    def __init__(
        self, scheduler: TorchScheduler, when: When | None = None, goes_by: Source | None = None
    ) -> None:
        self.scheduler = scheduler
        self.when: When = when or ("step" if moves_per_step(scheduler) else "epoch")
        self.goes_by = goes_by
        """The metric whose epoch value `step` receives; only ReduceLROnPlateau takes one."""

    def after_update(self, stepped: Collection[str] | None = None) -> None:
        """Step the scheduler after an optimizer step, if it is stepped then."""
        if self.when == "step":
            self._step()

    def after_epoch(self, finals: Finals) -> None:
        """Step the scheduler after an epoch, if it is stepped then."""
        if self.when != "epoch":
            return
        if self.goes_by is None:
            self._step()
        else:
            self._step(epoch_value(type(self.scheduler).__name__, self.goes_by, finals))

    def _step(self, *value: float) -> None:
        # torch warns if its scheduler steps before this optimizer object did. The loop's order is right; but
        # after a restore, or an epoch that the loss scaler skipped, torch cannot know that.
        vars(self.scheduler.optimizer)["_opt_called"] = True
        step: Callable[..., None] = self.scheduler.step  # the two kinds take different arguments
        step(*value)

    def capture(self) -> dict[str, Any]:
        """Return the scheduler's state."""
        return copy.deepcopy(self.scheduler.state_dict())

    def check(self, state: Any, /) -> None:
        """Raise a StateError if a state from a file is not one of this scheduler. torch writes everything in
        it into the scheduler's attributes, also over methods."""
        _check_like(state, self.scheduler.state_dict(), type(self.scheduler).__name__)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put a captured state back."""
        self.check(state)
        self.scheduler.load_state_dict(copy.deepcopy(dict(state)))

    def __str__(self) -> str:
        by = f", by {self.goes_by[0]} {self.goes_by[1]}" if self.goes_by else ""
        return f"{type(self.scheduler).__name__}, per {_unit(self.when)}{by}"


class Schedules:
    """A schedule for each optimizer, by its name."""

    def __init__(self, named: Mapping[str, Constant | Torch]) -> None:
        self.named = dict(named)

    @property
    def when(self) -> When:
        """After optimizer steps, if one of them moves then."""
        return "step" if any(each.when == "step" for each in self.named.values()) else "epoch"

    @property
    def goes_by(self) -> Source | None:
        """The metric whose epoch value one of them needs."""
        return next((each.goes_by for each in self.named.values() if each.goes_by is not None), None)

    def after_update(self, stepped: Collection[str] | None = None) -> None:
        """Tell the schedules of the optimizers that have stepped; by default all have."""
        for name, each in self.named.items():
            if stepped is None or name in stepped:
                each.after_update()

    def after_epoch(self, finals: Finals) -> None:
        """Tell all of them."""
        for each in self.named.values():
            each.after_epoch(finals)

    def capture(self) -> dict[str, Any]:
        """Each one's state, by its name."""
        return {name: each.capture() for name, each in self.named.items()}

    def check(self, state: Any, /) -> None:
        """Raise a StateError if a state from a file is not one of these schedules."""
        if not isinstance(state, Mapping) or state.keys() != self.named.keys():
            raise StateError(
                f"the state has no schedules for the optimizers {', '.join(self.named)}; it was captured "
                "from others"
            )
        for name, each in self.named.items():
            each.check(state[name])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put captured states back."""
        self.check(state)
        for name, each in self.named.items():
            each.restore(state[name])

    def __str__(self) -> str:
        return "; ".join(f"{name}: {each}" for name, each in self.named.items())


Schedule = Constant | Torch | Schedules


def schedulers_of(schedule: Schedule) -> list[TorchScheduler]:
    """The schedulers of torch in it."""
    each = schedule.named.values() if isinstance(schedule, Schedules) else (schedule,)
    return [one.scheduler for one in each if isinstance(one, Torch)]


def scheduler_of(schedule: Schedule) -> Any:
    """What `learner.scheduler` is, and what makes the same schedule again: the scheduler of torch, also if a
    factory made it; a function; a rate or None; of several, each one's by name."""
    if isinstance(schedule, Torch):
        return schedule.scheduler
    if isinstance(schedule, Schedules):
        return {name: scheduler_of(each) for name, each in schedule.named.items()}
    return schedule.function if isinstance(schedule, Function) else schedule.rate


def functions_in(schedule: Schedule) -> Iterator[Any]:
    """The functions by which it sets rates. They are the user's: no scheduler's state has what they count."""
    if isinstance(schedule, Schedules):
        for each in schedule.named.values():
            yield from functions_in(each)
    elif isinstance(schedule, Function):
        yield schedule.function
    elif isinstance(schedule, Torch):
        yield from _functions_of(schedule.scheduler)


def _functions_of(scheduler: TorchScheduler) -> Iterator[Any]:
    for held in vars(scheduler).values():
        for each in held if isinstance(held, (list, tuple)) else (held,):
            if isinstance(each, LRScheduler):
                yield from _functions_of(each)
            elif callable(each) and getattr(each, "__self__", None) is not scheduler:
                yield each


def moves_per_step(scheduler: Any) -> bool:
    """Whether torch's documentation steps it after every batch; for a chain, its members decide."""
    members = getattr(scheduler, "_schedulers", ())
    return isinstance(scheduler, PER_STEP) or any(moves_per_step(member) for member in members)


def _check_like(saved: Any, live: Any, place: str) -> None:
    """Check that a saved value is of the kind of the live one, and has no name that the live one lacks. A
    None on either side passes: it may have become a value, or become one later."""
    if saved is None or live is None:
        return
    if _kind(saved) is not _kind(live):
        raise StateError(
            f"the state's {place} is {a_kind(saved)}, not {a_kind(live)}; it was "
            "captured from another scheduler"
        )
    if type(live) is dict:
        strange = [key for key in saved if key not in live]
        if strange:
            raise StateError(
                f"the state's {place} has {str(strange[0])[:40]!r}, which this scheduler lacks; it was "
                "captured from another one"
            )
        for key, value in saved.items():
            _check_like(value, live[key], f"{place}.{key}")
    elif isinstance(live, (list, tuple)):
        for number, value in enumerate(saved):
            if live:
                _check_like(value, live[min(number, len(live) - 1)], f"{place}[{number}]")


def _kind(value: Any) -> type:
    """A rate may be a number or a tensor, and a number may be of either type."""
    if isinstance(value, (bool, int, float, Tensor)):
        return float
    return type(value)


def _unit(when: When) -> str:
    return "optimizer step" if when == "step" else "epoch"


def is_rate(rate: Any) -> bool:
    """Whether it is a learning rate: a number from 0, or a tensor of one.

    >>> is_rate(0.1), is_rate(True), is_rate(-1), is_rate(float("nan"))
    (True, False, False, False)
    """
    if isinstance(rate, Tensor) and rate.numel() == 1:
        rate = rate.item()
    return isinstance(rate, Real) and not isinstance(rate, bool) and isfinite(rate) and float(rate) >= 0


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set this rate in all groups."""
    set_rates(optimizer, [rate] * len(optimizer.param_groups))


def set_rates(optimizer: Optimizer, rates: Sequence[float]) -> None:
    """Set each group's rate."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):  # must stay the same tensor (capturable)
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def rates_of(optimizer: Optimizer) -> list[float]:
    """The rate of each group."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def said_rates(rates: Sequence[Any]) -> str:
    """Rates as text: one if all are the same.

    >>> said_rates([0.1, 0.1]), said_rates([0.1, 0.25])
    ('0.1', '0.1, 0.25')
    """
    return ", ".join(f"{rate:g}" for rate in (rates[:1] if len(set(rates)) == 1 else rates))


def report_steps(optimizers: Iterable[Optimizer]) -> None:
    """Wrap `optimizer.step` as torch's schedulers do. Their wrapper notes each call, and they warn if a
    copied optimizer has the plain method."""
    for each in optimizers:
        _report_steps(each)


def _report_steps(optimizer: Optimizer) -> None:
    step: Callable[..., Any] = optimizer.step

    def reporting(*args: Any, **kwargs: Any) -> Any:
        vars(optimizer)["_opt_called"] = True
        return step(*args, **kwargs)

    vars(reporting)["_wrapped_by_lr_sched"] = True
    vars(optimizer)["step"] = reporting
