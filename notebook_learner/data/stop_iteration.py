"""A StopIteration that is no end: out of a dataset or a collate, it would end the epoch early without a word.

Python tells an iterator's end by that exception, and what a `next()` too many raises looks the same.
Generators make an error of it; a DataLoader passes on what its dataset and its collate raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ..errors import DataError
from .sampling import END

_MAKES_BATCHES: tuple[CodeType, ...] = (_MapDatasetFetcher.fetch.__code__, ExceptionWrapper.reraise.__code__)
"""A map-style dataset's end is that of its sampler: what comes out of these, here or in a worker, is none."""


def next_of(iterator: Iterator[Any]) -> Any:
    """The next batch, or END."""
    try:
        return next(iterator)
    except StopIteration as stop:
        return end_of(stop)


def end_of(stop: StopIteration) -> object:
    """END, where an iterator has come to its end.

    Raises:
        DataError: it has not: a dataset or a collate raised this.
    """
    trace = stop.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in _MAKES_BATCHES:
            raise _no_end("the dataset or its collate_fn") from stop
        trace = trace.tb_next
    return END


@contextmanager
def collate_makes_no_end(loader: Any) -> Iterator[None]:
    """Iterators that are begun meanwhile have a collate whose StopIteration is an error: of an iterable
    dataset's worker nothing else comes back than that it has ended."""
    if not isinstance(loader, DataLoader):
        yield
        return
    before = loader.collate_fn
    loader.collate_fn = _Collate(before)
    try:
        yield
    finally:
        loader.collate_fn = before


class _Collate:
    """A class, and no closure: workers that are spawned get it by pickle."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, samples: Any) -> Any:
        try:
            return self.function(samples)
        except StopIteration as stop:
            raise _no_end("collate_fn") from stop


def _no_end(where: str) -> DataError:
    return DataError(
        f"{where} raised StopIteration while a batch was made; Python takes that for the end of the loader, "
        "and the rest of the epoch would be left out. Look for a next(...) in it: give that a second "
        "argument, next(iterator, None), or raise another error"
    )
