"""Python's own iterators: where they are, and others that stand there."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .kinds import Kind, Part, same_values


class IteratorKind(Kind):
    """An iterator that says where it is. It cannot be moved, so a copy that stands there takes its place."""

    name = "iterator"

    def take(self, live: Any) -> Any:
        return iterator_at(stand_of(live))

    def same(self, live: Any, taken: Any) -> bool:
        return same_values(stand_of(live), stand_of(taken))

    def put(self, live: Any, taken: Any) -> None:
        pass  # its holders are given the copy

    def parts(self, live: Any, taken: Any) -> Iterable[Part]:
        return _in_stand(stand_of(taken))


def _in_stand(stand: Stand) -> Iterator[Part]:
    state: tuple[Any, ...] = stand.state if type(stand.state) is tuple else (stand.state,)
    for number, each in enumerate((*stand.arguments, *state)):
        if isinstance(each, Stand):
            yield from _in_stand(each)
        elif is_own_list(each, stand):
            yield from ((f".of[{number}]", item) for item in each)
        else:
            yield f".of[{number}]", each


def is_own_list(value: Any, stand: Stand) -> bool:
    """Whether it is the list of a `cycle`'s own, in which it collects what it has given."""
    return type(value) is list and stand.make is itertools.cycle


_ITERATORS = {
    *map(
        type,
        (
            iter([]),
            iter(()),
            iter(range(0)),
            iter(range(1 << 70)),
            iter(""),
            iter(b""),
            iter({}),
            iter(set()),
        ),
    ),
    *(type(iter(each)) for each in ({}.values(), {}.items())),  # type: ignore[var-annotated]
    type(reversed([])),
    *(enumerate, zip, map, filter, reversed),
}


def is_iterator(value: Any) -> bool:
    """Whether it is one of Python's own iterators."""
    return type(value) in _ITERATORS or type(value).__module__ == "itertools"


@contextmanager
def itertools_copied() -> Iterator[None]:
    """Inside, iterators of itertools are copied or pickled without a warning. From Python 3.12 on they warn
    that 3.14 takes this away."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Pickle, copy, and deepcopy support", DeprecationWarning)
        yield


class Stand(NamedTuple):
    """Where an iterator is: what one that stands there is made of."""

    make: Any
    arguments: tuple[Any, ...]
    state: Any = None


def stand_of(iterator: Any) -> Stand:
    """Say where an iterator is. Iterators in it are told in the same way."""
    with itertools_copied():
        make, arguments, *more = iterator.__reduce__()
    state = more[0] if more else None
    inner = tuple(stand_of(each) if is_iterator(each) else each for each in arguments)
    if type(state) is tuple:
        state = tuple(stand_of(each) if is_iterator(each) else each for each in state)
    return Stand(make, inner, state)


def iterator_at(stand: Stand) -> Any:
    """An iterator that stands there, over the same objects."""

    def made(value: Any) -> Any:
        if isinstance(value, Stand):
            return iterator_at(value)
        return list(value) if is_own_list(value, stand) else value

    iterator = stand.make(*map(made, stand.arguments))
    if stand.state is not None:
        state = tuple(map(made, stand.state)) if type(stand.state) is tuple else stand.state
        with itertools_copied():
            iterator.__setstate__(state)
    return iterator
