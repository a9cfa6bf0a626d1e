"""The breakpoints of a learner: conditions that can be switched on and off, and count their hits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from ..errors import wrong_arguments
from .base import Asked, Condition, Moment


class When(Asked):
    """Stop when a function of the moment returns True or a reason. `learner.breakpoints.add(lambda m: ...)`
    makes one.

    The function is called at every training step, after backward and before the update. Reading a tensor
    (`m.loss > 5`) makes the training wait for the device at every step. The other conditions do not wait.
    """

    def __init__(self, function: Callable[[Moment], bool | str]) -> None:
        self.function = function

    def asks(self, moment: Moment) -> bool | str:
        answer = self.function(moment)
        return answer if isinstance(answer, str) else bool(answer)

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return "a function" if name == "<lambda>" else name


class Breakpoint:
    """One condition of a learner, with a switch to turn it on and off."""

    def __init__(self, name: str, condition: Condition, once: bool, changed: Callable[[], None]) -> None:
        self.name = name
        self.condition = condition
        self.once = once
        """Whether it switches itself off when it hits."""
        self.hits = 0
        """How often it has stopped the training."""
        self._on = True
        self._changed = changed

    @property
    def on(self) -> bool:
        """Whether it can stop the training. Set it at any time; it takes effect at the next boundary."""
        return self._on

    @on.setter
    def on(self, on: bool) -> None:
        self._on = bool(on)
        self._changed()

    def hit(self) -> None:
        """Count a hit: it stops the training now."""
        self.hits += 1
        if self.once:
            self.on = False

    def __repr__(self) -> str:
        parts = ["once"] * self.once + ["off"] * (not self.on)
        if self.hits:
            parts.append(f"hit {'once' if self.hits == 1 else f'{self.hits} times'}")
        return f"{self.name} ({', '.join(parts)})" if parts else self.name


class Breakpoints:
    """The list of conditions that stop a training. A cell that ends with it shows it.

    >>> from notebook_learner.breakpoint import AtStep, NonFinite
    >>> breakpoints = Breakpoints()
    >>> breakpoints.add(NonFinite()), breakpoints.add(AtStep(100), once=True)
    (NonFinite(), AtStep(100) (once))
    >>> breakpoints["NonFinite()"].on = False
    >>> breakpoints
    1. NonFinite() (off)
    2. AtStep(100) (once)
    """

    def __init__(self) -> None:
        self._all: list[Breakpoint] = []
        self.changes = 0
        """Grows with every change, so that code elsewhere notices one."""

    def add(
        self, condition: Condition | Callable[[Moment], bool | str], *, once: bool = False, name: str = ""
    ) -> Breakpoint:
        """Stop the training at the step that meets a condition.

        Args:
            condition: one of `notebook_learner.breakpoint`, or a function. The function is called with the
                moment (loss, output, batch, gradients, step, ...) of every training step before its update.
            once: switch it off when it hits.
            name: the name in the list; by default that of the condition.
        """
        if isinstance(condition, type) or not (isinstance(condition, Condition) or callable(condition)):
            raise TypeError(
                f"a breakpoint is a condition such as NonFinite(), or a function of the moment, not "
                f"{condition!r}"
            )
        if not isinstance(condition, Condition):
            if why := wrong_arguments(condition, "the moment"):
                raise TypeError(f"a breakpoint's function: {why}; write lambda moment: moment.loss > 100")
            condition = When(condition)
        made = Breakpoint(self._free(name or repr(condition)), condition, once, self._changed)
        self._all = [*self._all, made]
        self._changed()
        return made

    def remove(self, which: Breakpoint | str | int) -> None:
        """Remove a breakpoint: give it, its name or its number in the list."""
        gone = which if isinstance(which, Breakpoint) else self[which]
        self._all = [each for each in self._all if each is not gone]
        self._changed()

    def clear(self) -> None:
        """Remove all breakpoints."""
        self._all = []
        self._changed()

    def become(self, others: Breakpoints) -> None:
        """Take over another list's breakpoints, with memories and counts of their own, for a forked run."""
        self._all = [self._copy_of(each) for each in others]
        self._changed()

    def _copy_of(self, other: Breakpoint) -> Breakpoint:
        condition = other.condition if isinstance(other.condition, When) else deepcopy(other.condition)
        mine = Breakpoint(other.name, condition, other.once, self._changed)
        mine._on = other.on
        return mine

    def __getitem__(self, which: str | int) -> Breakpoint:
        """Return a breakpoint by name, or by number: 1 is the first."""
        for number, each in enumerate(self._all, 1):
            if which in (each.name, number):
                return each
        there = ", ".join(each.name for each in self._all) or "none"
        raise KeyError(f"there is no breakpoint {which!r}; there are: {there}")

    def __iter__(self) -> Iterator[Breakpoint]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        lines = [f"{number}. {each!r}" for number, each in enumerate(self._all, 1)]
        return "\n".join(lines) or "no breakpoints; learner.breakpoints.add(NonFinite()) makes one"

    def _free(self, name: str) -> str:
        taken: set[Any] = {each.name for each in self._all}
        number = 1
        while (free := name if number == 1 else f"{name} {number}") in taken:
            number += 1
        return free

    def _changed(self) -> None:
        self.changes += 1
