"""A look as plain data, for a file, and a look made of what a file holds, for the objects of this program.

A file holds values and no code. Structure and classes come from the program, which has been run again: an
object is found by its path, such as `train_step: memory` or `model.encoder.hidden`. Containers, tensors,
arrays and generators that steps have made are made anew; an object of a class is made anew if the program
reaches that class.
"""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from ..errors import StateError
from ..state.state import Held
from . import generators
from .hooks import FlagsKind, HooksKind, MadeHandles
from .iterators import IteratorKind, Stand, is_own_list, iterator_at, stand_of
from .kinds import (
    MISSING,
    AttributesKind,
    CellKind,
    ClassKind,
    DictKind,
    FilledKind,
    FunctionKind,
    GeneratorKind,
    GlobalKind,
    Kind,
    SequenceKind,
    SetKind,
    same_values,
)
from .memory import ArrayKind, ArrayTaken, TensorKind, TensorTaken

_AS_IT_IS = (int, float, bool, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
_ROWS = 16
"""From this many tuples on, those that are alike are written column by column: a file with a tensor for each
part of each transition would take minutes."""
_TYPES = {
    each.__name__: each
    for each in (int, float, bool, str, list, dict, set, tuple, deque, Counter, OrderedDict)
}
_DICTS = {each.__name__: each for each in (dict, OrderedDict, Counter)}
_BASES: dict[str, Any] = {"object": object, "list": list, "dict": dict, "set": set, "deque": deque}
_MAKERS: dict[str, Any] = {
    "iter": iter,
    **{name: each for name, each in vars(itertools).items() if isinstance(each, type)},
    **{each.__name__: each for each in (enumerate, zip, map, filter, reversed)},
}


@dataclass(frozen=True, slots=True)
class KnownObject:
    """What one object held."""

    live: Any
    kind: Kind
    taken: Any
    path: str
    born: bool
    """Whether a step made it, so that a program that is run again does not bring it."""


class Program(Protocol):
    """The objects that are reached in a program."""

    @property
    def entries(self) -> Mapping[int, Any]:
        """What can change, by id."""

    @property
    def constants(self) -> Mapping[int, tuple[Any, str]]:
        """What cannot, with the paths at which it is reached."""

    @property
    def owned(self) -> Mapping[int, tuple[Any, str]]:
        """What other parts of the state hold, likewise: such as the model's parameters."""

    def places(self) -> dict[str, Any]:
        """All that the program has brought, by path."""

    def kind_of(self, live: Any, /) -> Any:
        """How an object is kept."""


def is_below(path: str, name: str) -> bool:
    """Whether a path leads to what has this name, or to something in it."""
    return path == name or path.startswith((f"{name}=", f"{name}.", f"{name}["))


class Look(Held):
    """What all objects that steps had changed by then held, at one moment. In another process, after a
    pickle, it is plain data for the objects there."""

    __slots__ = ("_tree", "heap", "known")

    def __init__(
        self, heap: Program | None, known: Mapping[int, KnownObject], tree: Mapping[str, Any] | None = None
    ) -> None:
        self.heap, self.known, self._tree = heap, known, tree

    def held(self) -> list[Tensor]:
        return [tensor for each in self.known.values() for tensor in each.kind.tensors(each.taken)]

    def plain(self) -> Mapping[str, Any]:
        if self._tree is not None:
            return self._tree
        assert self.heap is not None
        return {"objects": _LookWriter(self, self.heap).objects()}

    def without(self, names: Collection[str]) -> Look:
        """The same, but for what has these names."""
        left = {
            key: each for key, each in self.known.items() if not any(is_below(each.path, n) for n in names)
        }
        return Look(self.heap, left) if names else self

    def __reduce__(self) -> tuple[Any, ...]:
        return Look, (None, {}, self.plain())

    def __eq__(self, other: object) -> bool:
        """Whether both say the same of two programs that are alike."""
        return isinstance(other, Look) and same_values(self._told(), other._told())

    __hash__ = None  # type: ignore[assignment]

    def _told(self) -> list[Any]:
        return [[path, kind, about, taken] for path, _, kind, about, taken in self.plain()["objects"]]

    def __repr__(self) -> str:
        return f"Look({len(self.known)} objects)"


# To a file -------------------------------------------------------------------------------------------


class _LookWriter:
    """Writes the objects that the program brings again, and those that are reached from them, in an order
    that does not depend on the way that led here."""

    def __init__(self, look: Look, heap: Program) -> None:
        self._heap = heap
        self._known = look.known
        brought = sorted((each for each in look.known.values() if not each.born), key=lambda each: each.path)
        self._order = brought
        self._numbers = {id(each.live): number for number, each in enumerate(brought)}

    def objects(self) -> list[Any]:
        found = []
        for each in self._order:  # it grows on the way
            path = None if each.born else each.path
            taken = self._taken(each.kind, each.taken)
            found.append([path, each.path, each.kind.name, self._about(each.live), taken])
        return found

    def _number_of(self, value: Any) -> int | None:
        number = self._numbers.get(id(value))
        if number is None and id(value) in self._known:
            number = self._added(self._known[id(value)])
        return number

    def _added(self, known: KnownObject) -> int:
        number = self._numbers[id(known.live)] = len(self._order)
        self._order.append(known)
        return number

    def _about(self, live: Any) -> Any:
        """What a new one would be made of."""
        if isinstance(live, deque):
            return live.maxlen
        if isinstance(live, defaultdict):
            return ["defaultdict", self._ref(live.default_factory)]
        if isinstance(live, torch.Generator):
            return str(live.device)
        if isinstance(live, np.random.Generator):
            return ["Generator", type(live.bit_generator).__name__]
        if isinstance(live, RemovableHandle):
            return self._about_handle(live)
        return type(live).__qualname__

    def _about_handle(self, handle: RemovableHandle) -> list[Any]:
        """The number of the dict of hooks, and the place in it of the hook that the handle removes."""
        known = self._known.get(id(handle.hooks_dict_ref()))
        numbers = () if known is None else known.taken[0]
        if known is None or handle.id not in numbers:
            return ["handle", None, None]
        return ["handle", self._number_of(known.live), numbers.index(handle.id)]

    def _taken(self, kind: Kind, taken: Any) -> Any:
        if isinstance(kind, (SequenceKind, SetKind)):
            return self._items(taken)
        if isinstance(kind, (HooksKind, FlagsKind)):  # another process counts in another way
            return self._items(taken[1]) if isinstance(kind, HooksKind) else None
        if isinstance(kind, (DictKind, AttributesKind, ClassKind, FunctionKind)):
            return [self._items(taken[0]), self._items(taken[1])]
        if isinstance(kind, FilledKind):
            return [self._taken(kind.content, taken[0]), self._taken(kind.attributes, taken[1])]
        if isinstance(kind, (CellKind, GlobalKind)):
            return None if taken is MISSING else self._ref(taken)
        if isinstance(kind, TensorKind):
            return [taken.copy, taken.trains, None if taken.grad is None else self._ref(taken.grad)]
        if isinstance(kind, ArrayKind):
            if taken.copy is not None and taken.copy.dtype.hasobject:
                return [list(taken.copy.shape), self._items(tuple(taken.copy.flat))]
            return taken.copy
        if isinstance(kind, IteratorKind):
            return self._stand(stand_of(taken))
        return taken  # a generator's state, a state_dict

    def _stand(self, stand: Stand) -> Any:
        def part(value: Any) -> Any:
            if is_own_list(value, stand):
                return ["items", [self._ref(each) for each in value]]
            return self._stand(value) if isinstance(value, Stand) else self._ref(value)

        several = type(stand.state) is tuple
        state = [part(each) for each in stand.state] if several else [part(stand.state)]
        return ["iterator", stand.make.__name__, [part(each) for each in stand.arguments], several, state]

    def _items(self, items: Sequence[Any]) -> Any:
        columns = _columns(items)
        return [self._ref(item) for item in items] if columns is None else columns

    def _ref(self, value: Any) -> Any:
        if (number := self._number_of(value)) is not None:
            return ["#", number]
        if type(value) in _AS_IT_IS or isinstance(value, np.generic):
            return ["=", value]
        if isinstance(value, type) and value in _TYPES.values():
            return ["type", value.__name__]
        if (path := self._path_of(value)) is not None:
            return ["@", path]
        if isinstance(value, tuple):
            named = type(value).__qualname__ if hasattr(value, "_fields") else None
            return ["tuple", named, [self._ref(each) for each in value]]
        if isinstance(value, range):
            return ["range", [value.start, value.stop, value.step]]
        if isinstance(value, frozenset):
            return ["frozenset", [self._ref(each) for each in value]]
        if isinstance(value, Enum):
            return ["enum", type(value).__qualname__, value.name]
        if isinstance(value, (Tensor, np.ndarray)):
            return ["t", value.detach().clone() if isinstance(value, Tensor) else value]
        kind = self._heap.kind_of(value)
        if isinstance(kind, Kind):  # a new one is made of it; the program may hold it no more
            entry = self._heap.entries.get(id(value))
            said = "" if entry is None else entry.path
            return ["#", self._added(KnownObject(value, kind, kind.take(value), said, True))]
        return ["?", type(value).__name__]

    def _path_of(self, value: Any) -> str | None:
        entry = self._heap.entries.get(id(value))
        if entry is not None and not entry.born:
            return str(entry.path)
        known = self._heap.constants.get(id(value)) or self._heap.owned.get(id(value))
        return None if known is None else known[1]


def _columns(items: Sequence[Any]) -> Any:
    """Tuples of numbers, arrays and tensors that are alike, as one array for each of their places; else
    None."""
    if len(items) < _ROWS or not isinstance(items[0], tuple) or len({type(item) for item in items}) > 1:
        return None
    width = len(items[0])
    if not width or any(len(item) != width for item in items):
        return None
    columns = [_column([item[place] for item in items]) for place in range(width)]
    if any(column is None for column in columns):
        return None
    named = type(items[0]).__qualname__ if hasattr(items[0], "_fields") else None
    return {"rows": columns, "of": named}


def _column(values: list[Any]) -> Any:
    first = values[0]
    kinds = {type(each) for each in values}
    if len(kinds) > 1:
        return None
    if type(first) in (int, float, bool, str, type(None)):
        return ["=", values]
    if isinstance(first, np.generic) and first.dtype.kind in "biufc":
        return ["scalars", np.array(values)]
    if isinstance(first, np.ndarray) and not first.dtype.hasobject:
        same = all(each.shape == first.shape and each.dtype == first.dtype for each in values)
        return ["arrays", np.stack(values)] if same else None
    if type(first) is Tensor and first.is_cpu and first.layout is torch.strided:
        same = all(
            each.shape == first.shape and each.dtype == first.dtype and not each.requires_grad and each.is_cpu
            for each in values
        )
        return ["tensors", torch.stack(values)] if same else None
    return None


# From a file -----------------------------------------------------------------------------------------


class _NotYet(Exception):
    """What an iterator goes over is not there yet."""


class LookReader:
    """Makes a look of what a file holds. What finds no place is listed in `missing`, and may come later: with
    the loader that `fit` is given, or with the cell that is the step."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree
        self.lives: dict[int, Any] = {}
        """The objects of this program, by their numbers in the file."""
        self.missing: dict[str, str] = {}
        self._handles = MadeHandles()
        self._asked: set[int] = set()
        """The objects that an object refers to, by number."""

    def look(self, heap: Program) -> Look:
        """The look, for the objects that the program has brought by now.

        Raises:
            StateError: the file does not hold such values.
        """
        try:
            return self._look(heap)
        except (
            TypeError,
            ValueError,
            KeyError,
            IndexError,
            AttributeError,
            RuntimeError,
            OverflowError,
        ) as error:
            raise StateError(
                f"this file does not hold a valid state: what steps reach ({error!r})"
            ) from error

    def _look(self, heap: Program) -> Look:
        self.missing = {}
        self._heap = heap
        self._places = heap.places()
        self._classes = {each.__qualname__: each for each in _classes_in(heap)}
        objects = self._tree["objects"]
        for path, said, kind, *_ in objects:
            if not (path is None or isinstance(path, str)) or type(said) is not str or type(kind) is not str:
                raise ValueError("an object without a name")
        for number, each in sorted(enumerate(objects), key=_is_iterator):
            if number not in self.lives or (each[0] is not None and each[0] in self._places):
                self._find(number, *each)
        found: dict[int, KnownObject] = {}
        refers: dict[int, set[int]] = {}
        for number, live in self.lives.items():
            path, said, _, _, taken = objects[number]
            kind, self._asked = heap.kind_of(live), set()
            with suppress(_NotYet):
                found[number] = KnownObject(live, kind, self._taken(kind, live, taken), said, path is None)
                refers[number] = self._asked
        self._handles.settle(self.lives)
        held = self._held(refers, objects)
        for number, (path, said, kind, *_) in enumerate(objects):
            if number not in held:  # the program has not brought what holds it
                self.lives.pop(number, None)
                if path is not None:
                    self.missing[said] = kind
        return Look(heap, {id(found[number].live): found[number] for number in sorted(held)})

    def _held(self, refers: Mapping[int, set[int]], objects: list[Any]) -> set[int]:
        """The objects of the program, and those that these refer to."""
        waiting = [number for number in refers if self._places.get(objects[number][0]) is self.lives[number]]
        held: set[int] = set()
        while waiting:
            if (number := waiting.pop()) not in held and number in refers:
                held.add(number)
                waiting += refers[number]
        return held

    def _find(self, number: int, path: Any, said: str, kind: str, about: Any, taken: Any) -> None:
        live = self._places.get(path, MISSING) if path is not None else MISSING
        if live is not MISSING:
            fits = self._heap.kind_of(live)
            if isinstance(fits, Kind) and fits.name == kind:
                self.lives[number] = live
                return
        made = self._made(kind, about, taken)
        if made is MISSING:
            self.missing[said] = kind
        else:
            self.lives[number] = made

    def _made(self, kind: str, about: Any, taken: Any) -> Any:
        if kind == "list" and about == "list":
            return [None] * _count(taken)
        if kind == "deque":
            return deque(maxlen=None if about is None else int(about))
        if kind == "set" and about == "set":
            return set()
        if kind == "dict":
            if isinstance(about, list):
                factory = self._resolve(about[1])
                return defaultdict(factory) if factory is None or factory in _TYPES.values() else MISSING
            if about in _DICTS:
                return _DICTS[about]()
        if kind == "tensor" and isinstance(taken[0], Tensor):
            return taken[0].clone().requires_grad_(bool(taken[1]))
        if kind == "array":
            return np.empty(taken[0], dtype=object) if isinstance(taken, list) else taken.copy()
        if kind == "generator":
            return generators.made(about)
        if kind == "handle" and isinstance(about, list):
            return self._handles.made(*about[1:])
        if kind == "iterator":
            with suppress(_NotYet):
                return self._iterator(taken)
            return MISSING
        if about in self._classes and kind in _BASES:
            new = _BASES[kind].__new__(self._classes[about])  # the class's own __new__ does not run
            if kind == "list":
                list.extend(new, [None] * _count(taken[0]))
            return new
        return MISSING

    def _taken(self, kind: Any, live: Any, taken: Any) -> Any:
        if isinstance(kind, (SequenceKind, SetKind)):
            return self._items(taken)
        if isinstance(kind, (HooksKind, FlagsKind)):
            return self._hooks(live, taken) if isinstance(kind, HooksKind) else kind.take(live)
        if isinstance(kind, (DictKind, AttributesKind, ClassKind, FunctionKind)):
            names, values = self._items(taken[0]), self._items(taken[1])
            if len(names) != len(values):
                raise ValueError("other names than values")
            if not isinstance(kind, DictKind) and not all(type(name) is str for name in names):
                raise TypeError("a name that is no text")
            return names, values
        if isinstance(kind, FilledKind):
            return self._taken(kind.content, live, taken[0]), self._taken(kind.attributes, live, taken[1])
        if isinstance(kind, (CellKind, GlobalKind)):
            return MISSING if taken is None else self._resolve(taken)
        if isinstance(kind, TensorKind):
            copy, trains, grad = taken
            _require(copy is None or isinstance(copy, Tensor), "no tensor")
            known = None if grad is None else self._resolve(grad)
            _require(known is None or isinstance(known, Tensor), "no gradient")
            shape, dtype = (live.shape, live.dtype) if copy is None else (copy.shape, copy.dtype)
            return TensorTaken(copy, -2, 0, shape, dtype, bool(trains), known)
        if isinstance(kind, ArrayKind):
            return self._array(live, taken)
        if isinstance(kind, GeneratorKind):
            return generators.checked(live, taken)
        if isinstance(kind, IteratorKind):
            return self._iterator(taken)
        return taken

    def _hooks(self, live: Any, taken: Any) -> Any:
        hooks = self._items(taken)
        for ref, hook in zip(taken, hooks, strict=True):
            if hook is None and ref[0] == "@":
                self.missing[ref[1]] = "hook"
        return self._handles.numbered(live, hooks)

    def _array(self, live: Any, taken: Any) -> ArrayTaken:
        if isinstance(taken, list):
            shape, items = taken
            made = np.empty(len(self._items(items)), dtype=object)
            made[:] = list(self._items(items))
            return ArrayTaken(made.reshape(shape), None)
        _require(taken is None or isinstance(taken, np.ndarray), "no array")
        _require(taken is None or taken.dtype == live.dtype, "an array of another type")
        return ArrayTaken(taken, None)

    def _iterator(self, told: Any) -> Any:
        said, name, arguments, several, state = told
        _require(said == "iterator", "no iterator")

        def part(value: Any) -> Any:
            if value[0] == "iterator":
                return self._iterator(value)
            if value[0] == "items":
                return [self._resolve(each) for each in value[1]]
            if value[0] in ("#", "@") and value[1] not in (self.lives if value[0] == "#" else self._places):
                raise _NotYet
            return self._resolve(value)

        parts = tuple(part(each) for each in state)
        return iterator_at(
            Stand(_MAKERS[name], tuple(part(each) for each in arguments), parts if several else parts[0])
        )

    def _items(self, items: Any) -> tuple[Any, ...]:
        if not isinstance(items, dict):
            return tuple(self._resolve(item) for item in items)
        columns = [_values(*column) for column in items["rows"]]
        rows = zip(*columns, strict=True)
        if items["of"] is None:
            return tuple(rows)
        kind = self._tuple_class(items["of"])
        return tuple(tuple.__new__(kind, row) for row in rows)

    def _tuple_class(self, name: str) -> type:
        kind = self._classes.get(name)
        if kind is None or not issubclass(kind, tuple):
            self.missing[name] = "class"
            return tuple
        return kind

    def _resolve(self, ref: Any) -> Any:
        match ref:
            case ["#", int(number)]:
                self._asked.add(number)
                return self.lives.get(number)
            case ["=", value]:
                return value
            case ["t", value]:
                return value
            case ["@", str(path)]:
                if path not in self._places:
                    self.missing[path] = "object"
                return self._places.get(path)
            case ["type", str(name)]:
                return _TYPES[name]
            case ["tuple", named, list(parts)]:
                values = tuple(self._resolve(part) for part in parts)
                return values if named is None else tuple.__new__(self._tuple_class(named), values)
            case ["range", [int(start), int(stop), int(step)]]:
                return range(start, stop, step)
            case ["frozenset", list(parts)]:
                return frozenset(self._resolve(part) for part in parts)
            case ["enum", str(kind), str(name)]:
                return self._classes[kind][name]  # type: ignore[index]
            case ["?", str(kind)]:
                self.missing[f"an object of the class {kind}"] = kind
                return None
        raise ValueError("a value that is none")


def _classes_in(heap: Program) -> Iterator[type]:
    """The classes that the program reaches: of these, new objects are made."""
    for entry in heap.entries.values():
        if isinstance(entry.live, type):
            yield entry.live
        elif isinstance(entry.kind, (AttributesKind, FilledKind)):
            yield type(entry.live)
    for live, _ in heap.constants.values():
        if isinstance(live, type):
            yield live


def _is_iterator(numbered: tuple[int, Any]) -> bool:
    """Whether it can only be made when the others are there: it goes over one of them."""
    return bool(numbered[1][2] == "iterator")


def _count(items: Any) -> int:
    """The length of a list that is made before its items: an iterator over it stays inside of it."""
    return len(items["rows"][0][1] if isinstance(items, dict) else items)


def _values(kind: str, column: Any) -> Any:
    if kind == "arrays":
        return [each.copy() for each in column]
    return list(column) if kind == "scalars" else column if kind == "=" else list(column.unbind())


def _require(fits: bool, why: str) -> None:
    if not fits:
        raise ValueError(why)
