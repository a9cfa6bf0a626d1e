"""What a training consists of: layers, parameters, parameter groups, schedule and functions, as live objects.

It is kept by reference, so going back over a change brings back the very same objects.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from operator import attrgetter, is_, itemgetter
from types import CodeType
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import a_kind
from ..event.position import Position
from ..step.optimizers import named_of
from ..step.own_loss import MODEL_STEPS
from .state import ModelPart

_MODULE, _SHAPE = itemgetter(1), attrgetter("shape")


class InUse(NamedTuple):
    """What a training consists of, apart from the model itself."""

    optimizer: Optimizer
    schedule: Any
    functions: tuple[Any, ...]
    """The steps and the loss that the user gave."""


class Changeable(Protocol):
    """The training."""

    def in_use(self) -> InUse:
        """What it consists of now."""

    def use(self, parts: InUse, /) -> None:
        """Train with these from here on."""

    def changed(self, text: str, /) -> None:
        """Follow a change. `text` tells the user what changed; it is empty if the training only went back."""

    def tell(self, text: str, /) -> None:
        """Warn the user."""

    @property
    def borrows(self) -> bool:
        """Whether it has other parts for a moment."""

    @property
    def place(self) -> Position:
        """Where the training stands."""


class Composition:
    """All of it, as it was at one moment."""

    def __init__(self, model: ModelPart, owner: Changeable) -> None:
        self.owner: Changeable | None = owner
        self.parts = owner.in_use()
        below, self._named = model.walk
        self._paths = [path for path, _ in below]
        self._modules = [module for _, module in below]
        self._kinds = [type(module) for module in self._modules]
        self._held = {
            id(each): (each, type(each), dict(each._modules.items()), dict(each._parameters.items()))
            for each in self._modules
        }
        self.parameters = list({id(each): each for each in self._named.values()}.values())
        self._data = [each.detach() for each in self.parameters]
        self._shapes = [each.shape for each in self.parameters]
        self._groups = _groups_of(self.parts.optimizer)

    def is_still(self, model: ModelPart, parts: InUse) -> bool:
        """Whether all of it is what there is now. Asked at each capture: 0.2 us a module."""
        below, named = model.walk
        return (
            _are([*map(_MODULE, below)], self._modules)
            and _are_named(named, self._named)
            and [*map(_SHAPE, self.parameters)] == self._shapes
            and _are(parts[:2], self.parts[:2])
            and _are(parts.functions, self.parts.functions)
            and _are_groups(_groups_of(parts.optimizer), self._groups)
        )

    def put(self) -> None:
        """Let the training consist of this again."""
        for module, kind, modules, parameters in self._held.values():
            _put(module._modules, modules)
            if _put(module._parameters, parameters):
                module.__class__ = kind  # a parametrization had made another one
                if isinstance(module, nn.RNNBase):
                    module._init_flat_weights()  # it lists its parameters
        for parameter, data in zip(self.parameters, self._data, strict=True):
            if parameter.shape != data.shape:
                parameter.data = data
        for optimizer, groups in self._groups:
            for group, members in groups:
                group["params"] = members.copy()
            optimizer.param_groups[:] = [group for group, _ in groups]
        assert self.owner is not None
        self.owner.use(self.parts)

    @cached_property
    def names(self) -> dict[str, Any]:
        """Its names, for a file."""
        first = {id(each): name for name, each in reversed(self._named.items())}
        numbers = {id(each): number for number, each in enumerate(self.parameters)}
        kinds = zip(self._paths, self._kinds, strict=True)
        shapes = zip(self.parameters, self._shapes, strict=True)
        return {
            "modules": {path[:-1]: kind.__qualname__ for path, kind in kinds},
            "parameters": {first[id(each)]: list(shape) for each, shape in shapes},
            "optimizers": {
                name: [
                    type(optimizer).__qualname__,
                    [_runs([numbers.get(id(each), -1) for each in members]) for _, members in groups],
                ]
                for name, (optimizer, groups) in zip(
                    named_of(self.parts.optimizer), self._groups, strict=True
                )
            },
        }

    @cached_property
    def functions(self) -> list[list[str]]:
        """What the user gave as steps and loss, for a file: the role, the name, and a digest of the code."""
        given = zip(ROLES, self.parts.functions, strict=False)
        return [[role, *described(each)] for role, each in given if each is not None]

    @cached_property
    def digest(self) -> str:
        """Equal for two processes where all has the same names, shapes and groups."""
        return blake2b(repr(self.names).encode(), digest_size=8).hexdigest()


ROLES = ("train_step", "valid_step", "loss", *(f"the model's {name}" for name in MODEL_STEPS))
"""What the functions in use are, in their order."""


def described(function: Any) -> tuple[str, str]:
    """A function's name, and a digest of its code that ignores where it stands; it is empty where the code
    cannot be known. Of a layer, as losses are, it is one of its settings.

    >>> one, other = (lambda x: x + 1), (lambda x: x + 2)
    >>> described(one)[1] == described(eval("lambda x: x + 1"))[1], described(one)[1] == described(other)[1]
    (True, False)
    >>> described(nn.CrossEntropyLoss())[1] == described(nn.CrossEntropyLoss(label_smoothing=0.1))[1]
    False
    """
    while isinstance(function, partial):
        if function.args or function.keywords:
            name, digest = described(function.func)
            return name, _digest([digest, *map(_said, function.args), *map(_said, function.keywords.items())])
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    if isinstance(function, nn.Module):
        plain = {key: value for key, value in vars(function).items() if key[0] != "_" and key != "training"}
        return name, _digest([repr(function), *map(_said, plain.items())])
    code = getattr(function, "__code__", None)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"  # bytecode is another one in another Python
    return name, "" if code is None else f"{version}:{_digest(_parts_of(code))}"


def _parts_of(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _parts_of(each)
        else:
            yield _said(each)


def _said(value: Any) -> str:
    """A plain value as text; of another one its kind alone, since its text may have an address."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_said, value))})"
    return repr(value) if isinstance(value, (int, float, complex, str, bytes, type(None))) else a_kind(value)


def _digest(parts: Iterable[str]) -> str:
    return blake2b("\n".join(parts).encode(errors="replace"), digest_size=8).hexdigest()


def _are(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def _are_named(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return list(one) == list(other) and all(map(is_, one.values(), other.values()))


_Groups = list[tuple[Optimizer, list[tuple[dict[str, Any], list[Tensor]]]]]


def _groups_of(optimizer: Optimizer) -> _Groups:
    return [
        (each, [(group, list(group["params"])) for group in each.param_groups])
        for each in named_of(optimizer).values()
    ]


def _are_groups(one: _Groups, other: _Groups) -> bool:
    pairs = [
        (mine, theirs)
        for (_, these), (_, those) in zip(one, other, strict=True)
        for mine, theirs in zip(these, those, strict=False)
    ]
    return [len(groups) for _, groups in one] == [len(groups) for _, groups in other] and all(
        group is same and _are(members, before) for (group, members), (same, before) in pairs
    )


def _put(live: Any, wanted: dict[str, Any]) -> bool:
    """Let a module's dict hold this; return whether it held something else."""
    if _are_named(dict(live.items()), wanted):
        return False
    live.clear()
    live.update(wanted)
    return True


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers as runs, each with its first number and its length.

    >>> _runs([3, 4, 5, 9])
    [[3, 3], [9, 1]]
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return runs
