"""Finds data that draw by turns with the steps, from the same global random generator.

To come back into an epoch, a loader is opened again and skips to the position. What it draws on the way are
the numbers from the epoch's start, one after the other. In the straight run, steps (dropout, for example)
drew between them. A sampler or an iterable that keeps what it has drawn, as in a shuffle buffer, then gives
another order. With `.seed()` the data have a stream of their own, and come back exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

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
                "(a rewind, what_if, a resume) it may give another order. .seed(n) on the builder is exact"
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
