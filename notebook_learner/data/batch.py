"""A batch as the loop uses it: nested tensors to move, and a number of samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def move(batch: Any, device: torch.device, copied: Callable[[Tensor], Tensor] | None = None) -> Any:
    """The batch with every tensor on `device`; containers keep their type, tensors already there stay.

    An object with its own `.to` method (a tokenizer's BatchEncoding, a PackedSequence, a graph library's
    batch) moves itself, since it may know of a tensor that must stay. Copies from pinned memory do not block;
    other copies do, with any value of `non_blocking`. `copied` may copy the tensors in another way.

    >>> move({"x": [torch.zeros(2)], "name": "a"}, torch.device("meta"))["x"][0].device.type
    'meta'
    """
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True) if copied is None else copied(batch)
    if hasattr(batch, "to") and not isinstance(batch, type):
        return batch.to(device)
    return rebuilt(batch, lambda each: move(each, device, copied))


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container like this one, of its type, with what it holds changed; anything else as it is."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(change, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(change, value))
    if isinstance(value, Mapping):
        changed = {key: change(each) for key, each in value.items()}
        if not isinstance(value, MutableMapping):
            return type(value)(changed)  # type: ignore[call-arg]  # every read-only view takes a dict
        other: Any = copy.copy(value)  # a defaultdict keeps its default
        for key, each in changed.items():  # not every class has `update`
            other[key] = each
        return other
    return _with_fields(value, change) if is_record(value) else value


def _with_fields(value: Any, change: Callable[[Any], Any]) -> Any:
    # Not by its constructor: that would run __post_init__ again, and require arguments that are not fields.
    other = object.__new__(type(value))
    if hasattr(value, "__dict__"):
        vars(other).update(vars(value))
    for f in fields(value):
        object.__setattr__(other, f.name, change(getattr(value, f.name)))
    return other


def is_record(value: Any) -> bool:
    """Whether it is a dataclass's object."""
    return is_dataclass(value) and not isinstance(value, type)


def mapped(value: Any, change: Callable[[Any], Any], leaf: type = Tensor) -> Any:
    """The value with its tensors, or other leaves, changed. Containers are copied and keep their type, but
    mappings become dicts.

    >>> mapped({"x": [torch.ones(2)], "name": "a"}, lambda tensor: tensor.tolist())
    {'x': [[1.0, 1.0]], 'name': 'a'}
    """
    if isinstance(value, leaf):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(each, change, leaf) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(each, change, leaf) for each in value)
    if isinstance(value, Mapping):
        return {key: mapped(each, change, leaf) for key, each in value.items()}
    return _with_fields(value, lambda each: mapped(each, change, leaf)) if is_record(value) else value


def is_on(batch: Any, device: torch.device) -> bool:
    """Whether every tensor of the batch is on the device already, so that no move is needed."""
    if isinstance(batch, Tensor):
        return _same(batch.device, device)
    if hasattr(batch, "to"):
        return False  # only the object knows
    if isinstance(batch, Mapping):
        return all(is_on(value, device) for value in batch.values())
    if isinstance(batch, (list, tuple)):
        return all(is_on(value, device) for value in batch)
    if is_record(batch):
        return all(is_on(getattr(batch, f.name), device) for f in fields(batch))
    return True


def _same(one: torch.device, other: torch.device) -> bool:
    if one.type != other.type:
        return False
    return one.index == other.index or other.index is None or one.type == "cpu"


def count_samples(batch: Any) -> int:
    """The length of the first dimension of the first tensor found; 1 if there is no tensor.

    >>> count_samples((torch.zeros(32, 3), torch.zeros(32)))
    32
    """
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else 1
    if isinstance(batch, Mapping):
        children = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        children = list(batch)
    elif is_record(batch):
        children = [getattr(batch, f.name) for f in fields(batch)]
    else:
        return 1
    for child in children:
        if isinstance(child, (Tensor, Mapping, list, tuple)) or is_record(child):
            return count_samples(child)
    return len(children) or 1
