"""Puts torch's `fully_shard` onto a model for a run, and removes it again without a trace.

Torch intends it for the rest of a process, and for its default process group. Here a model is divided while
it trains and whole while it stands still, and ranks come and go. So every collective goes through an object
of ours (`Collectives`), and torch gets a group that cannot send anything. What torch has left on modules is
removed by name; `tests/fleet/test_wrapping.py` fails if another version of torch leaves something else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import StateError

dist: Any = import_module("torch.distributed")  # torch has no types for most of it

_BACKEND = "notebook_learner"
_THEIRS = "torch.distributed.fsdp"
_ONE_AT_A_TIME = threading.Lock()
_TAKEN = (
    'strategy("fsdp") needs torch.distributed\'s default process group for a moment, and this process has '
    'one already; end it by torch.distributed.destroy_process_group(), or use strategy("ddp")'
)


class Collectives(Protocol):
    """The collective operations that torch asks for."""

    def gather(self, whole: Tensor, part: Tensor, unit: int) -> None:
        """Concatenate all ranks' parts."""

    def scatter(self, part: Tensor, whole: Tensor, unit: int) -> None:
        """Add all ranks' tensors up, and keep this rank's part of the sum."""


def units_of(model: nn.Module) -> list[nn.Module]:
    """The layers whose weights are gathered one layer at a time, innermost first, and then the model.

    These layers are the members of a ModuleList or a Sequential that has several of one kind: the blocks of a
    transformer, the stages of a network. A layer that shares a weight with another one stays with the model.
    """
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and module not in inside:
            members = [each for each in module if any(True for _ in each.parameters())]
            kinds = [type(each) for each in members]
            for each in members:
                if kinds.count(type(each)) > 1 and not isinstance(each, (nn.ModuleList, nn.ModuleDict)):
                    found.append(each)
                    inside.update(each.modules())
    return [each for each in dict.fromkeys(found) if _is_alone(each, model)] + [model]


def _is_alone(layer: nn.Module, model: nn.Module) -> bool:
    """Whether the layer shares its weights with no other layer and has only one place in the model."""
    own = set(layer.modules())
    mine = {id(parameter) for parameter in layer.parameters()}
    places = [each for module in model.modules() for each in module._modules.values() if each is layer]
    others = [p for module in model.modules() if module not in own for p in module._parameters.values()]
    return len(places) == 1 and not any(id(p) in mine for p in others)


class Wrapped:
    """A model that torch holds in parts. `parts` are this rank's, in the order of `model.parameters()`."""

    def __init__(
        self, model: nn.Module, collectives: Collectives, device: torch.device, rank: int, world: int
    ) -> None:
        fsdp: Any = import_module("torch.distributed.fsdp")
        whole = list(model.parameters())
        self.shapes = [parameter.shape for parameter in whole]
        self._before = [(module, type(module), set(vars(module))) for module in model.modules()]
        self._slots = [
            (module, name, parameter)
            for module in model.modules()
            for name, parameter in module._parameters.items()
            if parameter is not None
        ]
        self.units = units_of(model)
        try:
            with _group_of_torch(device, rank, world) as mesh:
                for number, unit in enumerate(self.units):
                    fsdp.fully_shard(unit, mesh=mesh)
                    _speak_through(unit, collectives, number)
        except BaseException:
            self.take_off()
            raise
        self._root: Any = model
        now = {id(old): module._parameters[name] for module, name, old in self._slots}
        self.divided: list[Any] = [now[id(parameter)] for parameter in whole]
        self.parts: list[Tensor] = [parameter.detach()._local_tensor for parameter in self.divided]

    def rest(self) -> None:
        """Free the gathered weights that a forward pass without a backward pass has left."""
        self._root.reshard()

    def take_off(self) -> None:
        """Give the modules their earlier classes and parameters back."""
        known: Any = import_module("torch.distributed._composable_state")._module_state_mapping
        for module, kind, names in self._before:
            module.__class__ = kind
            known.pop(module, None)
            for name in set(vars(module)) - names:
                if name.startswith(("__composable_api", "_is_fsdp", "_fsdp")):
                    delattr(module, name)
            _remove_hooks(module)
        for module, name, parameter in self._slots:
            if type(module).__setattr__ is nn.Module.__setattr__:
                module._parameters[name] = parameter
            else:  # a recurrent layer keeps a list of its parameters
                setattr(module, name, parameter)


def _remove_hooks(module: nn.Module) -> None:
    kinds = [each for name, each in vars(module).items() if "hooks" in name and isinstance(each, dict)]
    theirs = {
        number
        for each in kinds
        for number, hook in each.items()
        if str(getattr(hook, "__module__", "")).startswith(_THEIRS)
    }
    for each in kinds:
        for number in theirs & set(each):
            del each[number]


class _Voice:
    """One unit's collectives, with the signatures that torch expects."""

    def __init__(self, collectives: Collectives, unit: int) -> None:
        self.collectives, self.unit = collectives, unit

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate memory for a collective."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Voice):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False
    ) -> None:
        self.collectives.gather(output_tensor, input_tensor, self.unit)


class _Scatter(_Voice):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        self.collectives.scatter(output_tensor, input_tensor, self.unit)


def _speak_through(unit: Any, collectives: Collectives, number: int) -> None:
    unit.set_custom_all_gather(_Gather(collectives, number))
    unit.set_custom_reduce_scatter(_Scatter(collectives, number))
    unit.set_gradient_divide_factor(1.0)  # gradients are divided by all samples, once
    unit.set_force_sum_reduction_for_comms(True)


@contextmanager
def _group_of_torch(device: torch.device, rank: int, world: int) -> Iterator[Any]:
    """A mesh of so many ranks, with a default group that exists only inside this context."""
    with _ONE_AT_A_TIME:
        if dist.is_initialized():
            raise StateError(_TAKEN)
        if _BACKEND.upper() not in vars(dist.Backend):
            dist.Backend.register_backend(_BACKEND, _silent, devices=["cpu", "cuda"])
        hook = sys.excepthook  # torch replaces it
        dist.init_process_group(_BACKEND, store=dist.HashStore(), rank=rank, world_size=world)
        try:
            yield dist.device_mesh.init_device_mesh(device.type, (world,))
        finally:
            dist.destroy_process_group()
            sys.excepthook = hook


class _Silent(dist.ProcessGroup):  # type: ignore[misc]
    """A group that knows its size and cannot send: collectives that bypass `Collectives` fail."""

    group_name = ""

    def _set_group_name(self, name: str) -> None:
        self.group_name = name

    def _has_hooks(self) -> bool:
        return False


def _silent(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return _Silent(rank, size)
