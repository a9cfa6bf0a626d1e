"""What is set on a learner after `build`: it counts from the next step on, or it is an error."""

from __future__ import annotations

import difflib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import StateError, a_kind
from ..event import Notice, Split
from ..run.loop import Act
from ..run.reshaping import name_of
from ..step.optimizers import kind_of, named_of
from ..step.schedule import Function, is_rate, rates_of, said_rates, scheduler_of, set_rates
from .core import LearnerCore

_INSTEAD = {
    "model": "its layers are changed in place (learner.model.head = ...), or build another learner with it",
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

    def reshape(self, function: Callable[[Any], Any] | None) -> None:
        """Call `function(learner)` here, between two steps, to change the training's shape: unfreeze layers,
        add a head, attach adapters, take another optimizer. Its name is noted.

        It is a part of the run: its random draws and what else it changes count. Going back over it brings
        the former layers and groups back. Stepping forward again calls it again at the same step. A new
        process that resumes calls it, too, if the builder knows it: `.reshapes(unfreeze)`. After an error,
        everything is as it was.

        >>> import torch
        >>> from torch.nn import functional as F
        >>> from notebook_learner import LearnerBuilder
        >>> def unfreeze(learner):
        ...     learner.model[0].requires_grad_(True)
        ...     learner.optimizer.add_param_group({"params": learner.model[0].parameters(), "lr": 0.01})
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 3).requires_grad_(False), torch.nn.Linear(3, 2))
        >>> optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
        >>> batches = [(torch.ones(4, 3), torch.zeros(4, 2))] * 5
        >>> builder = LearnerBuilder("shaped").loss(F.mse_loss).renderer("silent")
        >>> learner = builder.reshapes(unfreeze).build(model, optimizer, None, batches)
        >>> report = learner.step(2)
        >>> learner.reshape(unfreeze)
        >>> [len(group["params"]) for group in optimizer.param_groups]
        [2, 2]
        >>> report = learner.step()
        >>> learner.rewind(2)
        rewound to epoch 1, train, step 1 of 5 (1 step replayed, exact)
        >>> [len(group["params"]) for group in optimizer.param_groups]
        [2]

        Args:
            function: takes the learner. None drops the changes that stepping forward would make again.

        Raises:
            StateError: several devices have a part of each weight, so no layer can come or go.
        """
        __tracebackhide__ = True
        if function is not None and not callable(function):
            raise TypeError(f"reshape({function!r:.60}): give a function fn(learner)")
        with self._driver.held():
            self._premises.require_mine()
            replica = self._replica
            if function is None:
                replica.shape.drop()
            elif replica.shape.fixed:
                raise StateError(
                    'reshape(): with devices(..., strategy="fsdp") each device has a part of a layer'
                )
            else:
                replica.reshape(name_of(function), Act(function, weakref.ref(self)))
                self._stood = None if replica.rng.running else self._standing()
                self._stand_anew()

    def _set_rate(self, rate: Any) -> None:
        with self._changing():
            optimizer = self._replica.loop.update.optimizer
            groups = {name: len(each.param_groups) for name, each in named_of(optimizer).items()}
            rates = zip(rates_of(optimizer), _rates(rate, groups), strict=True)
            set_rates(optimizer, [old if new is None else new for old, new in rates])
            self._edited(f"lr = {said_rates(rates_of(optimizer))}")

    def _set_train_step(self, function: Any) -> None:
        self._set_step("train", function)

    def _set_valid_step(self, function: Any) -> None:
        self._set_step("valid", function)

    def _set_step(self, split: Split, function: Any) -> None:
        if not callable(function):
            raise TypeError(f"learner.{split}_step = {function!r:.60}: give a function fn(model, batch)")
        with self._changing():
            self._use_step(split, function, f"another {split} step: {_name_of(function)}")

    def _set_loss(self, function: Any) -> None:
        if not callable(function):
            raise TypeError(f"learner.loss = {function!r:.60}: give a function fn(output, targets)")
        with self._changing():
            self._supplies.use_loss(function)
            self._edited(f"another loss: {_name_of(function)}")

    def _set_optimizer(self, given: Any) -> None:
        with self._changing():
            replica = self._replica
            old = replica.loop.update.schedule
            optimizer = self._supplies.make_optimizer(given)
            kept = old.function if isinstance(old, Function) and "" in named_of(optimizer) else None
            schedule = self._supplies.make_schedule(kept, optimizer)
            replica.shaping.use_these(optimizer, schedule)
            self._edited(f"another optimizer: {kind_of(optimizer)}")
            if kept is None and scheduler_of(old) is not None:
                told = "the schedule was that of the former optimizer; the rate is constant now. "
                self._emit(Notice(f"{told}learner.scheduler = ... sets another schedule", "warning"))

    def _set_scheduler(self, given: Any) -> None:
        with self._changing():
            optimizer = self._replica.loop.update.optimizer
            schedule = self._supplies.make_schedule(given, optimizer)
            self._replica.shaping.use_these(optimizer, schedule)
            self._edited(f"another schedule: {schedule}")

    def _set_train(self, loader: Any) -> None:
        self._set_data("train", loader)

    def _set_valid(self, loader: Any) -> None:
        self._set_data("valid", loader)

    def _set_data(self, split: Split, loader: Any) -> None:
        with self._changing():
            self._supplies.use(self, split, loader)
            self._edited(f"other {split} data")


_SETTERS: Mapping[str, Callable[[Assigning, Any], None]] = {
    "lr": Assigning._set_rate,
    "train_step": Assigning._set_train_step,
    "valid_step": Assigning._set_valid_step,
    "loss": Assigning._set_loss,
    "optimizer": Assigning._set_optimizer,
    "scheduler": Assigning._set_scheduler,
    "train": Assigning._set_train,
    "valid": Assigning._set_valid,
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


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or a_kind(function)


def _why_not(learner: Assigning, name: str) -> str:
    known = [each for each in dir(learner) if not each.startswith("_")]
    close = difflib.get_close_matches(name, [*_SETTERS, *_OWN, *known], 1)
    meant = f"did you mean learner.{close[0]}? " if close else ""
    return f"a Learner has no {name!r} that can be set; {meant}it takes {', '.join(SETTABLE)}"
