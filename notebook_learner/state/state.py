"""Everything a step can change, as one value: captured, held in memory, restored to the same bits.

It has three uses: a checkpoint in the middle of an epoch, a keyframe to rewind to, and a what-if that changes
nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import StateError
from ..event import Record
from ..event.position import Position
from ..step.optimizers import Optimizers
from .compact_keyframes import SMALL, Compact, is_packed
from .device_copies import copy_to_host, size_of, spread_on_devices

BESIDE = 1000
"""Bytes that a tensor takes in addition to its numbers: objects, entries in dicts, the ends of memory
pieces."""
OTHERS = 32_000
"""Bytes of a keyframe outside tensors: Python's and NumPy's generators, dicts, other small objects."""
FEW = 16
"""Up to this many tensors make no difference."""


class Part(Protocol):
    """One thing that a step can change."""

    def capture(self) -> Any:
        """Return its value now, in memory that the live one does not share."""

    def restore(self, state: Any, /) -> None:
        """Make the live one equal to a captured value."""


Copy = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Copies tensors to the host: at once, or in a thread that has finished when the copies are needed."""


class Large(ABC):
    """A part whose tensors are copied by a function that the caller gives."""

    @abstractmethod
    def capture(self, copy: Copy, /) -> Any:
        """Return its value now. Tensors that a forward pass can change are copied at once in any case."""


class Held(ABC):
    """A captured value of a part that is more than plain data while it is in memory."""

    __slots__ = ()

    @abstractmethod
    def held(self) -> Sequence[Tensor]:
        """The tensors that take its memory."""

    @abstractmethod
    def plain(self) -> Any:
        """The same as plain data, for a file."""


def written(tree: Any) -> Any:
    """A captured part as plain data."""
    if isinstance(tree, Held):
        return tree.plain()
    if isinstance(tree, dict) and any([isinstance(value, Held) for value in tree.values()]):
        return {key: written(value) for key, value in tree.items()}
    return tree


@runtime_checkable
class Checks(Protocol):
    """A part that can say in advance whether a captured value fits."""

    def check(self, state: Any, /) -> None:
        """Raise a StateError if it does not fit."""


@dataclass(frozen=True, slots=True)
class State:
    """A captured state: `learner.capture()` returns it, and `learner.restore()` takes it.

    `parts` maps the name of a part (model, optimizer, rng, data, ...) to its captured value. `record` is
    everything that was measured up to here. It is shared with the history, so it takes no memory.
    """

    position: Position
    parts: Mapping[str, Any]
    record: Record = field(default=(), repr=False)
    ready: Callable[[], bool] = field(default=lambda: True, repr=False, compare=False)
    """Waits for a copy that is still being made. It returns False if the copy failed: then the state is
    void."""
    _memory: Mapping[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def memory(self) -> Mapping[int, int]:
        """The bytes of each piece of memory that its tensors lie in, by address. States share the memory of
        metrics that only append. It is computed at the first read: a boundary that only writes a checkpoint
        does not need it."""
        if not self._memory:
            compact = isinstance(self.parts, Compact)
            held = self.parts.held() if isinstance(self.parts, Compact) else self.parts
            found = {id(tensor): tensor for tensor in tensors_in(held)}
            beside = BESIDE if compact or len(found) > FEW else 0
            plain = [tensor.untyped_storage() for tensor in found.values() if tensor.layout is torch.strided]
            others = {
                key: size_of(tensor) + beside
                for key, tensor in found.items()
                if tensor.layout is not torch.strided
            }
            pieces = {piece.data_ptr(): piece.nbytes() + beside for piece in plain}
            if compact:
                others[id(self.parts)] = OTHERS
            object.__setattr__(self, "_memory", {**others, **pieces})
        return self._memory

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it takes; a tied tensor counts once."""
        return sum(self.memory.values())

    def compact(self, like: State | None) -> State:
        """Return the same state in less memory, if it has many small tensors. What it shares with `like` is
        kept once."""
        before = None if like is None else like.parts
        if not isinstance(before, Compact):
            packed = [part for name, part in self.parts.items() if is_packed(name)]
            if sum([size_of(tensor) <= SMALL for tensor in tensors_in(packed)]) <= FEW:
                return self
        return replace(self, parts=Compact(self.parts, before))

    def __repr__(self) -> str:
        return f"State({self.position}; {', '.join(self.parts)}; {self.nbytes / 1e6:.1f} MB)"


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors of a nested value. It does no work for each number of a list: a state holds thousands."""
    found: list[Tensor] = []
    waiting: list[Any] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Tensor):
            found.append(node)
        elif isinstance(node, Mapping):
            waiting += node.values()
        elif isinstance(node, Held):
            found += node.held()
        elif isinstance(node, (list, tuple)) and not _NUMBERS.issuperset(map(type, node)):
            waiting += node
    return found


