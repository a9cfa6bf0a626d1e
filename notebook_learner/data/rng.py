"""The random generators that a step can draw from, captured and put back as one value."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_uint32
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from ..errors import StateError

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class HostRng:
    """Python's, NumPy's and torch's generators on the CPU. A capture costs about 35 us."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Tensor

    def plain(self) -> dict[str, Any]:
        """Return a dict that a checkpoint can hold; Python's 625 numbers are one array."""
        version, numbers, gauss = self.python
        # With Python's array type in between, this takes a third of the time.
        python = (version, np.frombuffer(array("I", numbers), np.uint32), gauss)
        return {"python": python, "numpy": self.numpy, "torch": self.torch}

    @staticmethod
    def of(state: Mapping[str, Any]) -> HostRng:
        """Make it from `plain()`."""
        version, numbers, gauss = state["python"]
        return HostRng((version, tuple(numbers.tolist()), gauss), state["numpy"], state["torch"])


@dataclass(frozen=True, slots=True)
class Rng:
    """All generators: the host's, and each accelerator's that is in use."""

    host: HostRng
    cuda: tuple[Tensor, ...] = ()
    mps: Tensor | None = None

    def plain(self) -> dict[str, Any]:
        """Return a dict that a checkpoint can hold."""
        return {"host": self.host.plain(), "cuda": self.cuda, "mps": self.mps}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Rng:
        """Make it from `plain()`."""
        return Rng(HostRng.of(state["host"]), tuple(state["cuda"]), state["mps"])


def capture_host() -> HostRng:
    """Return the current state of the CPU generators."""
    return HostRng(random.getstate(), np.random.get_state(legacy=False), torch.get_rng_state())


def restore_host(state: HostRng) -> None:
    """Put the CPU generators back."""
    random.setstate(state.python)
    np.random.set_state(state.numpy)
    torch.set_rng_state(state.torch)


class HostMemory:
    """Captures the CPU generators and puts them back, many times, in a tenth of the time.

    NumPy takes 38 us for each, as it copies its 624 numbers one by one in Python. So they are compared and
    written in place, at the address that `BitGenerator.ctypes` gives. One normally distributed number, which
    waits for the next call, is not at that address. It is read separately, unless there was none and nothing
    has been drawn since.
    """

    def __init__(self) -> None:
        self._words = _numpy_words()
        self._known: dict[str, Any] | None = None
        self._known_words = b""

    def capture(self) -> HostRng:
        """Return the current state of the CPU generators."""
        return HostRng(random.getstate(), self._capture_numpy(), torch.get_rng_state())

    def restore(self, state: HostRng) -> None:
        """Put a captured state back."""
        random.setstate(state.python)
        torch.set_rng_state(state.torch)
        if self._words is None or state.numpy is not self._known or state.numpy["has_gauss"]:
            np.random.set_state(state.numpy)
        else:
            np.random.seed(0)  # now no number waits
            self._words[:] = np.frombuffer(self._known_words, np.uint32)

    def _capture_numpy(self) -> dict[str, Any]:
        words = b"" if self._words is None else self._words.tobytes()
        known = self._known
        if known is None or not words or words != self._known_words or known["has_gauss"]:
            self._known, self._known_words = np.random.get_state(legacy=False), words
        return self._known  # type: ignore[return-value]


def _numpy_words() -> Any:
    """The numbers of NumPy's global generator and how many of them are used up, in place; None for another
    generator, or another NumPy."""
    state = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        return None
    generator = np.random.mtrand._rand._bit_generator
    address = generator.ctypes.state_address
    words = np.ctypeslib.as_array((c_uint32 * 625).from_address(address))
    told = np.append(state["state"]["key"], np.uint32(state["state"]["pos"]))
    return words if np.array_equal(words, told) else None


def capture_rng() -> Rng:
    """Return the current state of every generator. An accelerator that was not used is not started."""
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
    """Raise a StateError if the generators would not accept a state from a file."""
    try:
        check_host(Rng.of(state).host)
    except Exception as refused:
        raise StateError(f"the {what} of this state is no state of random generators: {refused}") from refused


def check_host(state: HostRng) -> None:
    """Try the state on generators of its own, which no other code uses."""
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


def mix_each(base: int, first: int, count: int) -> list[int]:
    """`mix(base, number)` for consecutive numbers: 256 of them take a seventh of the time.

    >>> mix_each(7, 40, 2) == [mix(7, 40), mix(7, 41)]
    True
    """
    if count < 16:
        return [mix(base, number) for number in range(first, first + count)]
    state = np.arange(count, dtype=np.uint64)
    state += np.uint64((mix(base) + first + 0x9E3779B97F4A7C15) & _MASK)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numbers: list[int] = (state ^ (state >> np.uint64(31))).tolist()
    return numbers


def seed_host(seed: int) -> None:
    """Seed the CPU generators: 6 us."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


class Generator(ABC):
    """One of the global generators that take long to seed."""

    name: str

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seed the generator."""

    @abstractmethod
    def mark(self) -> None:
        """Give it a state that `marked` knows."""

    @abstractmethod
    def marked(self) -> bool:
        """Whether nothing was drawn from it since `mark`. This draws a hundred bits: other ones come after
        another state."""

    @abstractmethod
    def moved(self, before: HostRng) -> bool:
        """Whether the generator's state is another one."""


