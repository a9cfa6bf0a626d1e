"""The objects that a step can reach, what they held when they were last looked at, and which of them steps
change."""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from .classify import OWN_MODULE, OWN_OPTIMIZER, PLAIN, Classes, Unknown
from .hooks import kind_of_hooks
from .iterators import IteratorKind, is_iterator
from .kinds import MISSING, BatchesKind, ConstantKind, FunctionKind, GlobalName, Kind
from .memory import ArrayKind, ArrayTaken, Room, TensorKind, TensorTaken, may_change_unseen
from .plain import KnownObject, Look, is_below
from .reading import attributes_in, is_users_function, is_users_module, modules_of, names_in
from .untouched import TableKind

_UNSEEN = {"data", "numpy", "__array__", "from_numpy", "data_ptr", "set_", "_unsafe_view"}
_UNKNOWN = object()
_NAMED = (types.FunctionType, types.CellType, GlobalName)
"""What has a name in the program."""
_QUICK = {int, float, bool, str, type(None)}
"""The types of which a module's attributes are compared by value, all at once."""


class ReachedObject:
    """One object that is reached."""

    __slots__ = ("base", "born", "kind", "live", "moves", "path", "taken")

    def __init__(self, live: Any, kind: Kind, path: str, taken: Any, born: bool) -> None:
        self.live, self.kind, self.path, self.taken = live, kind, path, taken
        self.base = taken
        """What it held before steps changed it."""
        self.moves = self.born = born
        """Whether steps change it; whether a step made it."""


