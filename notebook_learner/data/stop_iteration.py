"""A StopIteration that is not the loader's end: raised in a dataset or a collate, it would end the epoch
early, without a message.

Python ends an iterator by this exception, and one `next()` too many raises the same. Generators turn it into
an error. A DataLoader passes on what its dataset and its collate raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ..errors import DataError, a_kind
from .sampling import END

_MAKES_BATCHES: tuple[CodeType, ...] = (_MapDatasetFetcher.fetch.__code__, ExceptionWrapper.reraise.__code__)
"""The end of a map-style dataset comes from its sampler: one from these functions, here or in a worker, is an
error."""


def next_of(iterator: Iterator[Any]) -> Any:
    """Return the next batch, or END."""
    try:
        return next(iterator)
    except StopIteration as stop:
        return end_of(stop)


def end_of(stop: StopIteration) -> object:
    """Return END, if an iterator has come to its end.

    Raises:
        DataError: a dataset or a collate raised the exception.
    """
    trace = stop.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in _MAKES_BATCHES:
            raise _no_end("the dataset or its collate_fn") from stop
        trace = trace.tb_next
    return END


class Once:
    """An iterator that cannot be begun again. Python ends a generator that raises: what follows would look
    like the loader's end.

    >>> batches = Once(10 // each for each in (5, 0, 2))
    >>> next(batches)
    2
    >>> next(batches)
    Traceback (most recent call last):
    ZeroDivisionError: integer division or modulo by zero
    >>> next(batches)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    notebook_learner.errors.DataError: the loader, a generator, gave nothing more after its error ...
    """

    def __init__(self, inner: Iterator[Any]) -> None:
        self.inner = inner
        self._error = ""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self.inner)
        except StopIteration:
            if self._error:
                raise _lost(self.inner, self._error) from None
            raise
        except BaseException as error:
            self._error = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise
        self._error = ""
        return batch


@contextmanager
def collate_makes_no_end(loader: Any) -> Iterator[None]:
    """Inside, a new iterator has a collate whose StopIteration is an error: from an iterable dataset's
    worker, only the fact that it has ended comes back."""
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
    """A class, not a closure: spawned workers get it by pickle."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, samples: Any) -> Any:
        try:
            return self.function(samples)
        except StopIteration as stop:
            raise _no_end("collate_fn") from stop


def _lost(iterator: Iterator[Any], error: str) -> DataError:
    return DataError(
        f"the loader, {a_kind(iterator)}, gave nothing more after its error ({error}): Python ends a "
        "generator that raises, so the rest of the epoch is lost. Give fit(...) a new loader, and training "
        "goes on at this place. One that can be walked again (a list, a DataLoader, an object whose __iter__ "
        "starts anew) loses nothing"
    )


def _no_end(where: str) -> DataError:
    return DataError(
        f"{where} raised StopIteration while a batch was made; Python takes that for the end of the loader, "
        "and the rest of the epoch would be left out. Look for a next(...) in it: give that a second "
        "argument, next(iterator, None), or raise another error"
    )
