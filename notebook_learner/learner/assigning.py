"""What is set on a learner after `build`: it counts from the next step on, or it is an error."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import a_kind
from ..event import Split
from ..step.optimizers import named_of
from ..step.schedule import is_rate, rates_of, set_rates
from .core import LearnerCore

_INSTEAD = {
    "model": "the model is changed in place, or build another learner with it",
    "optimizer": "learner.lr = ... sets its rate; for another optimizer build another learner",
    "scheduler": "learner.lr = ... sets the rate; for another schedule build another learner",
    "train": "give other data to the next fit(train, valid)",
    "valid": "give other data to the next fit(train, valid)",
}
"""What cannot be set, and what to do."""


class Assigning(LearnerCore):
    """`learner.lr = 1e-3`: what is set counts from the next step on, and is noted in the history. A name that
    means nothing is an error."""

    if not TYPE_CHECKING:  # a type checker would take every misspelt name for an attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name[0] == "_" or name in _OWN:
                object.__setattr__(self, name, value)
            elif name in _SETTERS:
                _SETTERS[name](self, value)
            elif name in _INSTEAD:
                raise AttributeError(f"learner.{name} cannot be set: {_INSTEAD[name]}", name=name, obj=self)
            elif getattr(getattr(type(self), name, None), "fset", None) is not None:
                object.__setattr__(self, name, value)
            else:
                raise AttributeError(_why_not(self, name), name=name, obj=self)

    def _set_rate(self, rate: Any) -> None:
        with self._driver.held():
            self._premises.require_mine()
            optimizer = self._replica.loop.update.optimizer
            groups = {name: len(each.param_groups) for name, each in named_of(optimizer).items()}
            rates = zip(rates_of(optimizer), _rates(rate, groups), strict=True)
            self._replica.settle()
            set_rates(optimizer, [old if new is None else new for old, new in rates])
            self._edited(f"lr = {_said(rates_of(optimizer))}")

    def _set_train_step(self, function: Any) -> None:
        self._set_step("train", function)

    def _set_valid_step(self, function: Any) -> None:
        self._set_step("valid", function)

    def _set_step(self, split: Split, function: Any) -> None:
        if not callable(function):
            raise TypeError(f"learner.{split}_step = {function!r:.60}: give a function fn(model, batch)")
        with self._driver.held():
            self._premises.require_mine()
            self._use_step(split, function, f"another {split} step: {_name_of(function)}")

    def _set_loss(self, function: Any) -> None:
        if not callable(function):
            raise TypeError(f"learner.loss = {function!r:.60}: give a function fn(output, targets)")
        with self._driver.held():
            self._premises.require_mine()
            self._supplies.use_loss(function)
            self._edited(f"another loss: {_name_of(function)}")


_SETTERS: Mapping[str, Callable[[Assigning, Any], None]] = {
    "lr": Assigning._set_rate,
    "train_step": Assigning._set_train_step,
    "valid_step": Assigning._set_valid_step,
    "loss": Assigning._set_loss,
}
_OWN = ("locals", "num_epochs")
SETTABLE = (*_SETTERS, "num_epochs")
"""What users set."""


def _rates(given: Any, groups: Mapping[str, int]) -> list[float | None]:
    """The rate of each group; None where it stays."""
    if isinstance(given, Mapping):
        if strange := [name for name in given if name not in groups or "" in groups]:
            names = ", ".join(groups) if "" not in groups else "there is one, without a name"
            raise ValueError(f"learner.lr: there is no optimizer {strange[0]!r}; there are: {names}")
        return [rate for name, count in groups.items() for rate in _each(given.get(name), count)]
    return _each(given, sum(groups.values()))


def _each(given: Any, count: int) -> list[float | None]:
    several = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given] * count
    if len(several) != count:
        raise ValueError(f"learner.lr: {len(several)} rates for {count} parameter groups; give one for each")
    for rate in several:
        if rate is not None and not is_rate(rate):
            raise ValueError(f"learner.lr = {rate!r:.60}: give a number from 0, such as 1e-3")
    return [None if rate is None else float(rate) for rate in several]


def _said(rates: list[float]) -> str:
    return f"{rates[0]:g}" if len(set(rates)) == 1 else ", ".join(f"{rate:g}" for rate in rates)


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or a_kind(function)


def _why_not(learner: Assigning, name: str) -> str:
    known = [each for each in dir(learner) if not each.startswith("_")]
    close = difflib.get_close_matches(name, [*_SETTERS, *_OWN, *known], 1)
    meant = f"did you mean learner.{close[0]}? " if close else ""
    return f"a Learner has no {name!r} that can be set; {meant}it takes {', '.join(SETTABLE)}"
