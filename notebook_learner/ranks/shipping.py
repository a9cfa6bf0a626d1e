"""Sends a user's objects to another process, including classes and functions from notebook cells.

An object that both sides have is sent by name: the model in training, its layers and parameters, the
optimizers, the hooks on all of these, and the learner. A step function that refers to one of them then uses
the one of its own process.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from ..carried.classify import HIDDEN_OF_OPTIMIZERS
from ..carried.hooks import OF_MODULES, OF_OPTIMIZERS, OF_PARAMETERS, is_of_library
from ..carried.iterators import itertools_copied
from ..step.optimizer_calls import with_wrapped
from ..step.optimizers import named_of
from ..step.update import Update

Names = Mapping[int, str]
"""The name of an object on both sides, by its id."""


def names_of(update: Update, learner: Any) -> tuple[Names, dict[str, Any]]:
    """The names of the objects that both sides have, and the objects for these names here."""
    model = update.model
    meant: dict[str, Any] = {f"module {name}": module for name, module in model.named_modules()}
    meant |= {f"parameter {name}": parameter for name, parameter in model.named_parameters()}
    for name, optimizer in named_of(update.optimizer).items():
        inner = enumerate(with_wrapped(optimizer))
        meant |= {f"optimizer {number} of {name}": each for number, each in inner}
    for name, each in tuple(meant.items()):
        meant |= {f"hooks: {kind} of {name}": held for kind, held in _hooks_on(each).items()}
    meant["the learner"] = learner
    return {id(each): name for name, each in meant.items()}, meant


def pack(value: Any, names: Names | None = None, *, stays: bool = False, parts: bool = False) -> bytes:
    """Pickle a value; tensors of accelerators are copied to the host first.

    Args:
        value: the value to send.
        names: the objects to send by name.
        stays: the other end puts tensors on the same device again; it has the same devices.
        parts: a tensor that is a part of a larger one is sent without the rest.

    Raises:
        Exception: any error of pickle, if the value cannot be sent.
    """
    buffer = io.BytesIO()
    with itertools_copied():
        packer = _ObjectPacker(buffer, names or {}, stays, parts)
        packer.dump(value)
        packer.dump(RemovableHandle.next_id)  # behind the value: plain pickle reads no further
    return buffer.getvalue()


def pack_by_value(value: Any, modules: Iterable[str]) -> bytes:
    """Pickle a value together with these modules' definitions here; the other side imports older ones."""
    wanted = [sys.modules[name] for name in modules if name in sys.modules]
    wanted = [each for each in wanted if each.__name__ not in _cloudpickle.list_registry_pickle_by_value()]
    for module in wanted:
        _cloudpickle.register_pickle_by_value(module)
    try:
        return pack(value)
    finally:
        for module in wanted:
            _cloudpickle.unregister_pickle_by_value(module)


def unpack(data: bytes, meant: Mapping[str, Any] | None = None) -> Any:
    """Unpickle a value, with this side's objects for what was sent by name."""
    with itertools_copied():
        unpacker = _ObjectUnpacker(io.BytesIO(data), meant or {})
        value = unpacker.load()
        # A hook that is registered here must not get the number of one that came from there.
        RemovableHandle.next_id = max(RemovableHandle.next_id, unpacker.load())
        return value


_cloudpickle: Any = import_module("cloudpickle")  # it has no types
_Pickler: Any = _cloudpickle.Pickler


class _ObjectPacker(_Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, names: Names, stays: bool, parts: bool) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._names = names
        self._stays = stays
        self._parts = parts
        self._memory: dict[int, Tensor] = {}
        """Each memory that was sent, by its address."""
        self._hooks: dict[int, tuple[Any, Any]] = {}
        """Each dict of hooks that holds a library's, and what is sent of it."""

    def _is_sent_as_view(self, value: Any) -> bool:
        """Whether it is a tensor whose memory is sent apart from it, and is not that memory itself."""
        if self._parts or type(value) is not Tensor or not _may_share(value):
            return False
        return value is not self._memory.get(value.data_ptr())

    def _memory_of(self, value: Tensor) -> Tensor:
        """The whole memory of a tensor, sent once: views of it are views there, too."""
        whole = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())
        return self._memory.setdefault(whole.data_ptr(), whole)

    def _sent_of(self, held: Any) -> Any:
        """A dict of hooks without those of libraries, which the other side has of its own."""
        if held is None or id(held) in self._names or not any(map(is_of_library, held.values())):
            return held
        own = OrderedDict((number, hook) for number, hook in held.items() if not is_of_library(hook))
        return self._hooks.setdefault(id(held), (held, own))[1]

    def _hooks_sent(self, value: Any) -> dict[str, Any]:
        sent = {kind: self._sent_of(held) for kind, held in _hooks_on(value).items()}
        return {kind: held for kind, held in sent.items() if held}

    def persistent_id(self, value: Any) -> str | None:
        return self._names.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        reduced = self._reduced(value)
        if isinstance(value, (Tensor, Optimizer)) and (hooks := self._hooks_sent(value)):
            # Pickle leaves them out: `torch` drops those of tensors and of optimizers without a word.
            plain = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if reduced is NotImplemented else reduced
            make, arguments, state = (*plain, None)[:3]
            return make, arguments, (state, hooks), None, None, _set_hooks
        return reduced

    def _reduced(self, value: Any) -> Any:
        if isinstance(value, RemovableHandle):
            held, *others = value.__getstate__()  # type: ignore[no-untyped-call]
            return copyreg.__newobj__, (RemovableHandle,), (self._sent_of(held), *others)  # type: ignore[attr-defined]
        if isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            kind = nn.Parameter if isinstance(value, nn.Parameter) else None
            where = value.device if self._stays else None
            return _rebuilt, (value.detach().cpu(), kind, value.requires_grad, where)
        if self._parts and isinstance(value, Tensor) and _is_a_part(value):
            return _rebuilt, (value.detach().clone(), None, value.requires_grad, None)
        if isinstance(value, Optimizer):
            return _with_attributes(value)
        if self._is_sent_as_view(value):
            place = value.dtype, value.storage_offset(), value.shape, value.stride(), value.requires_grad
            return _viewed, (self._memory_of(value), *place)
        if isinstance(value, DataLoader) and getattr(value, "_iterator", None) is not None:
            return _without_workers(value)
        if _is_odd_module(value):
            return import_module, (value.__name__,)
        return super().reducer_override(value)


