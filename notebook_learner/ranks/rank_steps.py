"""How a rank takes the steps of a block; rank 0 does it like the others."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from torch import nn

from ..data.rank_share import Idle
from ..metric import MetricGroup
from ..metric.torch_metric import objects_kept
from ..run.control import Control
from ..run.rank_protocol import Hands
from ..step.step import TrainingStep, ValidationStep
from .reduction import Reducer
from .weight_parts import InParts

EMPTY = object()
"""In place of an output, for a step of which this rank has no sample."""
STEADY = Control()
"""A control that gets no requests: inside a block no rank stops alone."""


class RankClock:
    """Measures this rank's own time for a block of steps, without the time in which it waits for others.

    With that time all ranks take as long as the slowest one, so the slowest rank would not show.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._began = perf_counter() - reducer.waited

    def seconds(self) -> float:
        """This rank's own time since the clock was made."""
        return perf_counter() - self._reducer.waited - self._began


def from_rank_0(fetch: Callable[[], Any], reducer: Reducer) -> Callable[[], Any]:
    """A fetch that waits for rank 0: its time does not count as this rank's own."""

    def waited() -> Any:
        began = perf_counter()
        batch = fetch()
        reducer.waited += perf_counter() - began
        return batch

    return waited


def ranked(
    fetch: Callable[[], Any],
    step: TrainingStep | ValidationStep,
    metrics: MetricGroup,
    reducer: Reducer,
    model: nn.Module,
) -> Hands:
    """The functions with which a rank takes steps on its part of each batch, which may be empty."""
    buffers = list(model.buffers())
    train = step if isinstance(step, TrainingStep) else None
    divided = reducer if isinstance(reducer, InParts) else None

    def take(batch: Any, last: bool) -> Any:
        __tracebackhide__ = True
        if train is not None and buffers:
            reducer.share(buffers)  # like torch's DistributedDataParallel: rank 0's are used
        if divided is not None:
            with divided.step():
                output = idle(batch.batch, last) if isinstance(batch, Idle) else step(batch, last)
                if train is None:
                    divided.rest()
                return output
        return idle(batch.batch, last) if isinstance(batch, Idle) else step(batch, last)

    def idle(batch: Any, last: bool) -> Any:
        """Take part without a sample of the batch, with one of another rank."""
        __tracebackhide__ = True
        if train is None:
            if divided is not None:
                step(batch, last)
        elif divided is None and train.is_the_loops:
            train.without_samples(last)
        else:
            with objects_kept(model):
                train.in_step(batch, last)
        return EMPTY

    def collect(output: Any) -> None:
        if output is EMPTY:
            metrics.skip()
        else:
            metrics.collect(output)

    return Hands(fetch, take, collect, STEADY)


def share_for(loop: Any, reducer: Reducer) -> None:
    """At the beginning of a validation, give all ranks rank 0's buffers of the model that validates."""
    if loop.split == "valid":
        buffers_of_rank_0(loop, reducer)


def buffers_of_rank_0(loop: Any, reducer: Reducer) -> None:
    """Give the model that validates rank 0's buffers, on all ranks."""
    if buffers := list(loop.modes.validated.buffers()):
        reducer.share(buffers)
