"""The use of memory: bytes by kind, each storage counted once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .batch import tensors_in


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by kind. Tensors that share a storage, such as tied weights, count once.

    Attributes:
        activations: the most bytes that the forward pass keeps for the backward pass at one time.
        allocated: on CUDA, the bytes that torch's allocator now holds for tensors; else None.
        reserved: on CUDA, the bytes that it took from the device.
        peak: on CUDA, the most bytes that it ever held for tensors.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    batch: int
    allocated: int | None = None
    reserved: int | None = None
    peak: int | None = None

    @property
    def total(self) -> int:
        """The sum over all kinds."""
        kinds = (self.parameters, self.gradients, self.optimizer, self.buffers, self.activations, self.batch)
        return sum(kinds)


class Storages:
    """Bytes of tensors. A shared storage counts once: the bytes its tensors use, at most its size."""

    def __init__(self) -> None:
        self.total = 0
        """The bytes of all added tensors."""
        self._used: dict[object, int] = {}
        self._views: set[object] = set()

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's bytes, unless they are counted already."""
        try:
            for part in _parts(tensor):
                self._add(part)
        except (RuntimeError, NotImplementedError, ValueError):
            return  # a custom tensor class has no storage; a lazy parameter has none yet

    def _add(self, part: Tensor) -> None:
        storage = part.untyped_storage()
        place, size, whole = (part.device, storage.data_ptr() or id(storage)), part.nbytes, storage.nbytes()
        used = self._used.get(place, 0)
        if used < whole:
            view = (place, part.storage_offset(), part.shape, part.stride())
            if view not in self._views:
                self._views.add(view)
                self._used[place] = now = min(used + size, whole)
                self.total += now - used

    def of(self, tensors: Iterable[Tensor]) -> int:
        """Count tensors, and return by how much the total grew."""
        before = self.total
        for tensor in tensors:
            self.add(tensor)
        return self.total - before


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The plain tensors that hold a tensor's bytes."""
    if tensor.is_meta:
        return ()
    if tensor.layout is torch.strided:
        return (tensor,)
    tensor = tensor.detach()
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor.values(),)


class SavedTensors:
    """Counts the tensors that autograd keeps during the watch, except those that were counted before."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        self._storages = Storages()
        self._before = self._storages.of(known)

    @property
    def bytes(self) -> int:
        """The bytes kept, without parameters, buffers and the batch."""
        return self._storages.total - self._before

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count the tensors kept by the graphs made in the block."""
        with torch.autograd.graph.saved_tensors_hooks(self._keep, _taken):
            yield

    def _keep(self, tensor: Tensor) -> tuple[Tensor, int]:
        self._storages.add(tensor)
        # Not the tensor itself: it would hold its own graph, a cycle that is never freed.
        return tensor.detach(), tensor._version


def _taken(kept: tuple[Tensor, int]) -> Tensor:
    tensor, version = kept
    if tensor._version != version:  # autograd checks only tensors that it keeps itself, not a hook's
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"a tensor of shape {list(tensor.shape)} is at version {tensor._version}; expected {version}"
        )
    return tensor


def describe_memory(model: nn.Module, optimizer: Any, batch: Any, activations: int) -> Memory:
    """Return the present bytes by kind.

    >>> model = nn.Linear(3, 1)
    >>> describe_memory(model, None, torch.ones(2, 3), 0).parameters
    16
    """
    parameters = list(model.parameters())
    storages = Storages()
    return Memory(
        parameters=storages.of(parameters),
        buffers=storages.of(model.buffers()),
        gradients=storages.of(p.grad for p in parameters if p.grad is not None),
        optimizer=storages.of(tensors_of_optimizer(optimizer)),
        batch=storages.of(tensor for _, tensor in tensors_in(batch)),
        activations=activations,
        **_on_cuda(parameters),
    )


def tensors_of_optimizer(optimizer: Any) -> Iterator[Tensor]:
    """The tensors that an optimizer keeps for the parameters."""
    state = getattr(optimizer, "state", None)
    for held in state.values() if isinstance(state, Mapping) else ():
        for value in held.values() if isinstance(held, Mapping) else [held]:
            yield from [value] if isinstance(value, Tensor) else (tensor for _, tensor in tensors_in(value))


def _on_cuda(parameters: list[nn.Parameter]) -> dict[str, int]:
    devices = {parameter.device for parameter in parameters if parameter.device.type == "cuda"}
    if not devices:
        return {}
    readings = {
        "allocated": torch.cuda.memory_allocated,
        "reserved": torch.cuda.memory_reserved,
        "peak": torch.cuda.max_memory_allocated,
    }
    return {name: sum(read(device) for device in devices) for name, read in readings.items()}
