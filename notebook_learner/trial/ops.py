"""Which of torch's operations gives other bits for the same input, and the setting that makes it exact."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .footprint import all_of

_UNWRITTEN = ("empty", "resize")
"""Operations that give memory as they find it."""
_WITHOUT = re.compile(r"(\S+) does not have a deterministic implementation")
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


class Op(NamedTuple):
    """One call of an operation: its name, and checksums of what it was given and what it made."""

    name: str
    given: str
    made: str
    draws: bool
    """Whether it draws random numbers, or gives memory that nothing was written to."""


class OpsSeen(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, each operation is noted, in the backward pass and the optimizer, too.

    >>> with OpsSeen() as seen:
    ...     total = torch.ones(2) + 1
    >>> [op.name for op in seen.found]
    ['ones', 'add']
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Op] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = all_of([args, dict(kwargs or {})])
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        draws = torch.Tag.nondeterministic_seeded in func.tags or any(each in name for each in _UNWRITTEN)
        self.found.append(Op(name, given, all_of([made, args]), draws))
        return made


def named_op(stand: Callable[[], Any], step: Callable[[], Any]) -> str:
    """The first operation of a step that gives other bits for the same input, when the step is taken twice;
    empty if there is none. `stand` goes to the place before it."""
    seen = []
    for _ in range(2):
        stand()
        with OpsSeen() as ops:
            step()
        seen.append(ops.found)
    for one, other in zip(*seen, strict=False):
        if one.name != other.name:
            return ""
        if one.given == other.given and one.made != other.made:
            return "" if one.draws else one.name
    return ""


def remedy(step: Callable[[], Any]) -> str:
    """What makes an operation deterministic: it is tried, with a step that returns what it left."""
    if (
        torch.are_deterministic_algorithms_enabled()
        and not torch.is_deterministic_algorithms_warn_only_enabled()
    ):
        return "torch.use_deterministic_algorithms(True) is set already: put another operation in its place"
    with _deterministic() as told:
        same = step() == step()
    if any(_WORKSPACE in each for each in told):
        return (
            f"torch.use_deterministic_algorithms(True) makes it so, with {_WORKSPACE}=:4096:8 in the "
            "environment before the kernel starts"
        )
    without = [found[1] for each in told if (found := _WITHOUT.match(each))]
    if without:
        names = ", ".join(dict.fromkeys(without))
        return f"torch has no deterministic way for {names}: put another operation in its place"
    if same:
        return "with torch.use_deterministic_algorithms(True) the step gives the same bits again"
    return "torch.use_deterministic_algorithms(True) does not make it so: put another operation in its place"


@contextmanager
def _deterministic() -> Iterator[list[str]]:
    """Inside, torch takes deterministic ways where it has them, and warns where it has none."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield told
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            told += [str(each.message) for each in caught]
