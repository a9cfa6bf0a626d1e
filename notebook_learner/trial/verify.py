"""Takes the same steps twice, and compares everything that came of them, to the bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from time import time
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from ..data.sampling import SkippingSampler
from ..errors import a_kind
from ..event.position import Position
from ..run.bounds import Steps
from ..run.compared import Difference
from ..run.rank_protocol import OWN
from ..run.replica import Replica
from ..state.state import written
from ..store.tensors import digest_of_tensor
from .excursion import Excursion, excursion

Prints = Mapping[str, str]
"""What a step left: the name of each value, and a checksum of its bytes."""

_LARGE = (
    "it was taken to be read only, as it is large, and the steps have changed it. Unless it is a table, it "
    "is kept from now on"
)
_LAST = ("rng", "loop", "window", "scheduler", "scaler", "early_stopping", "ema")
"""Parts that only say what the others have said already."""


class Footprint(NamedTuple):
    """A step, and what it left."""

    place: str
    found: Prints


@dataclass(frozen=True, slots=True, repr=False)
class Verification:
    """What `learner.verify()` found.

    >>> Verification(3, Position(1, "train", 4, total=9), None, None)
    exact: 3 steps from epoch 1, train, step 4 of 9 gave the same bits again, here and in a new process
    """

    steps: int
    start: Position
    here: Difference | None
    """What differed when the steps were taken again in this process."""
    elsewhere: Difference | None
    """What differed when they were taken from a checkpoint in a new process."""
    untried: str = ""
    """Why no new process took them, if none did."""

    @property
    def exact(self) -> bool:
        """Whether everything was equal to the bit."""
        return self.here is None and self.elsewhere is None

    @property
    def differs(self) -> Difference | None:
        """The first difference, or None."""
        return self.here or self.elsewhere

    def __str__(self) -> str:
        count = f"{self.steps:,} step" + ("" if self.steps == 1 else "s")
        if self.here is not None:
            return f"not exact: {self.here}"
        if self.elsewhere is not None:
            return f"exact here, and not from a checkpoint in a new process: {self.elsewhere}"
        where = f"here; {self.untried}" if self.untried else "here and in a new process"
        return f"exact: {count} from {self.start} gave the same bits again, {where}"

    __repr__ = __str__


class Verified(NamedTuple):
    """What `verify` said last, for the panel."""

    text: str
    exact: bool
    at: float
    """When, in seconds since 1970."""
    exact_at: float | None
    """When it was exact for the last time."""


def noted(found: Verification, before: Verified | None) -> Verified:
    """What `verify` says now, after what it said before."""
    now = time()
    exact_at = now if found.exact else None if before is None else before.exact_at
    return Verified(str(found), found.exact, now, exact_at)


def verify(replica: Replica, steps: int) -> tuple[list[Footprint], Difference | None]:
    """Take steps, go back, take them again, and go back. Return what they left, and the first difference."""
    replica.carried.compare_large(at_once=True)
    with excursion(replica, what="verify()") as trip:
        first = footprints(replica, trip, steps)
        if changed := replica.carried.compare_large(at_once=True):
            return first, Difference(first[-1].place, changed[0], _LARGE)
        trip.back()
        second = footprints(replica, trip, len(first))
        found = first_difference(first, second)
        if found is None:
            return first, None
        number, name = found
        return first, Difference(first[number].place, name, _cause(replica, trip, number, first, second))


def footprints(replica: Replica, trip: Excursion, steps: int) -> list[Footprint]:
    """Take steps one by one, and note what each of them left."""
    found: list[Footprint] = []
    with _orders_seen(replica) as orders:
        for _ in range(steps):
            if replica.loop.finished:
                break
            trip.walk(Steps(1))
            found.append(Footprint(str(replica.loop.position), _left_by(replica, orders)))
    return found


def first_difference(ones: Sequence[Footprint], others: Sequence[Footprint]) -> tuple[int, str] | None:
    """The number of the first step that left something else, and what that is."""
    for number, (one, other) in enumerate(zip(ones, others, strict=False)):
        for name in dict.fromkeys([*one.found, *other.found]):
            if one.found.get(name) != other.found.get(name):
                return number, name
    return (min(len(ones), len(others)), "the number of steps") if len(ones) != len(others) else None


def cause_of(replica: Replica, name: str) -> str:
    """Why a value differs, from its name alone."""
    loader = replica.loop.passes["train"].cursor.loader
    if name == "the data's order":
        outer = getattr(loader, "batch_sampler", None)
        sampler = getattr(outer, "sampler", outer)
        return (
            f"{a_kind(sampler)} gives another order each time: it draws from, or "
            "reads, something that is not in the state"
        )
    if name.startswith("batch"):
        data = getattr(loader, "dataset", loader)
        return f"the data ({a_kind(data)}) gives another batch in the same place"
    return "a step uses a value that is not in the state"


# What a step leaves ----------------------------------------------------------------------------------


@contextmanager
def _orders_seen(replica: Replica) -> Iterator[list[list[str]]]:
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


def _left_by(replica: Replica, orders: list[list[str]]) -> dict[str, str]:
    loop = replica.loop
    found = {"the data's order": _digest(repr(orders).encode())} if orders else {}
    found |= dict(_named(loop.batch, "batch"))
    found |= _of_output(loop.output)
    replica.carried.tidy()
    parts = replica.capture().parts
    for name in sorted(parts, key=lambda each: (each in _LAST, not each.startswith("m"))):
        if name == "carried":
            found |= dict(_named_by_path(written(parts[name])["objects"]))
        elif name == OWN:
            for rank, own in enumerate(parts[name]["each"][1:], 1):
                reached = own.get("carried", {"objects": []})["objects"]  # not in files of earlier versions
                theirs = {**_of_rank(own), **dict(_named_by_path(reached))}
                found |= {f"rank {rank}: {said}": print_ for said, print_ in theirs.items()}
        else:
            part = parts[name]
            if name.startswith("data "):  # what steps reach is compared by its names, above
                part = {key: value for key, value in part.items() if key != "began"}
            found |= dict(_named(part, name))
    return found


def state_print(replica: Replica) -> Prints:
    """The checksum of each value of the state that the run stands in."""
    batch = replica.loop.batch
    replica.loop.batch = replica.loop.output = None  # they are of the step before, and of no state
    try:
        return _left_by(replica, [])
    finally:
        replica.loop.batch = batch


def _of_rank(own: Mapping[str, Any]) -> dict[str, str]:
    """The rest of what is a rank's own."""
    return dict(_named({key: own[key] for key in ("rng", "window", "streams")}, "its own"))