class OfModels:
    """What the models of a training hold."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Any]] = []
        self.hooked: list[tuple[str, Any]] = []
        """The dicts that hold hooks, or held some once."""
        self.modules: list[Any] = []
        self.owned: list[tuple[str, Any]] = []
        """Their tensors, which other parts of the state hold."""

    def newly_hooked(self) -> list[tuple[str, Any]]:
        """Dicts of `hooked` that were empty when this was last asked."""
        return []


class Roots:
    """Where to look for what steps reach. Two are equal if they name the same objects."""

    def __init__(
        self,
        models: OfModels,
        others: Iterable[tuple[str, Any]] = (),
        optimizers: Iterable[Any] = (),
        owned: Iterable[tuple[str, Any]] = (),
        hooked: Iterable[tuple[str, Any]] = (),
    ) -> None:
        self.models = models
        self.others = list(others)
        self.optimizers = list(optimizers)
        self.owned = list(owned)
        """Further objects that other parts of the state hold."""
        self._hooked = list(hooked)
        self._ids = [id(live) for _, live in self.others]

    @property
    def found(self) -> list[tuple[str, Any]]:
        """All of them, with the names that they have."""
        return [*self.models.found, *self.others, *self.hooked]

    @property
    def hooked(self) -> list[tuple[str, Any]]:
        """The dicts of hooks on the models and on the optimizers."""
        return [*self.models.hooked, *self._hooked]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Roots) and self.models is other.models and self._ids == other._ids

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Left:
    """An object that is reached, and cannot be kept."""

    path: str
    kind: str
    why: str
    remedy: str = ""


class Heap:
    """All of them. `roots` are looked through by `begin`; then `look` compares, and follows what is new."""

    def __init__(self) -> None:
        self.room = Room()
        self.classes = Classes(self.room)
        self.entries: dict[int, ReachedObject] = {}
        self.left: dict[str, Left] = {}
        self._modules: dict[int, dict[str, Any]] = {}
        """The namespaces of the user's modules that functions name, by their ids."""
        self.constants: dict[int, tuple[Any, str]] = {}
        """Objects that are no entries, by id: functions, modules, classes. A file names them by their
        path."""
        self.owned: dict[int, tuple[Any, str]] = {}
        """Objects that other parts of the state hold."""
        self.by_hand: set[str] = set()
        """The names of what steps change, and what the user has changed since."""
        self._roots = Roots(OfModels())
        self._globals: dict[tuple[int, str], GlobalName] = {}
        self._own: dict[int, Kind] = {}
        self._paths: set[str] = set()
        self._numbered = False
        """Whether an object got a number, because another one has its path."""
        self._before: dict[int, ReachedObject] = {}
        self._gone: dict[int, ReachedObject] = {}
        self._quick: list[tuple[ReachedObject, Any, Any, int]] = []
        self._slow: list[ReachedObject] = []
        self._look: Look | None = None
        self._swept = 0
        self._replaced = False
        """Whether an object may be reached no more."""

    # Looking -----------------------------------------------------------------------------------------

    def begin(self, roots: Roots) -> bool:
        """Find everything that is reached from these objects, unless they are those of the last time. What
        the user changed since the last look is what it is from now on. Return whether it was looked for
        anew."""
        if self._replaced:
            self._sweep(by_steps=True)
        changed = self._compare(by_steps=False)
        if not changed and roots == self._roots:
            return False
        self._roots = roots
        self._own = dict.fromkeys(map(id, roots.models.modules), OWN_MODULE)
        self._own |= dict.fromkeys(map(id, roots.optimizers), OWN_OPTIMIZER)
        self._own |= {id(held): kind_of_hooks(path) for path, held in roots.hooked}
        self.owned = {id(live): (live, path) for path, live in (*roots.owned, *roots.models.owned)}
        self.owned.pop(id(None), None)
        self._sweep(by_steps=False)
        return True

    def look(self, by_steps: bool) -> Look:
        """What the objects that steps change hold now.

        Args:
            by_steps: whether steps made what has changed since the last look.
        """
        if self._compare(by_steps):
            self._look = None
        look = self.last
        if len(self.entries) > self._swept + max(64, self._swept // 4):
            self._sweep(by_steps=True)
            self._look = look
        return look

    @property
    def last(self) -> Look:
        """The same as it was at the last comparison."""
        if self._look is None:
            self._look = Look(
                self,
                {
                    id(e.live): _known(e, e.taken)
                    for e in self.entries.values()
                    if e.moves and (e.born or e.taken is not e.base) and not isinstance(e.kind, ConstantKind)
                },
            )
        return self._look

    def moved(self, names: Collection[str]) -> Look:
        """What all objects hold that steps change, or that have these names."""
        self._compare(by_steps=False)
        found = [e for e in self.entries.values() if e.moves or e.path in names]
        return Look(
            self, {id(e.live): _known(e, e.taken) for e in found if not isinstance(e.kind, ConstantKind)}
        )

    def before_steps(self, names: Collection[str] = ()) -> Look:
        """What objects held before steps changed them, here or in a process where they have these names."""
        return Look(
            self,
            {
                id(e.live): _known(e, e.base)
                for e in (*self._gone.values(), *self.entries.values())
                if not e.born and e.base is not _UNKNOWN and (e.moves or e.path in names)
                if not isinstance(e.kind, ConstantKind)
            },
        )

    def goes_on(self, before: Look) -> None:
        """Steps have changed these objects, which held this before."""
        for key, known in before.known.items():
            entry = self.entries.get(key) or self._gone.get(key)
            if entry is not None:
                entry.moves, entry.base = True, known.taken
        self._look = None

    def know(self, names: Iterable[GlobalName]) -> None:
        """Let these be the objects for the global variables that they name."""
        self._globals |= {(id(each.space), each.name): each for each in names}

    def places(self) -> dict[str, Any]:
        """All objects that the program has brought, by path, also those that steps have replaced. Of the
        iterators that have stood for one, it is one that knows where that began."""
        all_of_them = [*self._gone.values(), *self.entries.values()]
        found = {path: live for live, path in (*self.owned.values(), *self.constants.values())}
        found |= {each.path: each.live for each in all_of_them}
        return found | {
            each.path: each.live
            for each in all_of_them
            if isinstance(each.kind, IteratorKind) and each.base is not _UNKNOWN
        }

    def adopt(self, parent: Heap, copies: Mapping[int, Any], of_copy: Callable[[Any], Any]) -> None:
        """Know of objects what another heap knows of those that they are copies of, by the ids of these.

        Args:
            parent: the other heap.
            copies: the copies, by the ids of the originals.
            of_copy: makes what was taken of a copy out of what was taken of an original.
        """
        for key, known in parent.entries.items():
            entry = self.entries.get(id(copies.get(key, known.live)))
            if entry is not None:
                entry.path, entry.born = known.path, known.born
                entry.moves = known.moves
                entry.base = known.base if known.base is _UNKNOWN else of_copy(known.base)
        self._look = None

    def tidy(self) -> None:
        """Leave out what steps have replaced, before two looks are compared."""
        self._compare(by_steps=True)
        self._sweep(by_steps=True)

    def _compare(self, by_steps: bool) -> bool:
        for path, held in self._roots.models.newly_hooked():
            kind = self._own[id(held)] = kind_of_hooks(path)
            entry = self._entered(held, kind, path, born=False)
            entry.base = entry.taken = kind.take({})
        changed = [
            entry
            for entry, held, get, size in self._quick
            if len(held) != size or get(held) != entry.taken[1]
        ]
        changed += [entry for entry in self._slow if not entry.kind.same(entry.live, entry.taken)]
        for entry in changed:
            self._changed(entry, by_steps)
        return bool(changed)

    def _changed(self, entry: ReachedObject, by_steps: bool) -> None:
        before = entry.taken
        if entry.kind in (OWN_MODULE, OWN_OPTIMIZER) and entry.kind.same(entry.live, before):
            self._watch_again(entry)  # it has got another hook, or the like
            return
        if by_steps:
            self.room.written.add(id(entry.live))
        if by_steps and not entry.moves:
            entry.moves, entry.base = True, before
            self._told_if_not_copied(entry)
        if entry.moves and not by_steps:
            self.by_hand.add(entry.path)
        entry.taken = entry.kind.take(entry.live)
        self._replaced |= not (_is_leaf(before) and _is_leaf(entry.taken))
        if not by_steps and not entry.moves:
            entry.base = entry.taken
        self._watch_again(entry)
        for name, part in entry.kind.parts(entry.live, entry.taken):
            if id(part) not in self.entries:
                if is_iterator(part):
                    entry.moves, entry.base = True, _UNKNOWN
                self._follow([(entry.path + name, part)], born=by_steps)

    def _told_if_not_copied(self, entry: ReachedObject) -> None:
        if isinstance(entry.kind, BatchesKind):
            why = "steps change them in place, and they are too many to be copied"
            self.left[entry.path] = Left(entry.path, "list", why, "Let the step change a copy")
        elif getattr(entry.base, "copy", entry) is None:
            size = entry.live.nbytes / 1e6
            self.left[entry.path] = Left(
                entry.path,
                f"{type(entry.live).__name__}, {size:.0f} MB",
                "was taken to be read only, as it is large; it has changed, so it is kept from now on",
            )

    def read_only(self) -> list[tuple[ReachedObject, Any, Any]]:
        """What is taken to be read only and can be written to: the object, its data, what was taken of it."""
        return [
            (entry, entry.live, entry.taken)
            for entry in self._slow
            if isinstance(entry.kind, (TensorKind, ArrayKind, TableKind))
            and may_change_unseen(entry.live, entry.taken, self.room)
        ]

    def has_changed(self, entry: ReachedObject) -> None:
        """One of them is not what it was."""
        if self.entries.get(id(entry.live)) is not entry:
            return
        if isinstance(entry.kind, TableKind):
            kind = type(entry.live).__name__
            self.left[entry.path] = Left(entry.path, kind, "has changed, and tables are not copied")
        else:
            self._changed(entry, by_steps=True)
            self._look = None

    def _watch_again(self, entry: ReachedObject) -> None:
        """A module of the model has got another attribute: it is compared by its new names from now on."""
        if entry.kind not in (OWN_MODULE, OWN_OPTIMIZER):
            return
        self._quick = [each for each in self._quick if each[0] is not entry]
        if entry not in self._slow:
            self._slow.append(entry)

    def kind_of(self, live: Any) -> Kind | Unknown | None:
        """How an object is kept."""
        return self._own.get(id(live)) or self.classes.kind_of(live)

    # Finding -----------------------------------------------------------------------------------------

    def _sweep(self, by_steps: bool) -> None:
        """Find everything from the roots. An object that the program brought, and that steps have replaced,
        is remembered: a rewind may bring it back."""
        gone, reached = self._gone, self.entries
        self._reach({**gone, **reached})
        dropped = [] if by_steps else [each for key, each in reached.items() if key not in self.entries]
        if dropped and self._numbered:  # such as a cell that was run again: what is new has the old names
            names = [each.path for each in dropped if isinstance(each.live, _NAMED)]
            gone = {k: e for k, e in gone.items() if not any(is_below(e.path, name) for name in names)}
            self._reach({**gone, **{key: each for key, each in reached.items() if key in self.entries}})
        kept = {**gone, **reached} if by_steps else gone
        self._gone = {key: entry for key, entry in kept.items() if key not in self.entries and not entry.born}
        self._swept, self._replaced = len(self.entries), False
        self._look = None

    def _reach(self, before: dict[int, ReachedObject]) -> None:
        """The same; what is known of an object is in `before`."""
        self._before, self.entries = before, {}
        self.constants, self._quick, self._slow = {}, [], []
        self._paths, self._numbered = {entry.path for entry in before.values()}, False
        self.room.unseen = False
        self._follow(self._roots.found, born=False)
        self._before = {}

    def _follow(self, found: Iterable[tuple[str, Any]], born: bool) -> None:
        """Take in objects, and all that is reached from them, in the order in which they are found. What is
        new in an object that steps change, a step has made: a program that is run again does not bring it."""
        waiting: list[tuple[str, Any, bool, ReachedObject | None]]
        waiting = [(path, live, born, None) for path, live in reversed(list(found))]
        while waiting:
            path, live, born, holder = waiting.pop()
            if holder is not None and is_iterator(live):  # it is put back by another one in its place
                holder.moves, holder.base = True, _UNKNOWN
            if id(live) in self.entries or id(live) in self.owned:
                continue
            kind = self.kind_of(live)
            if kind is None:
                if not isinstance(live, PLAIN):
                    self.constants.setdefault(id(live), (live, path))
                continue
            if isinstance(kind, Unknown):
                self.constants.setdefault(id(live), (live, path))
                self.left.setdefault(path, Left(path, type(live).__name__, str(kind)))
                continue
            if isinstance(live, (types.FunctionType, type, GlobalName)):
                path, born = _own_name(live), False
            entry = self._entered(live, kind, path, born)
            made = entry.born or entry.moves
            waiting += [(entry.path + name, part, made, entry) for name, part in self._parts_of(entry)][::-1]

    def _entered(self, live: Any, kind: Kind, path: str, born: bool) -> ReachedObject:
        entry = self._before.get(id(live)) if self._before else None
        if entry is None:
            if born:
                self.room.written.add(id(live))
            entry = ReachedObject(live, kind, self._unique(path), kind.take(live), born)
        self.entries[id(live)] = entry
        self._watch(entry)
        return entry

    def _unique(self, path: str) -> str:
        count, wanted = 1, path
        while wanted in self._paths:
            count, self._numbered = count + 1, True
            wanted = f"{path}#{count}"
        self._paths.add(wanted)
        return wanted

    def _watch(self, entry: ReachedObject) -> None:
        if entry.kind in (OWN_MODULE, OWN_OPTIMIZER) and _QUICK.issuperset(map(type, entry.taken[1])):
            held, names = entry.live.__dict__, entry.taken[0]
            self._quick.append((entry, held, _getter(names), len(held)))
        elif not isinstance(entry.kind, ConstantKind) or isinstance(entry.kind, BatchesKind):
            self._slow.append(entry)

    def _parts_of(self, entry: ReachedObject) -> Iterator[tuple[str, Any]]:
        yield from entry.kind.parts(entry.live, entry.taken)
        if isinstance(entry.kind, FunctionKind) and is_users_function(entry.live):
            yield from self._globals_of(entry.live)

    def _globals_of(self, function: Any) -> Iterator[tuple[str, Any]]:
        """The global variables that a function names, also those of a module of the user's that it names."""
        space, code = function.__globals__, function.__code__
        used = attributes_in(code)
        if not self.room.unseen and not _UNSEEN.isdisjoint(used):
            self.room.unseen = True
        for name in names_in(code):
            value = space.get(name, MISSING)
            if (value is MISSING and hasattr(builtins, name)) or name.startswith("__"):
                continue
            if is_module(value):
                yield from self._names_of_module(value, used)
            else:
                yield self._global(space, name)
        for module in modules_of(function):
            yield from self._names_of_module(module, used)

    def _names_of_module(self, module: Any, used: Iterable[str]) -> Iterator[tuple[str, Any]]:
        if not is_users_module(module):
            return
        self._modules[id(vars(module))] = vars(module)
        for name in sorted(used):
            value = vars(module).get(name, MISSING)
            if value is not MISSING and not is_module(value):
                yield self._global(vars(module), name)

    def is_of_module(self, live: Any) -> bool:
        """Whether it is a variable of a module that a function names: `module.variable` is the same one in a
        copy of the function."""
        return isinstance(live, GlobalName) and id(live.space) in self._modules

    def _global(self, space: dict[str, Any], name: str) -> tuple[str, GlobalName]:
        key = (id(space), name)
        found = self._globals.get(key)
        if found is None:
            found = self._globals[key] = GlobalName(space, name)
        return "", found

    # Putting back ------------------------------------------------------------------------------------

    def give(self, look: Look, by_steps: bool) -> None:
        """Make all objects hold what they held then.

        Args:
            look: a look of this heap.
            by_steps: whether steps made what has changed since the last look.
        """
        self._compare(by_steps)
        wanted = dict(look.known)
        for key, entry in (*self._gone.items(), *self.entries.items()):
            if entry.moves and not entry.born and entry.base is not _UNKNOWN and key not in wanted:
                wanted[key] = _known(entry, entry.base)
        wanted = {key: each for key, each in wanted.items() if getattr(each.taken, "copy", each) is not None}
        instead = {
            key: each.kind.take(each.taken)
            for key, each in wanted.items()
            if isinstance(each.kind, IteratorKind) and not each.kind.same(each.live, each.taken)
        }
        changed = False
        for each in wanted.values():
            taken = _replaced(each.taken, instead) if instead else each.taken
            if not each.kind.same(each.live, taken):
                each.kind.put(each.live, taken)
                changed = True
        for key, each in wanted.items():
            self._stands(key, each, instead)
        for key, live in instead.items():
            before = self.entries.pop(key)
            if not before.born:
                self._gone[key] = before
            entry = ReachedObject(live, before.kind, before.path, before.kind.take(live), before.born)
            entry.moves, self.entries[id(live)] = True, entry
            if key in look.known:
                entry.base = _UNKNOWN
        if changed:
            self._sweep(by_steps=True)

    @contextmanager
    def as_before_if_it_fails(self, by_steps: bool) -> Iterator[None]:
        """If the block fails, all objects hold again what they held, and nothing else is known of them: half
        of a look is no state, and the next comparison would take it for a change by the user."""
        self._compare(by_steps)
        all_of_them = (*self._gone.values(), *self.entries.values())
        known = [(each, each.base, each.moves, each.taken) for each in all_of_them]
        entries, gone, left = dict(self.entries), dict(self._gone), dict(self.left)
        try:
            yield
        except BaseException:
            for each, base, moves, taken in known:
                each.base, each.moves, each.taken = base, moves, taken
                if not each.kind.same(each.live, taken):
                    each.kind.put(each.live, taken)
            self.entries, self._gone, self.left = entries, gone, left
            self._sweep(by_steps=True)
            raise

    def _stands(self, key: int, known: KnownObject, instead: Mapping[int, Any]) -> None:
        entry = self.entries.get(key)
        if entry is None and key in self._gone:
            entry = self.entries[key] = self._gone[key]
        if entry is None:
            entry = self.entries[key] = ReachedObject(
                known.live, known.kind, known.path, known.taken, known.born
            )
            entry.base = _UNKNOWN
        entry.moves = True
        entry.taken = _replaced(known.taken, instead) if instead else known.taken


def _known(entry: ReachedObject, taken: Any) -> KnownObject:
    return KnownObject(entry.live, entry.kind, taken, entry.path, entry.born)


def _is_leaf(taken: Any) -> bool:
    """Whether what was taken refers to no further object."""
    if type(taken) is tuple:
        return _QUICK.issuperset(map(type, taken)) or (len(taken) == 2 and all(map(_is_leaf, taken)))
    return type(taken) in _QUICK or isinstance(taken, (TensorTaken, ArrayTaken))


def _own_name(live: Any) -> str:
    """What has a name of its own is called by it, from wherever it is reached."""
    if isinstance(live, GlobalName):
        return name_of_global(live.space, live.name)
    return f"class {live.__qualname__}" if isinstance(live, type) else str(live.__qualname__)


def name_of_global(space: Mapping[str, Any], name: str) -> str:
    """A global variable's name, with its module's name unless that is the notebook."""
    module = space.get("__name__", "")
    return name if module in ("", "__main__") else f"{module}.{name}"


def said_of(path: str) -> str:
    """A path as users read it."""
    return path.replace("=", "")


def _getter(names: tuple[str, ...]) -> Any:
    if not names:
        return lambda held: ()
    if len(names) == 1:
        only = names[0]
        return lambda held: (held.get(only, MISSING),)
    get = itemgetter(*names)

    def got(held: Any) -> Any:
        try:
            return get(held)
        except KeyError:
            return None

    return got


def _replaced(taken: Any, instead: Mapping[int, Any]) -> Any:
    """What was taken, with other iterators in place of those that have moved on."""
    if id(taken) in instead:
        return instead[id(taken)]
    if type(taken) is tuple:
        made = tuple(_replaced(each, instead) for each in taken)
        return made if any(one is not other for one, other in zip(made, taken, strict=True)) else taken
    return taken


def is_module(value: Any) -> bool:
    """Whether it is a module of Python."""
    return type(value).__name__ == "module"