_MARK = 20_240_229
"""Any seed: what is drawn after it is not used."""


class _Python(Generator):
    name = "python"

    def __init__(self) -> None:
        start = random.Random(_MARK)
        self._start = start.getstate()
        self._first = start.getrandbits(128)

    def seed(self, seed: int) -> None:
        random.seed(seed)

    def mark(self) -> None:
        random.setstate(self._start)  # takes two thirds of the time of `seed`

    def marked(self) -> bool:
        return random.getrandbits(128) == self._first

    def moved(self, before: HostRng) -> bool:
        return random.getstate() != before.python


class _Numpy(Generator):
    name = "numpy"

    @cached_property
    def _first(self) -> tuple[float, float]:
        """Made when it is first needed, as NumPy's generators take time to load."""
        start = np.random.RandomState(_MARK)
        return start.random_sample(), start.random_sample()

    def seed(self, seed: int) -> None:
        np.random.seed(seed & 0xFFFFFFFF)

    def mark(self) -> None:
        np.random.seed(_MARK)

    def marked(self) -> bool:
        return (np.random.random_sample(), np.random.random_sample()) == self._first

    def moved(self, before: HostRng) -> bool:
        now, then = np.random.get_state(legacy=False), before.numpy
        return now["state"]["pos"] != then["state"]["pos"] or not np.array_equal(
            now["state"]["key"], then["state"]["key"]
        )


SLOW: Sequence[Generator] = (_Python(), _Numpy())


def seeded_rng(seed: int) -> Rng:
    """The state of all generators right after seeding; the live ones do not change."""
    before = capture_rng()
    seed_host(seed)
    torch.manual_seed(seed)
    after = capture_rng()
    restore_rng(before)
    return after


@contextmanager
def host_rng_kept() -> Iterator[None]:
    """Inside, anything may be drawn; afterwards the CPU generators are as they were before."""
    before = capture_host()
    try:
        yield
    finally:
        restore_host(before)


def capture_generators(generators: Sequence[torch.Generator]) -> tuple[Tensor, ...]:
    """States of generators that belong to a loader or sampler."""
    return tuple(generator.get_state() for generator in generators)


def restore_generators(generators: Sequence[torch.Generator], states: Sequence[Tensor]) -> None:
    """Put captured states back."""
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


WATCHED = 64
"""The number of fetches of an epoch that are watched: it takes 30 us each."""
_NAMES = ("Python's random", "NumPy's", "torch's")


class SharedDraws:
    """Watches what the data and the steps draw, and tells once if both draw from one generator.

    >>> told = []
    >>> watch = SharedDraws("the train data (Shuffled)", told.append)
    >>> for _ in watch.around(iter([random.random() for _ in range(3)])):
    ...     _ = random.random()
    >>> told
    []
    >>> for _ in watch.around(random.random() for _ in range(3)):
    ...     _ = random.random()
    >>> "draws by turns with the steps" in told[0]
    True
    """

    def __init__(self, what: str, tell: Callable[[str], None]) -> None:
        self._what, self._tell = what, tell
        self.returns = "a rewind, what_if, a resume"
        """The returns after which it may differ."""
        self._told = False
        self._left: list[int] | None = None
        """The generators' marks after the last fetch."""
        self._of_steps: set[str] = set()
        self._of_data: set[str] = set()
        self._count = 0

    def around(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The same values; the first ones are watched."""
        self._left, self._count = None, 0
        return iterator if self._told else _Watched(iterator, self)

    def fetched(self, fetch: Callable[[], Any]) -> Any:
        """Fetch a value, and note who has drawn."""
        if self._told or self._count >= WATCHED:
            return fetch()
        self._count += 1
        before = _marks()
        if self._left is not None:
            self._of_steps |= _moved(self._left, before)
        value = fetch()
        self._left = _marks()
        if self._count > 1:  # at the first one, an order that is drawn at once is drawn
            self._of_data |= _moved(before, self._left)
        if shared := self._of_data & self._of_steps:
            self._told = True
            self._tell(
                f"not in the state: what {self._what} has drawn so far: it draws by turns with the steps "
                f"from {' and '.join(sorted(shared))} global generator, so after a return into an epoch "
                f"({self.returns}) it may give another order. .seed(n) on the builder is exact"
            )
        return value


class _Watched:
    def __init__(self, inner: Iterator[Any], watch: SharedDraws) -> None:
        self.inner, self._watch = inner, watch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._watch.fetched(lambda: next(self.inner))


def data_of(split: str, loader: Any) -> str:
    """What decides on the order, in words: a sampler, an iterable dataset, or the loader itself."""
    dataset = getattr(loader, "dataset", loader)
    part = dataset if isinstance(dataset, IterableDataset) else getattr(loader, "sampler", loader)
    return f"the {split} data ({type(part).__name__})"


def _marks() -> list[int]:
    """One number for the state of each generator."""
    numpy: Any = np.random.get_state(legacy=False)
    inner = numpy["state"]
    return [
        hash(random.getstate()),
        hash((inner["key"].tobytes(), inner["pos"])),
        hash(torch.default_generator.get_state().numpy().tobytes()),
    ]


def _moved(before: list[int], after: list[int]) -> set[str]:
    return {name for name, one, other in zip(_NAMES, before, after, strict=True) if one != other}
