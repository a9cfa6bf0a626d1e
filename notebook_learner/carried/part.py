"""What steps reach, as a part of the state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, NamedTuple

from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.hooks import RemovableHandle

from ..errors import StateError
from .classify import Unknown, is_reported
from .copies import Copies, copied_program
from .heap import Heap, Left, OfModels, Roots, said_of
from .hooks import OF_MODULES, OF_OPTIMIZERS, OF_PARAMETERS
from .kinds import LONG, Batches, ConstantKind, GetSet, GlobalName
from .plain import Look, LookReader
from .table import CarriedTable, table_of
from .untouched import Untouched

Tell = Callable[[str], None]

_MEMBERS = ("_modules", "_parameters", "_buffers")


class Sources:
    """What a training is made of, as far as its steps may reach something from there. Callables are asked at
    each beginning, as cells and loaders come later."""

    def __init__(
        self,
        models: Iterable[tuple[str, nn.Module]],
        optimizers: Callable[[], Mapping[str, Any]],
        owned: Callable[[], Iterable[tuple[str, Any]]],
        functions: Callable[[], Iterable[tuple[str, Any]]],
        loaders: Callable[[], Iterable[tuple[str, Any, Iterable[Any]]]],
        named: Mapping[str, Any],
    ) -> None:
        self.models = list(models)
        self.optimizers, self.owned = optimizers, owned
        self.functions, self.loaders = functions, loaders
        self.named = {name: GetSet(*each) if _is_pair(each) else each for name, each in named.items()}
        self._known: _Walk | None = None
        self._batches: dict[int, Batches] = {}

    def roots(self) -> Roots:
        """Where to look now."""
        optimizers = self.optimizers()
        others: list[tuple[str, Any]] = [
            *_of_optimizers(optimizers),
            *self.functions(),
        ]
        owned = [*self.owned()]
        known, self._batches = self._batches, {}
        for split, loader, generators in self.loaders():
            others += _parts_of_loader(f"{split} data", loader)
            if isinstance(loader, (list, tuple)) and len(loader) > LONG:
                batches = known.get(id(loader)) or Batches(loader)
                self._batches[id(loader)] = batches
                others.append((f"batches of the {split} data", batches))
            owned += [(f"{split} data.generator[{n}]", each) for n, each in enumerate(generators)]
        others += [(f"carry({name})", each) for name, each in self.named.items()]
        hooked = _hooked_optimizers(optimizers)
        return Roots(self._of_models(), others, optimizers.values(), owned, hooked)

    def _of_models(self) -> OfModels:
        """What the models hold. The walk takes a millisecond for a thousand modules, so it is only taken
        again if a module, a parameter or a hook has come or gone."""
        known = self._known
        if known is None or not known.is_current():
            known = self._known = _Walk(self.models, known)
        return known


def _of_optimizers(optimizers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The optimizers, and a `step` that was put in the place of the class's. A scheduler's wrapper of `step`
    only notes the call."""
    for name, each in optimizers.items():
        path = _path_of_optimizer(name)
        yield path, each
        own = vars(each).get("step")
        if own is not None and not is_reported(own):
            yield f"{path}.step", own


def _path_of_optimizer(name: str) -> str:
    return f"optimizer[{name!r}]" if name else "optimizer"


