"""What a training consists of: layers, parameters, parameter groups, schedule and functions, as live objects.

It is kept by reference, so going back over a change brings back the very same objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from ..event.position import Position
from ..step.optimizers import named_of
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
    def digest(self) -> str:
        """Equal for two processes where all has the same names, shapes and groups."""
        return blake2b(repr(self.names).encode(), digest_size=8).hexdigest()


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