def _hooks_on(value: Any) -> dict[str, Any]:
    """The dicts of hooks on a module, a tensor or an optimizer that hold some."""
    of = ((nn.Module, OF_MODULES), (Optimizer, OF_OPTIMIZERS), (Tensor, OF_PARAMETERS))
    kinds = next((kinds for kind, kinds in of if isinstance(value, kind)), ())
    return {kind: held for kind in kinds if (held := getattr(value, kind, None))}


def _set_hooks(made: Any, sent: tuple[Any, dict[str, Any]]) -> None:
    state, hooks = sent
    if state is not None:
        made.__setstate__(state)
    for kind, held in hooks.items():
        setattr(made, kind, held)


def _is_a_part(tensor: Tensor) -> bool:
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return plain and tensor.untyped_storage().nbytes() > tensor.nbytes


def _is_odd_module(value: Any) -> bool:
    """Whether this is a module of a special class, which cloudpickle cannot send. With any function that uses
    `torch` and `.classes` of something else, cloudpickle also sends `torch.classes`."""
    if not isinstance(value, ModuleType) or type(value) is ModuleType:
        return False
    return sys.modules.get(value.__name__) is value


class _ObjectUnpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, meant: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._meant = meant

    def persistent_load(self, name: str) -> Any:
        meant = self._meant.get(name)
        if meant is None and name.startswith("hooks: "):
            return OrderedDict()  # there are none here any more
        return self._meant[name]


def _may_share(tensor: Tensor) -> bool:
    """Whether it is a plain tensor on the host, which may be a view of another one."""
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.numel() > 0
    odd = tensor.is_quantized or tensor.is_inference() or tensor.is_conj() or tensor.is_neg()
    return plain and tensor.is_leaf and not odd and not tensor.__dict__


def _viewed(
    memory: Tensor,
    dtype: torch.dtype,
    offset: int,
    shape: torch.Size,
    stride: tuple[int, ...],
    requires_grad: bool,
) -> Tensor:
    view = torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), offset, shape, stride)
    return view.requires_grad_(requires_grad)


def _with_attributes(optimizer: Optimizer) -> Any:
    """Reduce an optimizer for pickle, with the attributes of a subclass, which torch itself leaves out."""
    reduced: Any = optimizer.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if type(optimizer).__getstate__ is not Optimizer.__getstate__:  # its class says itself what it brings
        return reduced
    make, arguments, state, *rest = reduced
    own = {name: value for name, value in vars(optimizer).items() if name not in HIDDEN_OF_OPTIMIZERS}
    return make, arguments, {**own, **state}, *rest


def _without_workers(loader: DataLoader[Any]) -> Any:
    """Reduce a loader for pickle, without worker processes that wait for the next epoch: they stay here."""
    reduced: Any = loader.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    make, arguments, state, *rest = reduced
    return make, arguments, {**state, "_iterator": None}, *rest


def _rebuilt(
    tensor: Tensor, kind: type[nn.Parameter] | None, requires_grad: bool, where: torch.device | None
) -> Tensor:
    if where is not None:
        tensor = tensor.to(where)
    if kind is not None:
        return kind(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad) if requires_grad else tensor


class Having(Protocol):
    """An object that will have a learner."""

    learner: Any
    """The learner, or None until it is built."""


class Here:
    """Stands in for the learner that a step refers to: this process's own, once it exists."""

    def __init__(self, owner: Having) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self._owner.learner is None:
            raise AttributeError(name)
        return getattr(self._owner.learner, name)


def on_host(tree: Any) -> Any:
    """A copy of a nested value with all of its tensors on the host."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu")
    if isinstance(tree, Mapping):
        return {key: on_host(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [on_host(value) for value in tree]
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return tuple(on_host(value) for value in tree)
    return tree
