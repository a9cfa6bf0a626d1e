"""The kinds of objects whose contents a step can change: how each is taken, compared, and put back in place.

What is taken of a container are references to the very objects in it. So identity and sharing survive, and an
object is copied only if it holds numbers: a tensor, an array, a generator.
"""

from __future__ import annotations

import copy
import random
import types
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..state.state import clone
from .reading import functions_of, is_users_class, is_users_function

_COMPARED = {int, float, bool, complex, str, bytes}


def alike(one: Any, other: Any) -> bool:
    """Whether two references are to one object, or to plain values that are equal to the bit."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other) or kind not in _COMPARED:
        return False
    return bool(
        (one == other and (one or kind is not float or repr(one) == repr(other))) or one != one != other
    )


def all_alike(ones: Collection[Any], others: Collection[Any]) -> bool:
    """The same for each pair of two rows."""
    return len(ones) == len(others) and (
        all(map(is_, ones, others)) or all(starmap(alike, zip(ones, others, strict=True)))
    )


def same_values(one: Any, other: Any) -> bool:
    """Whether two nested values are equal to the bit."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return same_tensors(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and same_arrays(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same_values(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(same_values, one, other))
    return alike(one, other) or (type(one) not in _COMPARED and bool(one == other))


def same_tensors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bytes, so that a NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return bool(torch.equal(one, other))
    one, other = one.detach(), other.detach()
    if one.device != other.device:
        one, other = one.cpu(), other.cpu()
    return torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (one, other)))


def same_arrays(one: Any, other: Any) -> bool:
    """Whether two arrays of one type and shape have the same bytes."""
    if one.dtype.hasobject:
        return all_alike(tuple(one.flat), tuple(other.flat))
    raw = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other)]
    return bool(np.array_equal(raw[0], raw[1]))


LONG = 1000
"""Items of a container from which tuples, tensors and arrays in it are not looked into again: a replay
buffer's transitions are written once. Lists, dicts and objects in it are looked at as everywhere."""
ONCE = {tuple, Tensor, np.ndarray, int, float, bool, complex, str, bytes, type(None), frozenset}
_MISSING = object()

Part = tuple[str, Any]
"""How an object is reached from another one, such as `.queue` or `[3]`, and the object."""


class Kind(ABC):
    """One kind of object."""

    name: str
    """What users read."""

    @abstractmethod
    def take(self, live: Any) -> Any:
        """Its contents now."""

    @abstractmethod
    def same(self, live: Any, taken: Any) -> bool:
        """Whether it still has these contents."""

    @abstractmethod
    def put(self, live: Any, taken: Any) -> None:
        """Give it these contents."""

    def parts(self, live: Any, taken: Any) -> Iterable[Part]:
        """The objects in it."""
        return ()

    def tensors(self, taken: Any) -> Iterable[Tensor]:
        """The memory that the contents take."""
        return ()


class ConstantKind(Kind):
    """An object that cannot change, but holds others: a tuple, a function's arguments."""

    name = "tuple"

    def take(self, live: Any) -> Any:
        return None

    def same(self, live: Any, taken: Any) -> bool:
        return True

    def put(self, live: Any, taken: Any) -> None:
        pass

    def parts(self, live: Any, taken: Any) -> Iterable[Part]:
        if isinstance(live, tuple):
            fields = getattr(live, "_fields", None)
            return _named(fields, live) if fields else _numbered(live)
        if isinstance(live, types.MethodType):
            return ((".self", live.__self__), ("", live.__func__))
        if isinstance(live, types.ModuleType):
            return ()
        return (
            (".func", live.func),
            *_numbered(live.args),
            *((f".{k}", v) for k, v in live.keywords.items()),
        )


def _numbered(items: Iterable[Any]) -> Iterator[Part]:
    return ((f"[{number}]", item) for number, item in enumerate(items))


def _named(names: Iterable[str], values: Iterable[Any]) -> Iterator[Part]:
    return ((f".{name}", value) for name, value in zip(names, values, strict=True))


_TEXTS = {str, bytes}


def _worth_a_look(items: Sequence[Any]) -> bool:
    return len(items) <= LONG or not ONCE.issuperset(map(type, items))


