"""What a step leaves: each value by its name, with a checksum of its bytes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from ..data.sampling import SkippingSampler
from ..run.rank_protocol import OWN
from ..run.replica import Replica
from ..state.state import written
from ..store.tensors import digest_of_tensor

Prints = Mapping[str, str]
"""What a step left: the name of each value, and a checksum of its bytes."""

_NUMBER = re.compile(r"#[0-9]+$")
_LAST = ("rng", "loop", "window", "scheduler", "scaler", "early_stopping", "ema")
"""Parts that only say what the others have said already."""


class Footprint(NamedTuple):
    """A step, and what it left."""

    place: str
    found: Prints


def first_difference(ones: Sequence[Footprint], others: Sequence[Footprint]) -> tuple[int, str] | None:
    """The number of the first step that left something else, and what that is."""
    for number, (one, other) in enumerate(zip(ones, others, strict=False)):
        for name in dict.fromkeys([*one.found, *other.found]):
            if one.found.get(name) != other.found.get(name):
                return number, name
    return (min(len(ones), len(others)), "the number of steps") if len(ones) != len(others) else None


@contextmanager
def orders_seen(replica: Replica) -> Iterator[list[list[str]]]:
    """Inside, samplers note the indices that they give."""
    samplers = [
        sampler
        for each in replica.loop.passes.values()
        if isinstance(sampler := getattr(each.cursor.walk, "_sampler", None), SkippingSampler)
    ]
    orders: list[list[str]] = [[] for _ in samplers]
    for sampler, order in zip(samplers, orders, strict=True):
        sampler.seen = order
    try:
        yield orders
    finally:
        for sampler in samplers:
            sampler.seen = None


@contextmanager
def outputs_seen(replica: Replica) -> Iterator[list[tuple[str, str, str, str]]]:
    """Inside, each call of one of the model's modules is noted: its name, its class, and checksums of what it
    was given and what it made."""
    names = {id(module): name for name, module in replica.loop.update.model.named_modules()}
    found: list[tuple[str, str, str, str]] = []

    def note(module: Any, given: Any, made: Any) -> None:
        if id(module) in names:
            name = names[id(module)] or "the model"
            found.append((name, type(module).__name__, all_of(given), all_of(made)))

    handle = register_module_forward_hook(note)
    try:
        yield found
    finally:
        handle.remove()


def left_by(replica: Replica, orders: list[list[str]]) -> dict[str, str]:
    """What the step that was taken last left: order, batch, loss and state."""
    loop = replica.loop
    found = {"the data's order": digest(repr(orders).encode())} if orders else {}
    found |= dict(named(loop.batch, "batch"))
    found |= of_output(loop.output)
    replica.carried.tidy()
    parts = replica.capture().parts
    for name in sorted(parts, key=lambda each: (each in _LAST, not each.startswith("m"))):
        if name == "carried":
            found |= dict(named_by_path(written(parts[name])["objects"]))
        elif name == OWN:
            for rank, own in enumerate(parts[name]["each"][1:], 1):
                reached = own.get("carried", {"objects": []})["objects"]  # not in files of earlier versions
                theirs = {**_of_rank(own), **dict(named_by_path(reached))}
                found |= {f"rank {rank}: {said}": print_ for said, print_ in theirs.items()}
        else:
            part = parts[name]
            if name.startswith("data "):  # what steps reach is compared by its names, above
                part = {key: value for key, value in part.items() if key != "began"}
            found |= dict(named(part, name))
    return found


def state_print(replica: Replica) -> Prints:
    """The checksum of each value of the state that the run stands in."""
    batch = replica.loop.batch
    replica.loop.batch = replica.loop.output = None  # they are of the step before, and of no state
    try:
        return left_by(replica, [])
    finally:
        replica.loop.batch = batch


def _of_rank(own: Mapping[str, Any]) -> dict[str, str]:
    """The rest of what is a rank's own."""
    return dict(named({key: own[key] for key in ("rng", "window", "streams")}, "its own"))


def named_by_path(objects: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """What steps reach, with the names by which the program brings it. An object that a step made has no such
    name: it is told where it is referred to. A function that a step made gets a number after its name, which
    is a higher one when the step is taken again: here they count from one in each state."""
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: count(1))
    known: dict[str, str] = {}

    def renumbered(name: str) -> str:
        if name not in known:
            bare = _NUMBER.sub("", name)
            known[name] = f"{bare}#{next(numbers[bare])}"
        return known[name]

    def told(value: Any, above: tuple[int, ...]) -> Any:
        if isinstance(value, list) and value[:1] == ["#"]:
            path, *_, taken = objects[value[1]]
            if path is not None or value[1] in above:
                return path or "itself"
            return told(taken, (*above, value[1]))
        if isinstance(value, list) and value[:1] == ["@"]:
            return ["@", renumbered(value[1])]
        return [told(each, above) for each in value] if isinstance(value, list) else value

    for path, said, kind, _, taken in objects:
        if path is None:
            continue
        value, name = told(taken, ()), said.replace("=", "")
        if kind in ("module", "object", "optimizer"):  # a copy may have its attributes in another order
            for attribute, each in zip(*value, strict=True):
                yield from named(each, f"{name}.{attribute[-1]}")
        else:
            yield from named(value, name)


def of_output(output: Any) -> dict[str, str]:
    """The loss in what a step returned."""
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    return dict(named(loss, "the loss")) if isinstance(loss, Tensor) else {}


def named(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Each tensor, array and plain value in a nested value, with its name and the checksum of its bytes."""
    if isinstance(value, Tensor):
        yield name, digest_of_tensor(value)
    elif isinstance(value, np.ndarray):
        yield name, digest(value.tobytes() + str((value.dtype, value.shape)).encode())
    elif isinstance(value, Mapping):
        for key, each in value.items():
            said = str(key) if name == "model" or name.endswith(".tensors") else f"{name}.{key}"
            yield from named(each, said if key != "tensors" else name)
    elif isinstance(value, (list, tuple)):
        if all(each is None or type(each) in (int, float, bool, str) for each in value):
            yield name, digest(repr(value).encode())
        else:
            for number, each in enumerate(value):
                yield from named(each, f"{name}[{number}]")
    elif value is None or isinstance(value, (int, float, bool, str, bytes, complex)):
        yield name, digest(repr(value).encode())


def digest(data: bytes) -> str:
    """A short checksum."""
    return blake2b(data, digest_size=8).hexdigest()


def all_of(value: Any) -> str:
    """One checksum of everything in a nested value."""
    return digest(repr(list(named(value, ""))).encode())
