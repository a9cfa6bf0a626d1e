"""Copies of a program for a fork: what its steps reach is copied with the model, and its functions are bound
to that.

A function is copied with new cells and with a namespace of its own. So child and parent share nothing that a
step writes. What is large and only read stays shared, and so do modules, loggers and the like.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..errors import StateError
from ..step.schedule import report_steps
from .classify import HIDDEN_OF_OPTIMIZERS, PLAIN, is_reported
from .heap import Heap, ReachedObject, name_of_global, said_of
from .hooks import OF_OPTIMIZERS, OF_PARAMETERS
from .iterators import itertools_copied
from .kinds import LONG, MISSING, GlobalName
from .memory import ArrayKind, ArrayTaken, TensorKind, TensorTaken
from .plain import Look, is_below
from .reading import functions_of, is_users_function, names_in
from .untouched import TableKind

_LARGE = 1 << 20
"""Bytes from which a tensor or an array that no step has changed is shared."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Nested things, copied, and which object is the copy of which."""

    made: Any
    of: dict[int, Any]
    """By the ids of the originals, as `copy.deepcopy` has it."""

    def taken(self, taken: Any) -> Any:
        """What was taken of an original, as what was taken of its copy."""
        if id(taken) in self.of:
            return self.of[id(taken)]
        if type(taken) is tuple:
            return tuple(map(self.taken, taken))
        if isinstance(taken, TensorTaken):
            return replace(taken, version=-2, grad=self.taken(taken.grad))
        if taken is MISSING or isinstance(taken, (ArrayTaken, PLAIN)):
            return taken
        with itertools_copied():
            return copy.deepcopy(taken, self.of)

    def look(self, look: Any, heap: Heap) -> Look | None:
        """A look of the originals, as a look of their copies."""
        if not isinstance(look, Look):
            return None
        known = [
            replace(each, live=self.taken(each.live), taken=self.taken(each.taken))
            for each in look.known.values()
        ]
        return Look(heap, {id(each.live): each for each in known})


def copied_program(heap: Heap, things: Any) -> Copies:
    """A deep copy of nested things: the model, the optimizer, steps, loaders.

    Raises:
        StateError: steps reach something that cannot be copied, and both runs would change it.
    """
    memo: dict[int, Any] = {}
    functions = _FunctionCopies(heap, memo)
    with itertools_copied():
        made = copy.deepcopy(things, memo)
        functions.fill()
    for live in list(memo.get(id(memo), ())):
        if isinstance(live, Tensor):
            _copy_extras(live, memo)
        elif isinstance(live, Optimizer):
            _copy_attributes(live, memo, but=HIDDEN_OF_OPTIMIZERS)
            _copy_steps(live, memo)
    return Copies(made, memo)


class _FunctionCopies:
    """Makes the copies of functions, cells and namespaces, empty first: they refer to each other."""

    def __init__(self, heap: Heap, memo: dict[int, Any]) -> None:
        self._memo = memo
        entries = list(heap.entries.values())
        of_classes = _functions_of_classes(entries)
        _require_no_ties(heap, entries, of_classes)
        memo.update(
            {id(live): live for live, _ in heap.constants.values() if not hasattr(live, "__deepcopy__")}
        )
        for entry in entries:
            if _is_shared(entry):
                memo[id(entry.live)] = entry.live
        self._functions = [
            entry.live
            for entry in entries
            if isinstance(entry.live, types.FunctionType)
            and is_users_function(entry.live)
            and id(entry.live) not in of_classes
        ]
        self._globals = [entry.live for entry in entries if isinstance(entry.live, GlobalName)]
        self._cells = {
            id(e.live): (e.live, types.CellType()) for e in entries if isinstance(e.live, types.CellType)
        }
        self._spaces: dict[int, dict[str, Any]] = {}
        for name in self._globals:
            self._spaces.setdefault(id(name.space), dict(name.space))
        memo.update({key: made for key, (_, made) in self._cells.items()})
        memo.update({id(name): GlobalName(self._spaces[id(name.space)], name.name) for name in self._globals})
        for function in self._functions:
            memo[id(function)] = self._copied(function)

    def _copied(self, function: types.FunctionType) -> types.FunctionType:
        cells = tuple(self._cells.get(id(cell), (cell, cell))[1] for cell in function.__closure__ or ())
        space = self._spaces.get(id(function.__globals__), function.__globals__)
        made = types.FunctionType(
            function.__code__, space, function.__name__, function.__defaults__, cells or None
        )
        made.__qualname__, made.__module__, made.__doc__ = (
            *(function.__qualname__, function.__module__, function.__doc__),
        )
        return made

    def fill(self) -> None:
        """Give them their contents, which refer to the copies by now."""
        memo = self._memo
        for function in self._functions:
            made = memo[id(function)]
            made.__defaults__ = copy.deepcopy(function.__defaults__, memo)
            made.__kwdefaults__ = copy.deepcopy(function.__kwdefaults__, memo)
            made.__dict__.update(copy.deepcopy(function.__dict__, memo))
        for cell, made in self._cells.values():
            try:
                made.cell_contents = copy.deepcopy(cell.cell_contents, memo)
            except ValueError:  # it is empty
                continue
        for name in self._globals:
            if name.name in name.space:
                copied = copy.deepcopy(name.space[name.name], memo)
                self._spaces[id(name.space)][name.name] = copied