class SequenceKind(Kind):
    """A list or a deque."""

    def __init__(self, name: str) -> None:
        self.name = name

    def take(self, live: Any) -> Sequence[Any]:
        if type(live) is list and len(live) > LONG and _TEXTS.issuperset(map(type, live)):
            return list(live)  # Python compares two lists in a twentieth of the time
        return tuple(live)

    def same(self, live: Any, taken: Sequence[Any]) -> bool:
        if type(taken) is list and type(live) is list:
            try:
                return live == taken
            except Exception:  # of an object that a text cannot be compared with
                return False
        return all_alike(live, taken)

    def put(self, live: Any, taken: Sequence[Any]) -> None:
        if isinstance(live, list):
            live[:] = taken
        else:
            live.clear()
            live.extend(taken)

    def parts(self, live: Any, taken: Sequence[Any]) -> Iterable[Part]:
        if len(taken) <= LONG:
            return _numbered(taken)
        if type(taken) is list or not _worth_a_look(taken):
            return ()
        return ((name, item) for name, item in _numbered(taken) if type(item) not in ONCE)


class SetKind(Kind):
    """A set."""

    name = "set"

    def take(self, live: Any) -> tuple[Any, ...]:
        return tuple(live)

    def same(self, live: Any, taken: tuple[Any, ...]) -> bool:
        return all_alike(live, taken)

    def put(self, live: Any, taken: tuple[Any, ...]) -> None:
        live.clear()
        live.update(taken)


Pairs = tuple[tuple[Any, ...], tuple[Any, ...]]


class DictKind(Kind):
    """A dict of any class, in its order."""

    name = "dict"

    def take(self, live: Any) -> Pairs:
        return tuple(live), tuple(_class_of(live).values(live))

    def same(self, live: Any, taken: Pairs) -> bool:
        return all_alike(live, taken[0]) and all_alike(_class_of(live).values(live), taken[1])

    def put(self, live: Any, taken: Pairs) -> None:
        owner = _class_of(live)
        owner.clear(live)
        for key, value in zip(*taken, strict=True):
            owner.__setitem__(live, key, value)

    def parts(self, live: Any, taken: Pairs) -> Iterable[Part]:
        keys, values = taken
        few = len(keys) <= LONG
        if not few and not (_worth_a_look(values) or _worth_a_look(keys)):
            return
        for key, value in zip(keys, values, strict=True):
            said = (
                repr(key)[:40] if type(key) in ONCE and not isinstance(key, (Tensor, np.ndarray)) else "key"
            )
            if few or type(value) not in ONCE:
                yield f"[{said}]", value
            if type(key) not in ONCE or (few and isinstance(key, (Tensor, tuple))):
                yield "[key]", key


def _class_of(live: Any) -> Any:
    """The class that knows its order, and whose methods no subclass has replaced."""
    return OrderedDict if isinstance(live, OrderedDict) else dict


_OF_SHARDS = ("__composable_api", "_fsdp_")
"""How the names of a module's attributes begin in which torch keeps that its weights are in parts."""


class AttributesKind(Kind):
    """An object of any class of Python: what its `__dict__` and its slots hold."""

    def __init__(self, name: str = "object", hidden: frozenset[str] = frozenset()) -> None:
        self.name = name
        self._hidden = hidden

    def take(self, live: Any) -> Pairs:
        own = getattr(live, "__dict__", {})
        hidden = self._hidden
        held = {name: value for name, value in own.items() if name not in hidden}
        if hidden:
            held = {name: value for name, value in held.items() if not name.startswith(_OF_SHARDS)}
        for name in slots_of(type(live)):
            if (value := getattr(live, name, _MISSING)) is not _MISSING:
                held[name] = value
        return tuple(held), tuple(held.values())

    def same(self, live: Any, taken: Pairs) -> bool:
        names, values = taken
        if not self._hidden and not slots_of(type(live)):  # the usual case, in a fifth of the time
            own = live.__dict__
            if len(own) == len(names) and all(map(is_, own.values(), values)) and tuple(own) == names:
                return True
        now = self.take(live)
        return now[0] == names and all_alike(now[1], values)

    def put(self, live: Any, taken: Pairs) -> None:
        own, (names, values) = getattr(live, "__dict__", {}), taken
        for name in [name for name in self.take(live)[0] if name not in names]:
            if name in own:
                del own[name]
            else:
                object.__delattr__(live, name)
        slots = slots_of(type(live))
        if tuple(own) != names:  # the order counts, too: a loop over the attributes follows it
            ordered = [name for name in names if name not in slots]
            if [name for name in own if name in names] != ordered:
                for name in ordered:
                    own.pop(name, None)
        for name, value in zip(names, values, strict=True):
            if name in slots:
                object.__setattr__(live, name, value)
            else:
                own[name] = value

    def parts(self, live: Any, taken: Pairs) -> Iterable[Part]:
        yield from _named(*taken)
        if is_users_class(type(live)):
            yield "", type(live)


