"""Takes the same steps twice, and compares everything that came of them, to the bit."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import a_kind
from ..event.position import Position
from ..run.bounds import Steps
from ..run.compared import Difference
from ..run.replica import Replica
from ..state.state import written
from .excursion import Excursion, excursion
from .footprint import Footprint, all_of, first_difference, left_by, named_by_path, orders_seen, outputs_seen

_LARGE = (
    "it was taken to be read only, as it is large, and the steps have changed it. Unless it is a table, it "
    "is kept from now on"
)


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
    with orders_seen(replica) as orders:
        for _ in range(steps):
            if replica.loop.finished:
                break
            trip.walk(Steps(1))
            found.append(Footprint(str(replica.loop.position), left_by(replica, orders)))
    return found


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


# Why it differs --------------------------------------------------------------------------------------


def _cause(
    replica: Replica, trip: Excursion, number: int, first: Sequence[Footprint], second: Sequence[Footprint]
) -> str:
    """What made a step leave something else, when everything before it was the same."""
    _, name = first_difference(first, second) or (0, "")
    if name == "the data's order" or name.startswith("batch"):
        return cause_of(replica, name)
    ones, others = (_outputs(replica, trip, number) for _ in range(2))
    op = _op(trip, number)
    for (module, kind, given, made), (_, _, given_then, made_then) in zip(ones, others, strict=False):
        if given == given_then and made != made_then:
            if op:
                return f"{op} in {module} ({kind}) {_told(replica, trip, number)}"
            return (
                f"{module} ({kind}) gives another output for the same input: an operation in it is not "
                "deterministic, or uses a value that is not in the state"
            )
    if name in dict(named_by_path(written(replica.carried.capture())["objects"])):
        return (
            "batch, weights and loss are the same, so it is made of something outside of the training, like "
            "the clock"
        )
    if op:
        where = "the loss" if name == "the loss" else "the backward pass or the optimizer"
        return f"{op} in {where} {_told(replica, trip, number)}"
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


_UNWRITTEN, _DRAWS = ("empty", "new_empty", "resize"), "random "
"""Operations that give memory as they find it, and those that draw."""


class OpsSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, each operation is noted, in the backward pass and the optimizer, too: its name, and checksums
    of what it was given and what it made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[tuple[str, str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = all_of([args, kwargs])
        made = func(*args, **(kwargs or {}))
        draws = _DRAWS if torch.Tag.nondeterministic_seeded in func.tags else ""
        self.found.append((draws + func.overloadpacket.__name__, given, all_of([made, args])))
        return made


def _op(trip: Excursion, number: int) -> str:
    """The operation of a step that is not deterministic; empty if none is found."""
    seen = []
    with suppress(Exception):  # some code, as that of compiled models, cannot be watched
        for _ in range(2):
            _stand_before(trip, number)
            with OpsSeen() as ops:
                trip.walk(Steps(1))
            seen.append(ops.found)
    for one, other in zip(*seen, strict=False) if len(seen) == 2 else ():
        if one[0] != other[0]:
            break
        if one[1] == other[1] and one[2] != other[2] and not one[0].startswith(_UNWRITTEN):
            return "" if one[0].startswith(_DRAWS) else one[0]
    return ""


def _told(replica: Replica, trip: Excursion, number: int) -> str:
    """What is said of an operation that is not deterministic."""
    setting, other = "torch.use_deterministic_algorithms(True)", "put another operation in its place"
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            same = _stepped(replica, trip, number) == _stepped(replica, trip, number)
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
    told = " ".join(str(each.message) for each in caught)
    without = re.findall(r"(\S+) does not have a deterministic implementation", told)
    if "CUBLAS_WORKSPACE_CONFIG" in told:
        said = (
            f"{setting} makes it so, with CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment from the start"
        )
    elif without:
        said = f"torch has no deterministic way for {', '.join(dict.fromkeys(without))}: {other}"
    else:
        said = (
            f"with {setting} the step gives the same bits again"
            if same
            else f"{setting} does not help: {other}"
        )
    return f"is not deterministic: it gives other bits for the same input; {said}"


def _stepped(replica: Replica, trip: Excursion, number: int) -> Mapping[str, str]:
    """Take a step, and return what it left."""
    _stand_before(trip, number)
    trip.walk(Steps(1))
    return left_by(replica, [])


def _outputs(replica: Replica, trip: Excursion, number: int) -> list[tuple[str, str, str, str]]:
    """Each call of a module in a step, with checksums of what it was given and what it made."""
    _stand_before(trip, number)
    with outputs_seen(replica) as found:
        trip.walk(Steps(1))
    return found


def _stand_before(trip: Excursion, number: int) -> None:
    trip.back()
    if number:
        trip.walk(Steps(number))