_NUMBERS = {int, float, bool}
_PLAIN = {*_NUMBERS, complex, str, bytes, type(None)}
"""The types of values that cannot change."""


def copied(tensor: Tensor) -> Tensor:
    """A copy on the host. It keeps the memory format: a channels-last weight stays channels-last."""
    # `detach` on a tensor without gradient would add half of the time. `to` copies on the host, too, but
    # takes 1.4 times as long for a small tensor.
    alone = tensor.detach() if tensor.requires_grad else tensor
    return alone.clone() if alone.is_cpu else copy_to_host([alone])[0]


def all_copied(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Their copies on the host. For small tensors, one call for all takes half as long as one call for
    each."""
    if not tensors:
        return []
    if not all([tensor.is_cpu for tensor in tensors]):
        return copy_to_host(tensors)
    if _clone_all is None:
        return [copied(tensor) for tensor in tensors]
    with torch.no_grad():
        return _clone_all(tensors)


_clone_all: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None = getattr(torch, "_foreach_clone", None)
"""None with older versions of torch."""


def copy_all(live: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    """Write saved values into live tensors, in place and in one call: for a small tensor, the call costs more
    than the copy."""
    if not all([tensor.is_cpu for tensor in live]):
        saved = spread_on_devices(live, saved)
    if _write_all is not None and live:
        _write_all(live, saved)
        return
    for tensor, value in zip(live, saved, strict=True):
        tensor.copy_(value)


_write_all: Callable[[Any, Any], None] | None = getattr(torch, "_foreach_copy_", None)


def clone(tree: Any, copy: Callable[[Tensor], Tensor] = copied) -> Any:
    """A copy on the host that shares nothing with the original; other objects are deep-copied."""
    if type(tree) in _PLAIN:
        return tree
    if isinstance(tree, Tensor):
        return copy(tree)
    if isinstance(tree, dict):
        return {key: clone(value, copy) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields"):
        return type(tree)(clone(value, copy) for value in tree)
    return deepcopy(tree)


class Writing:
    """Writes captured values into the live ones, in place if they fit: call `put` for each, then `write`.

    Writing in place keeps the addresses that a captured CUDA graph or a fused kernel relies on.
    """

    def __init__(self) -> None:
        self._live: list[Tensor] = []
        self._saved: list[Tensor] = []

    def put(self, saved: Any, live: Any, device: torch.device) -> Any:
        """Return the live value; `write` fills the tensors that stay."""
        if isinstance(saved, Tensor):
            if isinstance(live, Tensor) and live.shape == saved.shape and live.dtype == saved.dtype:
                self._live.append(live)
                self._saved.append(saved)
                return live
            return saved.to(device, copy=True)
        if isinstance(saved, dict):
            present = live if isinstance(live, dict) else {}
            return {key: self.put(value, present.get(key), device) for key, value in saved.items()}
        if isinstance(saved, list):
            return [self.put(value, None, device) for value in saved]
        return deepcopy(saved)

    def write(self) -> None:
        """Write all of them at once."""
        with torch.no_grad():
            copy_all(self._live, self._saved)


def require_fit(parts: Mapping[str, Part], state: State) -> None:
    """Raise a StateError if a state does not fit these parts. The shape is not asked: it was put back
    before."""
    missing = [name for name in parts if name not in state.parts and name != "shape"]
    if missing:
        raise StateError(
            f"the state lacks {', '.join(missing)}; it was captured from a learner that was built "
            "otherwise (with another precision, average, or without validation)"
        )
    for name, part in parts.items():
        if isinstance(part, Checks):
            part.check(state.parts[name])


class ModelPart(Large):
    """Parameters and buffers, also the non-persistent buffers, because a step can change them as well. A tied
    parameter has all its names, and one captured tensor."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.stand_ins: Mapping[str, Tensor] = {}
        """By name: the tensors that are captured and restored in place of a parameter."""
        self.walk: tuple[list[tuple[str, nn.Module]], dict[str, Tensor]] = [], {}
        """What the last look found: each module with the start of its tensors' names, and the parameters."""

    def tensors(self) -> dict[str, Tensor]:
        """All of them as they are now, under all of their names."""
        parameters, buffers, _ = self.look_through()
        return {**parameters, **buffers}

    def capture(self, copy: Copy = all_copied, /) -> dict[str, Any]:
        parameters, buffers, extra = self.look_through()
        tensors = {**_copied_once(parameters, copy), **_copied_once(buffers, all_copied)}
        told = {path: clone(module.get_extra_state()) for path, module in extra}
        return {"tensors": tensors, "extra": told}

    def check(self, state: Any, /) -> None:
        parameters, _, _ = self.look_through()
        _check_same(state["tensors"], parameters, self._places_of_buffers())

    def restore(self, state: Any, /) -> None:
        self.check(state)
        self.put(state["tensors"])
        for name, extra in state["extra"].items():
            self.model.get_submodule(name).set_extra_state(deepcopy(extra))

    def put(self, saved: Mapping[str, Tensor]) -> None:
        """Write captured tensors into the model's own. A buffer that has grown, is of another type by now, or
        was None then or is now, gets a new tensor."""
        live = self.tensors()
        fitting = [name for name, tensor in live.items() if _fits(tensor, saved.get(name))]
        with torch.no_grad():
            copy_all([live[name] for name in fitting], [saved[name] for name in fitting])
        if len(fitting) < max(len(live), len(saved)):
            self._replace(saved, {*fitting})

    def _replace(self, saved: Mapping[str, Tensor], done: Collection[str]) -> None:
        anew: dict[int, Tensor] = {}
        for name, (module, own) in self._places_of_buffers().items():
            if name in done:
                continue
            before, value = module._buffers[own], saved.get(name)
            if value is None:
                module._buffers[own] = None
            else:
                device = before.device if before is not None else self._device()
                module._buffers[own] = anew.setdefault(id(value), value.to(device, copy=True))

    def _device(self) -> torch.device:
        return next((tensor.device for tensor in self.tensors().values()), torch.device("cpu"))

    def _places_of_buffers(self) -> dict[str, tuple[nn.Module, str]]:
        """Each buffer under all of its names, also one that is None: its module, and its name there."""
        return {
            start + name: (module, name)
            for start, module in _below(self.model, "")
            for name, _ in module._buffers.items()  # that of a scripted module is no dict
        }

    def look_through(self) -> tuple[dict[str, Tensor], dict[str, Tensor], list[tuple[str, nn.Module]]]:
        """Parameters and buffers under all of their names, and the modules with extra state, once each. One
        walk finds all of them; torch's functions take one walk for each, a millisecond for a thousand
        modules."""
        parameters, buffers, extra = dict[str, Tensor](), dict[str, Tensor](), dict[nn.Module, str]()
        below = _below(self.model, "")
        for start, module in below:
            if held := module._parameters:
                for name, tensor in held.items():
                    if tensor is not None:
                        parameters[start + name] = tensor
            if own := module._buffers:
                for name, buffer in own.items():
                    if buffer is not None:
                        buffers[start + name] = buffer
            if type(module).get_extra_state is not _NO_EXTRA_STATE:
                extra.setdefault(module, start[:-1])
        self.walk = below, parameters.copy()
        parameters.update(self.stand_ins)
        return parameters, buffers, [(path, module) for module, path in extra.items()]


def _below(module: nn.Module, start: str) -> list[tuple[str, nn.Module]]:
    """A module and all below it, each under all of its names, with the prefix of its tensors' names. It gives
    the same as `named_modules`, in a third of the time."""
    found = [(start, module)]
    for name, child in module._modules.items():
        if child is not None:
            path = f"{start}{name}."
            found += _below(child, path) if child._modules else [(path, child)]
    return found


_NO_EXTRA_STATE = nn.Module.get_extra_state


def _copied_once(live: Mapping[str, Tensor], copy: Copy) -> dict[str, Tensor]:
    """Each tensor's copy, under all of the tensor's names."""
    if not live:
        return {}
    known = {id(tensor): tensor for tensor in live.values()}
    copies = dict(zip(known, copy([*known.values()]), strict=True))
    return {name: copies[id(tensor)] for name, tensor in live.items()}


def _fits(live: Tensor, saved: Tensor | None) -> bool:
    return saved is not None and saved.shape == live.shape and saved.dtype == live.dtype


def _check_same(
    saved: Mapping[str, Tensor], parameters: Mapping[str, Tensor], buffers: Collection[str]
) -> None:
    """A buffer may change its shape and its type in training; a parameter may not."""
    wrong = [
        f"{name} is not in the model" for name in saved if name not in parameters and name not in buffers
    ]
    wrong += [f"{name} is not in the state" for name in parameters if name not in saved]
    for name, tensor in parameters.items():
        if name in saved and not _fits(tensor, saved[name]):
            other = saved[name]
            wrong.append(f"{name}: the state has {_said(other, tensor)}, the model {_said(tensor, other)}")
    if wrong:
        raise StateError("the state belongs to another model:\n" + "\n".join(f"  - {line}" for line in wrong))


def _said(tensor: Tensor, other: Tensor) -> str:
    """A tensor's shape, and its type if that of the other one differs."""
    kind = "" if tensor.dtype == other.dtype else f" {str(tensor.dtype).removeprefix('torch.')}"
    return f"{tuple(tensor.shape)}{kind}"


class OptimizerPart(Large):
    """An optimizer's groups and per-parameter state.

    `Optimizer.load_state_dict` casts state to the parameter's dtype, which is not exact for a bf16 parameter
    with fp32 moments. So the state is read and written directly, parameter by parameter. If an optimizer
    overrides `state_dict`, its own methods are used instead.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._asked = type(optimizer).state_dict is not Optimizer.state_dict

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def capture(self, copy: Copy = all_copied, /) -> dict[str, Any]:
        if self._asked:
            return {"own": clone(self.optimizer.state_dict())}
        state = self.optimizer.state
        held = [state.get(p) for p in self._parameters()]
        tensors = [value for each in held if each for value in each.values() if isinstance(value, Tensor)]
        copies = iter(copy(tensors))
        return {
            "groups": [
                {
                    key: value if type(value) in _PLAIN else clone(value)
                    for key, value in group.items()
                    if key != "params"
                }
                for group in self.optimizer.param_groups
            ],
            "sizes": [len(group["params"]) for group in self.optimizer.param_groups],
            "state": [None if each is None else _take_moments(each, copies, copy) for each in held],
            "shared": {key: clone(value) for key, value in state.items() if not isinstance(key, Tensor)},
        }

    def check(self, state: Any, /) -> None:
        if self._asked:
            return
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        if sizes != state["sizes"]:
            raise StateError(
                f"the state's optimizer has groups of {state['sizes']} parameters, this one of {sizes}; "
                "build the optimizer over the same parameter groups"
            )

    def restore(self, state: Any, /) -> None:
        if self._asked:
            self.optimizer.load_state_dict(deepcopy(state["own"]))
            return
        self.check(state)
        writing = Writing()
        self._restore_groups(state["groups"], writing)
        self._restore_state(state, writing)
        writing.write()

    def _restore_groups(self, groups: list[dict[str, Any]], writing: Writing) -> None:
        for live, saved in zip(self.optimizer.param_groups, groups, strict=True):
            for key in [key for key in live if key != "params" and key not in saved]:
                del live[key]
            for key, value in saved.items():
                live[key] = writing.put(value, live.get(key), _device_of(live.get(key)))
            if live.get("capturable") and any(parameter.is_cpu for parameter in live["params"]):
                live["capturable"] = False  # left by a run with CUDA graphs; on the host torch refuses it

    def _restore_state(self, state: Any, writing: Writing) -> None:
        live = self.optimizer.state
        old = dict(live)
        live.clear()
        for parameter, saved in zip(self._parameters(), state["state"], strict=True):
            if saved is not None:
                live[parameter] = _put_moments(saved, old.get(parameter, {}), parameter.device, writing)
        live.update(deepcopy(state["shared"]))


class OptimizersPart(Large):
    """Several optimizers, each with a part of its own."""

    def __init__(self, named: Mapping[str, Optimizer]) -> None:
        self.parts = {name: OptimizerPart(each) for name, each in named.items()}

    def capture(self, copy: Copy = all_copied, /) -> dict[str, Any]:
        return {"named": {name: part.capture(copy) for name, part in self.parts.items()}}

    def check(self, state: Any, /) -> None:
        if list(state["named"]) != list(self.parts):
            raise StateError(
                f"the state has the optimizers {', '.join(state['named'])}, this learner has "
                f"{', '.join(self.parts)}; build it with the same names in the same order"
            )
        for name, part in self.parts.items():
            part.check(state["named"][name])

    def restore(self, state: Any, /) -> None:
        self.check(state)
        for name, part in self.parts.items():
            part.restore(state["named"][name])


def optimizer_part(optimizer: Optimizer) -> OptimizerPart | OptimizersPart:
    """The part of one optimizer, or of several."""
    if isinstance(optimizer, Optimizers):
        return OptimizersPart(optimizer.named)
    return OptimizerPart(optimizer)


def _take_moments(live: dict[str, Any], copies: Iterator[Tensor], copy: Copy) -> dict[str, Any]:
    """A parameter's optimizer state, given the copies of its tensors. It also lists the values that are on
    the host although the parameter is on an accelerator: step counters are, unless the optimizer is
    `capturable` or `fused`."""
    values, host = {}, []
    for key, value in live.items():
        if isinstance(value, Tensor):
            values[key] = next(copies)
            if value.is_cpu:
                host.append(key)
        else:
            values[key] = clone(value, lambda tensor: copy([tensor])[0])
    return {"values": values, "host": host}


def _put_moments(
    saved: dict[str, Any], live: dict[str, Any], device: torch.device, writing: Writing
) -> dict[str, Any]:
    host = torch.device("cpu")
    return {
        key: writing.put(value, live.get(key), host if key in saved["host"] else device)
        for key, value in saved["values"].items()
    }


def _device_of(value: Any) -> torch.device:
    return value.device if isinstance(value, Tensor) else torch.device("cpu")