_SLOTS: dict[type, tuple[str, ...]] = {}


def slots_of(kind: type) -> tuple[str, ...]:
    """The names of the slots of a class's objects."""
    if kind not in _SLOTS:
        found: list[str] = []
        for each in kind.__mro__:
            named = each.__dict__.get("__slots__", ())
            found += [named] if isinstance(named, str) else named
        _SLOTS[kind] = tuple(name for name in found if name not in ("__dict__", "__weakref__"))
    return _SLOTS[kind]


class FilledKind(Kind):
    """An object of a subclass of list, dict, set or deque: what it holds, and its attributes."""

    def __init__(self, content: Kind) -> None:
        self.name = content.name
        self.content, self.attributes = content, AttributesKind()

    def take(self, live: Any) -> Any:
        return self.content.take(live), self.attributes.take(live)

    def same(self, live: Any, taken: Any) -> bool:
        return self.content.same(live, taken[0]) and self.attributes.same(live, taken[1])

    def put(self, live: Any, taken: Any) -> None:
        self.content.put(live, taken[0])
        self.attributes.put(live, taken[1])

    def parts(self, live: Any, taken: Any) -> Iterable[Part]:
        yield from self.content.parts(live, taken[0])
        yield from self.attributes.parts(live, taken[1])


class ClassKind(Kind):
    """A class of the user's: the values that its attributes have, and what its methods read."""

    name = "class"

    def __init__(self) -> None:
        self._sizes: WeakKeyDictionary[type, int] = WeakKeyDictionary()
        """How many attributes a class had, methods included: another one may be a value."""

    def take(self, live: type) -> Pairs:
        held = {
            name: value
            for name, value in vars(live).items()
            if not (name.startswith("__") or hasattr(type(value), "__get__") or isinstance(value, type))
        }
        self._sizes[live] = len(vars(live))
        return tuple(held), tuple(held.values())

    def same(self, live: type, taken: Pairs) -> bool:
        own, (names, values) = vars(live), taken
        if len(own) == self._sizes.get(live) and all(map(is_, map(own.get, names), values)):
            return True
        now = self.take(live)
        return now[0] == names and all_alike(now[1], values)

    def put(self, live: type, taken: Pairs) -> None:
        for name in self.take(live)[0]:
            if name not in taken[0]:
                delattr(live, name)
        for name, value in zip(*taken, strict=True):
            if not alike(vars(live).get(name, _MISSING), value):
                setattr(live, name, value)

    def parts(self, live: type, taken: Pairs) -> Iterable[Part]:
        yield from _named(*taken)
        for function in functions_of(live):
            yield "", function
        for base in live.__bases__:
            if is_users_class(base):
                yield "", base


class FunctionKind(Kind):
    """A function of the user's: its attributes, and what it reads outside of itself."""

    name = "function"

    def take(self, live: types.FunctionType) -> Pairs:
        return tuple(live.__dict__), tuple(live.__dict__.values())

    def same(self, live: types.FunctionType, taken: Pairs) -> bool:
        return all_alike(tuple(live.__dict__), taken[0]) and all_alike(
            tuple(live.__dict__.values()), taken[1]
        )

    def put(self, live: types.FunctionType, taken: Pairs) -> None:
        live.__dict__.clear()
        live.__dict__.update(zip(*taken, strict=True))

    def parts(self, live: types.FunctionType, taken: Pairs) -> Iterable[Part]:
        yield from _named(*taken)
        if not is_users_function(live):  # such as the wrapper of `torch.no_grad`
            for cell in live.__closure__ or ():
                if isinstance(inner := _content(cell), (types.FunctionType, types.MethodType)):
                    yield "", inner
            return
        yield from _numbered(live.__defaults__ or ())
        yield from ((f".{name}", value) for name, value in (live.__kwdefaults__ or {}).items())
        for name, cell in zip(live.__code__.co_freevars, live.__closure__ or (), strict=True):
            yield f": {name}", cell