def _hooked_optimizers(optimizers: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, each in optimizers.items():
        for kind in OF_OPTIMIZERS:
            if (held := getattr(each, kind, None)) is not None:
                yield f"{_path_of_optimizer(name)}.{kind}", held


class _Walk(OfModels):
    """The modules of the models, their tensors, and the dicts of hooks on both."""

    def __init__(self, models: Iterable[tuple[str, nn.Module]], before: _Walk | None) -> None:
        super().__init__()
        self._handles = RemovableHandle.next_id
        self._empty: list[dict[str, Any]] = []
        self._filled: list[tuple[dict[str, Any], tuple[Any, ...]]] = []
        self._plain: list[Any] = []
        """The parameters without hooks."""
        parameters: dict[Any, str] = {}
        for start, model in models:
            for path, module in _below(model, start):
                self.found.append((path, module))
                self._add(path, module)
                for name, parameter in module._parameters.items():
                    if parameter is not None:
                        parameters.setdefault(parameter, f"{path}.{name}")
        self.modules = [module for _, module in self.found]
        self._parameters = [(path, parameter) for parameter, path in parameters.items()]
        for parameter in parameters:
            held = [held for kind in OF_PARAMETERS if (held := getattr(parameter, kind))]
            for each in held:
                self._note(each)
            if not held:
                self._plain.append(parameter)
        once = {id(held) for _, held in before.hooked} if before is not None else set()
        self.hooked = [each for each in self._dicts_of_hooks() if each[1] or id(each[1]) in once]

    def _add(self, path: str, module: nn.Module) -> None:
        own = module.__dict__
        for kind in _MEMBERS:
            self._note(own[kind])
        for kind in OF_MODULES:
            self._note(own[kind])
        for name, tensor in (*own["_parameters"].items(), *own["_buffers"].items()):
            if tensor is not None:
                self.owned.append((f"{path}.{name}", tensor))

    def _note(self, held: dict[str, Any]) -> None:
        if held:
            self._filled.append((held, tuple(held.values())))
        else:
            self._empty.append(held)

    def _dicts_of_hooks(self) -> Iterator[tuple[str, Any]]:
        holders = ((OF_MODULES, self.found), (OF_PARAMETERS, self._parameters))
        for kinds, found in holders:
            for path, holder in found:
                for kind in kinds:
                    if (held := getattr(holder, kind)) is not None:
                        yield f"{path}.{kind}", held

    def newly_hooked(self) -> list[tuple[str, Any]]:
        if self._handles == RemovableHandle.next_id:  # no hook has been registered, on whatever
            return []
        self._handles = RemovableHandle.next_id
        known = {id(held) for _, held in self.hooked}
        found = {id(held): (path, held) for path, held in self._dicts_of_hooks() if held}
        new = [each for key, each in found.items() if key not in known]
        self.hooked += new
        return new

    def is_current(self) -> bool:
        """Whether a new walk would find the same."""
        if any(self._empty) or any([each._backward_hooks for each in self._plain]):
            return False
        if any([getattr(each, "_post_accumulate_grad_hooks", None) for each in self._plain]):
            return False
        return all([len(held) == len(b) and all(map(is_, held.values(), b)) for held, b in self._filled])


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(callable(each) for each in value)


def _below(module: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    found = [(path, module)]
    for name, child in module._modules.items():
        if child is not None:
            found += _below(child, f"{path}.{name}")
    return found


_SAMPLERS = {BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler}
_UNCHANGED = {*_SAMPLERS, TensorDataset}
"""Torch's own. They hold nothing that changes but a generator, which is in the loader's part of the state."""


def _parts_of_loader(path: str, loader: Any) -> Iterator[tuple[str, Any]]:
    """What a loader reaches in this process. What worker processes reach is theirs."""
    if not isinstance(loader, DataLoader):
        if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
            yield path, loader
        return
    batch_sampler, sampler = loader.batch_sampler, loader.sampler
    inner = getattr(batch_sampler, "sampler", None)
    parts = [
        ("batch_sampler", batch_sampler),
        ("batch_sampler.sampler", inner),
        ("sampler", None if sampler is inner else sampler),
    ]
    if loader.num_workers == 0:
        parts += [("dataset", loader.dataset), ("collate_fn", loader.collate_fn)]
    for name, part in parts:
        if part is not None and type(part) not in _UNCHANGED:
            yield f"{path}.{name}", part


class Moved(NamedTuple):
    """The names of what has changed in a process."""

    by_steps: Sequence[str]
    by_hand: Sequence[str]


class CarriedPart:
    """The part. It looks at each beginning and each capture, and notes which objects steps change."""

    def __init__(self, sources: Sources, tell: Tell, required: bool, cut: bool = False) -> None:
        self.sources = sources
        self.heap = Heap()
        if cut:
            self.heap.classes.leave_weights()
        self._tell, self._required = tell, required
        self._moving = False
        """Whether steps are being taken: what changes meanwhile, they changed."""
        self._begun = False
        self._waits: LookReader | None = None
        """What a file holds for objects that the program has not brought yet."""
        self._said: set[str] = set()
        self._told = 0
        """How many objects are known that cannot be kept."""
        self._untouched = Untouched()

    @property
    def writes_unseen(self) -> bool:
        """Whether code that steps reach may write to tensors behind torch's back, as through `.data`. Then no
        copy may be made while a step runs: nothing would show that it is torn."""
        return self.heap.room.unseen

    # Around steps ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before steps: the user may have changed anything, and brought more. What cannot be kept is told
        now."""
        self._find()
        self._moving = True
        self._tell_what_is_left()
        if found := self.heap.read_only():
            self._untouched.know(found)

    def rest(self) -> None:
        """After steps."""
        self.heap.look(by_steps=True)
        self._moving = False
        if self._untouched.due:
            self.compare_large(at_once=True)
        self._note_what_changed()
        self._tell_what_is_left()

    def find_again(self) -> None:
        """Layers or optimizers have come or gone, perhaps while steps are taken."""
        if self._moving:
            self.heap.look(by_steps=True)
            self._find()

    def compare_large(self, at_once: bool = False) -> list[str]:
        """A checkpoint is made: have a thread compare what is large and taken to be read only. Return the
        names of what is known to have changed."""
        if not self._moving:
            self._find()
        if found := self.heap.read_only():
            self._untouched.compare(found, at_once)
        return self._note_what_changed()

    def _note_what_changed(self) -> list[str]:
        changed = self._untouched.changed()
        for entry in changed:
            self.heap.has_changed(entry)
        if len(self.heap.left) != self._told and not self._required:  # before anyone relies on it
            self._tell_what_is_left()
        return [said_of(entry.path) for entry in changed]

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Inside, steps are taken that will be taken back."""
        before, self._moving = self._moving, True
        try:
            yield
        finally:
            self._moving = before

    def _find(self) -> None:
        self.heap.begin(self.sources.roots())
        self._begun = True
        if self._waits is not None:
            reader, self._waits = self._waits, None
            placed = len(reader.lives)
            look = reader.look(self.heap)
            if len(reader.lives) > placed:
                self.heap.give(look, by_steps=False)
            for path, kind in reader.missing.items():
                self._say(
                    path,
                    f"the checkpoint holds {said_of(path)} ({kind}), and this program has no place for it",
                )

    # The state ---------------------------------------------------------------------------------------

    def look(self) -> Look:
        """What steps have changed, as it is now."""
        if not self._moving:
            self._find()
            return self.heap.last
        if self._untouched.found or len(self.heap.left) != self._told:
            self._note_what_changed()
        return self.heap.look(by_steps=True)

    def give(self, look: Look) -> None:
        """Put it back as it was then."""
        self.heap.give(look, by_steps=self._moving)

    def copied(self, things: Any) -> Copies:
        """A deep copy of nested things, with what their functions reach."""
        if not self._moving:
            self._find()
        return copied_program(self.heap, things)

    def adopt(self, parent: CarriedPart, copies: Copies) -> None:
        """Know of the copies what the parent knows of the originals, such as what steps change."""
        self.heap.know(each for each in copies.of.values() if isinstance(each, GlobalName))
        self._find()
        self.heap.adopt(parent.heap, copies.of, copies.taken)

    def captured(self, parts: Mapping[str, Any], copies: Copies) -> dict[str, Any]:
        """A state's parts for the copies: the loaders' parts say what there was when the epoch began."""
        found = {**parts, "carried": copies.look(parts["carried"], self.heap) or self.capture()}
        for name, part in parts.items():
            if name.startswith("data "):
                found[name] = {**part, "began": copies.look(part.get("began"), self.heap)}
        return found

    def tidy(self) -> None:
        """Leave out what steps have replaced, before two looks are compared."""
        self.heap.tidy()

    def capture(self) -> Any:
        return self.look()

    def check(self, state: Any, /) -> None:
        if not isinstance(state, Look) and not (
            isinstance(state, Mapping) and isinstance(state.get("objects"), list)
        ):
            raise StateError("this file does not hold a valid state: it says nothing of what steps reach")

    def restore(self, state: Any, /, but: Collection[str] = ()) -> None:
        """Put back what a state holds, but for what has these names."""
        if not self._moving:
            self._find()
        if isinstance(state, Look) and state.heap is self.heap:
            self.give(state)
            return
        reader = LookReader(state.plain() if isinstance(state, Look) else state)
        with self.heap.as_before_if_it_fails(by_steps=self._moving):
            self.give(reader.look(self.heap).without(but))
        self._waits = reader if reader.missing else None

    def moved(self) -> Moved:
        """What steps have changed, by name, and what of that the user has changed since this was last
        asked."""
        by_hand, self.heap.by_hand = sorted(self.heap.by_hand), set()
        return Moved([each.path for each in self.heap.entries.values() if each.moves], by_hand)

    def before_steps(self) -> Any:
        """What there was before steps changed it, as plain data for another process that goes on."""
        if not self._moving:
            self._find()
        return self.heap.before_steps().plain()

    def goes_on(self, before: Any, but: Collection[str] = ()) -> None:
        """The program comes from the middle of a run, where this was before steps changed it; but for what
        has these names."""
        self._find()
        self.heap.goes_on(LookReader(before).look(self.heap).without(but))

    @contextmanager
    def brought_again(self, there: Moved) -> Iterator[None]:
        """Inside, the program is replaced by the one of another process, with all that it holds there. What
        steps have changed, here or there, stays as it is here, but for what the user has changed there."""
        if self._moving:  # a step was broken off here
            self.rest()
        self._find()
        held = self.heap.moved(there.by_steps)
        tree, before = held.plain(), self.heap.before_steps(there.by_steps).plain()
        yield
        self.restore(tree, there.by_hand)
        self.goes_on(before, there.by_hand)

    def of_file(self, state: Any) -> Look:
        """A look that a file holds beside the state: that of an epoch's start."""
        if isinstance(state, Look) and state.heap is self.heap:
            return state
        return LookReader(state.plain() if isinstance(state, Look) else state).look(self.heap)

    def left_names(self) -> list[str]:
        """The names of what steps reach and is not in the state."""
        return [said_of(each.path) for each in self.heap.left.values() if "read only" not in each.why]

    def of_models(self) -> dict[str, Any]:
        """What models, hooks and optimizers reach, by names that are the same in another process."""
        sources = self.sources
        heap = Heap()
        heap.begin(Sources(sources.models, sources.optimizers, sources.owned, list, list, {}).roots())
        return {
            f"reached: {each.path}": each.live
            for each in heap.entries.values()
            if not isinstance(each.kind, ConstantKind)
        }

    def path_of_changed(self, live: Any) -> str:
        """The name of an object that steps change; empty for another one."""
        entry = self.heap.entries.get(id(live))
        return entry.path if entry is not None and entry.moves else ""

    def table(self) -> CarriedTable:
        """What steps reach, for users."""
        if not self._moving:
            self._find()
        return table_of(self.heap)

    # What is told ------------------------------------------------------------------------------------

    def _tell_what_is_left(self) -> None:
        self.heap.left = {
            path: each for path, each in self.heap.left.items() if _short(path) not in self.sources.named
        }
        self._told = len(self.heap.left)
        left = [each for each in self.heap.left.values() if each.path not in self._said]
        if left and self._required:
            raise StateError(
                "not everything that a step reaches can be kept, and .exactness('required') asks for that:\n"
                + "\n".join(f"  - {_why(each)}" for each in left)
            )
        for each in left:
            self._say(each.path, f"not in the state: {_why(each)}")

    def _say(self, path: str, text: str) -> None:
        if path not in self._said:
            self._said.add(path)
            self._tell(text)


def _short(path: str) -> str:
    """The name that the user gave it."""
    return said_of(path).replace("]", "").replace("[", ".").split(":")[-1].split(".")[-1].strip()


def _why(left: Left) -> str:
    name, short = said_of(left.path), _short(left.path)
    remedy = left.remedy or (
        f"Give it one, or .carry({short}=...)"
        if left.why == Unknown("has no state_dict")
        else f".carry({short}=...) can say how, with a pair of functions (get, set)"
    )
    if "read only" in left.why:
        return f"{name} ({left.kind}) {left.why}"
    return f"{name} ({left.kind}): {left.why}; a rewind will not take it back. {remedy}"