def _named_by_path(objects: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """What steps reach, with the names by which the program brings it. An object that a step made has no such
    name: it is told where it is referred to."""

    def told(value: Any, above: tuple[int, ...]) -> Any:
        if isinstance(value, list) and value[:1] == ["#"]:
            path, *_, taken = objects[value[1]]
            if path is not None or value[1] in above:
                return path or "itself"
            return told(taken, (*above, value[1]))
        return [told(each, above) for each in value] if isinstance(value, list) else value

    for path, said, kind, _, taken in objects:
        if path is None:
            continue
        value, name = told(taken, ()), said.replace("=", "")
        if kind in ("module", "object", "optimizer"):  # a copy may have its attributes in another order
            for attribute, each in zip(*value, strict=True):
                yield from _named(each, f"{name}.{attribute[-1]}")
        else:
            yield from _named(value, name)


def _of_output(output: Any) -> dict[str, str]:
    loss = output if isinstance(output, Tensor) else getattr(output, "loss", None)
    return dict(_named(loss, "the loss")) if isinstance(loss, Tensor) else {}


def _named(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Each tensor, array and plain value in a nested value, with its name and the checksum of its bytes."""
    if isinstance(value, Tensor):
        yield name, digest_of_tensor(value)
    elif isinstance(value, np.ndarray):
        yield name, _digest(value.tobytes() + str((value.dtype, value.shape)).encode())
    elif isinstance(value, Mapping):
        for key, each in value.items():
            said = str(key) if name == "model" or name.endswith(".tensors") else f"{name}.{key}"
            yield from _named(each, said if key != "tensors" else name)
    elif isinstance(value, (list, tuple)):
        if all(each is None or type(each) in (int, float, bool, str) for each in value):
            yield name, _digest(repr(value).encode())
        else:
            for number, each in enumerate(value):
                yield from _named(each, f"{name}[{number}]")
    elif value is None or isinstance(value, (int, float, bool, str, bytes, complex)):
        yield name, _digest(repr(value).encode())


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


# Why it differs --------------------------------------------------------------------------------------


def _cause(
    replica: Replica, trip: Excursion, number: int, first: Sequence[Footprint], second: Sequence[Footprint]
) -> str:
    """What made a step leave something else, when everything before it was the same."""
    _, name = first_difference(first, second) or (0, "")
    if name == "the data's order" or name.startswith("batch"):
        return cause_of(replica, name)
    ones, others = (_outputs(replica, trip, number) for _ in range(2))
    for (module, kind, given, made), (_, _, given_then, made_then) in zip(ones, others, strict=False):
        if given == given_then and made != made_then:
            return (
                f"{module} ({kind}) gives another output for the same input: an operation in it is not "
                "deterministic, or uses a value that is not in the state"
            )
    if name in dict(_named_by_path(written(replica.carried.capture())["objects"])):
        return (
            "batch, weights and loss are the same, so it is made of something outside of the training, like "
            "the clock"
        )
    if name == "the loss":
        return (
            "batch, weights and the outputs of all modules are the same, so the step uses a value that is "
            f"not in the state{_names_left(replica)}"
        )
    return (
        "batch and loss are the same, so the backward pass or the optimizer is not deterministic, or the "
        f"step uses a value that is not in the state{_names_left(replica)}"
    )


def _names_left(replica: Replica) -> str:
    left = replica.carried.left_names()
    return f" ({', '.join(left)})" if left else "; .carry(name=...) on the builder puts one in"


def _outputs(replica: Replica, trip: Excursion, number: int) -> list[tuple[str, str, str, str]]:
    """Each call of a module in a step, with checksums of what it was given and what it made."""
    names = {id(module): name for name, module in replica.loop.update.model.named_modules()}
    found: list[tuple[str, str, str, str]] = []

    def note(module: Any, given: Any, made: Any) -> None:
        if id(module) in names:
            name = names[id(module)] or "the model"
            found.append((name, type(module).__name__, _all_of(given), _all_of(made)))

    trip.back()
    if number:
        trip.walk(Steps(number))
    handle = register_module_forward_hook(note)
    try:
        trip.walk(Steps(1))
    finally:
        handle.remove()
    return found


def _all_of(value: Any) -> str:
    return _digest(repr(list(_named(value, ""))).encode())