class CellKind(Kind):
    """A variable of a closure."""

    name = "variable"

    def take(self, live: types.CellType) -> Any:
        return _content(live)

    def same(self, live: types.CellType, taken: Any) -> bool:
        return alike(_content(live), taken)

    def put(self, live: types.CellType, taken: Any) -> None:
        if taken is _MISSING:
            del live.cell_contents
        else:
            live.cell_contents = taken

    def parts(self, live: types.CellType, taken: Any) -> Iterable[Part]:
        return (("=", taken),) if taken is not _MISSING else ()


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


class GlobalName:
    """A name in a namespace: a global variable, or something of the user's own that is reached by name."""

    __slots__ = ("name", "space")

    def __init__(self, space: dict[str, Any], name: str) -> None:
        self.space, self.name = space, name


class GlobalKind(Kind):
    """A global variable."""

    name = "global"

    def take(self, live: GlobalName) -> Any:
        return live.space.get(live.name, _MISSING)

    def same(self, live: GlobalName, taken: Any) -> bool:
        return alike(live.space.get(live.name, _MISSING), taken)

    def put(self, live: GlobalName, taken: Any) -> None:
        if taken is _MISSING:
            live.space.pop(live.name, None)
        else:
            live.space[live.name] = taken

    def parts(self, live: GlobalName, taken: Any) -> Iterable[Part]:
        return (("=", taken),) if taken is not _MISSING else ()


MISSING = _MISSING
"""What a variable holds that has no value."""


class Batches:
    """A long list of batches, which are not looked into."""

    def __init__(self, source: Sequence[Any]) -> None:
        self.source = source


class BatchesKind(ConstantKind):
    """The same, as a kind: torch counts the changes of a batch's tensors."""

    name = "batches"

    def take(self, live: Batches) -> Any:
        return [each._version for batch in live.source for each in _tensors_in(batch)]

    def same(self, live: Batches, taken: Any) -> bool:
        return bool(self.take(live) == taken)

    def parts(self, live: Batches, taken: Any) -> Iterable[Part]:
        return (("", live.source),)


def _tensors_in(batch: Any) -> list[Tensor]:
    several = batch.values() if isinstance(batch, dict) else batch
    parts = several if isinstance(batch, (dict, tuple, list)) else (batch,)
    return [each for each in parts if isinstance(each, Tensor) and not each.is_inference()]


class GeneratorKind(Kind):
    """A random generator."""

    name = "generator"

    def take(self, live: Any) -> Any:
        if isinstance(live, torch.Generator):
            return live.get_state()
        if isinstance(live, random.Random):
            return live.getstate()
        if isinstance(live, np.random.Generator):
            return copy.deepcopy(live.bit_generator.state)
        if isinstance(live, np.random.RandomState):
            return live.get_state(legacy=False)
        return copy.deepcopy(live.state)  # a BitGenerator

    def same(self, live: Any, taken: Any) -> bool:
        return same_values(self.take(live), taken)

    def put(self, live: Any, taken: Any) -> None:
        if isinstance(live, torch.Generator):
            live.set_state(taken)
        elif isinstance(live, random.Random):
            live.setstate(taken)
        elif isinstance(live, np.random.Generator):
            live.bit_generator.state = taken
        elif isinstance(live, np.random.RandomState):
            live.set_state(taken)
        else:
            live.state = taken


class GetSet:
    """A pair of functions of the user's: one returns a value, and one takes it back."""

    def __init__(self, get: Callable[[], Any], set_: Callable[[Any], Any]) -> None:
        self.state_dict, self.load_state_dict = get, set_


class StateDictKind(Kind):
    """An object with `state_dict` and `load_state_dict`, or a pair of functions: it says itself what it
    is."""

    name = "state_dict"

    def take(self, live: Any) -> Any:
        return clone(live.state_dict())

    def same(self, live: Any, taken: Any) -> bool:
        return same_values(live.state_dict(), taken)

    def put(self, live: Any, taken: Any) -> None:
        live.load_state_dict(copy.deepcopy(taken))