def _functions_of_classes(entries: list[ReachedObject]) -> dict[int, types.FunctionType]:
    """The methods of the user's classes: a class is not copied, so they are what they were."""
    return {
        id(function): function
        for entry in entries
        if isinstance(entry.live, type)
        for function in functions_of(entry.live)
    }


def _require_no_ties(
    heap: Heap, entries: list[ReachedObject], of_classes: dict[int, types.FunctionType]
) -> None:
    """Raise if both runs would change one thing."""
    tied = [
        f"{said_of(each.path)} ({each.kind})" for each in heap.left.values() if "read only" not in each.why
    ]
    moving = [entry.path for entry in entries if entry.moves]
    shared = [
        entry.path for entry in entries if isinstance(entry.live, type) or heap.is_of_module(entry.live)
    ]
    tied += [said_of(path) for path in moving if any(is_below(path, name) for name in shared)]
    for function in of_classes.values():
        named = [name_of_global(function.__globals__, name) for name in names_in(function.__code__)]
        named += [f"{function.__qualname__}: {name}" for name in function.__code__.co_freevars]
        tied += [f"{name}, which {function.__qualname__} uses" for name in named if _holds(name, moving)]
    if tied:
        raise StateError(
            f"fork(): both runs would change what cannot be copied: {', '.join(dict.fromkeys(tied))}. "
            "Make it an attribute of the model, or build the second learner by running the program again"
        )


def _holds(path: str, moving: list[str]) -> bool:
    """Whether steps change the variable, or something in it."""
    return any(is_below(each, path) for each in moving)


def _is_shared(entry: ReachedObject) -> bool:
    """Whether it is large, and no step has changed it."""
    if isinstance(entry.live, type):
        return True
    if entry.moves:
        return False
    if isinstance(entry.kind, TableKind):
        return True
    if isinstance(entry.kind, (TensorKind, ArrayKind)):
        return bool(entry.live.nbytes > _LARGE)
    return isinstance(entry.live, (list, dict)) and len(entry.live) > LONG


def _copy_extras(live: Tensor, memo: dict[int, Any]) -> None:
    """Give the copy of a parameter the original's hooks and attributes, which a deep copy loses."""
    made = memo.get(id(live))
    if not isinstance(made, Tensor) or made is live:
        return
    for kind in OF_PARAMETERS:
        if (held := getattr(live, kind)) is not None:
            setattr(made, kind, copy.deepcopy(held, memo))  # the dict that the copies of its handles know
    _copy_attributes(live, memo)


def _copy_steps(live: Optimizer, memo: dict[int, Any]) -> None:
    """Give the copy of an optimizer the original's hooks, and its `step` if the user has replaced that. A
    schedule's wrapper of it would step the original, so the copy gets one of its own."""
    made = memo.get(id(live), live)
    step = vars(live).get("step")
    if made is live:
        return
    for name in OF_OPTIMIZERS:
        vars(made)[name] = copy.deepcopy(vars(live)[name], memo)
    if is_reported(step):
        report_steps([made])
    elif step is not None:
        vars(made)["step"] = copy.deepcopy(step, memo)


def _copy_attributes(live: Any, memo: dict[int, Any], but: Collection[str] = ()) -> None:
    """Give a copy the attributes that the class of the original leaves out of copies."""
    made = memo.get(id(live), live)
    for name, value in live.__dict__.items():
        if name not in made.__dict__ and name not in but:
            made.__dict__[name] = copy.deepcopy(value, memo)
