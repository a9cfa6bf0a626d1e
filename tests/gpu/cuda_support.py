"""Data for the tests on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

DEVICE = "cuda:0"


def batches(count: int, wrong: int | None = None) -> list[Any]:
    """So many batches on the host; the one with the number `wrong` has a NaN in it."""
    source = torch.Generator().manual_seed(0)
    made = [
        (torch.randn(32, 16, generator=source), torch.randint(0, 5, (32,), generator=source))
        for _ in range(count)
    ]
    if wrong is not None:
        made[wrong][0][3, 4] = float("nan")
    return made


def on_device(data: list[Any]) -> list[Any]:
    return [(x.to(DEVICE), y.to(DEVICE)) for x, y in data]


@contextmanager
def no_waits() -> Iterator[None]:
    """What waits for the device in here raises an error."""
    with warnings.catch_warnings():  # torch warns once, after it has set the mode, that it misses some waits
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def armed(learner: Any) -> Iterator[Any]:
    """In here the learner's breakpoints measure each step, as in a run. Gives what judges a block."""
    watch = learner._replica.watch
    with watch.during():
        watch.refresh()  # a run does this at its first boundary
        assert len(watch._series) > 0
        yield watch


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """In here the device has room for so many bytes more."""
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info(DEVICE)[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(DEVICE) + size) / total, DEVICE)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)


@contextmanager
def counted_waits() -> Iterator[list[str]]:
    """Gives a list that has, at the end, a line for each time that the device was waited for in here."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found += [
        f"{each.filename}:{each.lineno}" for each in told if "called a synchronizing" in str(each.message)
    ]
