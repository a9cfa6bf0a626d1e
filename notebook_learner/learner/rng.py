"""The random generators a step can draw from, captured and put back as one value."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import StateError

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class HostRng:
    """Python's, NumPy's and torch's generators on the CPU. Taking one costs about 35 us."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Tensor

    def plain(self) -> dict[str, Any]:
        """As a dict of what a checkpoint can hold; Python's 625 numbers as one array."""
        version, numbers, gauss = self.python
        # Through an array of Python's it takes a third of the time.
        python = (version, np.frombuffer(array("I", numbers), np.uint32), gauss)
        return {"python": python, "numpy": self.numpy, "torch": self.torch}

    @staticmethod
    def of(state: Mapping[str, Any]) -> HostRng:
        """From `plain()`."""
        version, numbers, gauss = state["python"]
        return HostRng((version, tuple(numbers.tolist()), gauss), state["numpy"], state["torch"])


@dataclass(frozen=True, slots=True)
class Rng:
    """All generators: the host's, and each accelerator's that is in use."""

    host: HostRng
    cuda: tuple[Tensor, ...] = ()
    mps: Tensor | None = None

    def plain(self) -> dict[str, Any]:
        """As a dict of what a checkpoint can hold."""
        return {"host": self.host.plain(), "cuda": self.cuda, "mps": self.mps}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Rng:
        """From `plain()`."""
        return Rng(HostRng.of(state["host"]), tuple(state["cuda"]), state["mps"])


def capture_host() -> HostRng:
    """The CPU generators as they stand."""
    return HostRng(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())


def restore_host(state: HostRng) -> None:
    """Put the CPU generators back."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    torch.set_rng_state(state.torch)


def capture_rng() -> Rng:
    """Every generator as it stands. An accelerator that nobody touched is left asleep."""
    cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    return Rng(capture_host(), cuda, mps)


def restore_rng(state: Rng) -> None:
    """Put every generator back."""
    restore_host(state.host)
    if state.cuda:
        torch.cuda.set_rng_state_all(list(state.cuda))
    if state.mps is not None:
        torch.mps.set_rng_state(state.mps)


def check_rng(state: Mapping[str, Any], what: str) -> None:
    """Raise a StateError where a state from a file is none that the generators would take."""
    try:
        check_host(Rng.of(state).host)
    except Exception as refused:
        raise StateError(f"the {what} of this state is no state of random generators: {refused}") from refused


def check_host(state: HostRng) -> None:
    """Try it on generators that nobody uses."""
    random.Random().setstate(state.python)
    np.random.RandomState().set_state(state.numpy)
    torch.Generator().set_state(state.torch)


def mix(*numbers: int) -> int:
    """A well spread 64-bit number that depends on all the given ones (splitmix64's finaliser).

    >>> mix(1, 2) != mix(2, 1)
    True
    """
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def seed_host(seed: int) -> None:
    """Seed the CPU generators: 6 us, so it can be done per sample."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def seeded_rng(seed: int) -> Rng:
    """What all generators look like right after seeding; the live ones are left as they are."""
    before = capture_rng()
    seed_host(seed)
    torch.manual_seed(seed)
    after = capture_rng()
    restore_rng(before)
    return after


@contextmanager
def host_rng_kept() -> Iterator[None]:
    """Whatever is drawn inside, the CPU generators come out as they went in."""
    before = capture_host()
    try:
        yield
    finally:
        restore_host(before)


def capture_generators(generators: Sequence[torch.Generator]) -> tuple[Tensor, ...]:
    """States of generators that belong to a loader or sampler."""
    return tuple(generator.get_state() for generator in generators)


def restore_generators(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    """Put them back."""
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
