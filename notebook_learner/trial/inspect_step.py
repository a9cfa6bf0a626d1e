"""Looking at a step of this learner, and leaving it as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch

from ..data.batch import move
from ..data.rank_share import EMPTY
from ..data.sampling import END
from ..errors import DataError, StateError
from ..inspection import Inspection, look
from ..run.replica import Replica
from ..run.step_undo import aside
from ..step.step import TrainingStep

_QUICK, _FIRST = 0.05, 0.5
"""Seconds that a step may take to be timed a second time; and before training has taken any."""


def inspect_step(replica: Replica, batch: Any, tokenizer: Any, loss: Callable[..., Any] | None) -> Inspection:
    """Run the training step on a batch under observation.

    Args:
        replica: that stands at a boundary.
        batch: a batch; None for the one at hand, "next" for the one to come.
        tokenizer: to show texts with.
        loss: to ask for the losses of single samples.

    Raises:
        StateError: a rank has no sample of that batch, or cannot know the one to come.
    """
    loop, update = replica.loop, replica.loop.update
    step = loop.passes["train"].step
    assert isinstance(step, TrainingStep)
    replica.settle()
    with replica.rng.lent(), loop.modes.kept(), _uncollected():
        loop.modes.enter("train")
        times: dict[str, float] = {}
        if (isinstance(batch, str) and batch == "next") or (batch is None and loop.batch is None):
            batch = _next(replica, times)
        if batch is EMPTY or (batch is None and loop.batch is EMPTY):
            raise StateError("this rank has no sample of that batch, which is smaller than there are ranks")
        there = move(loop.batch if batch is None else batch, step.device)
        with aside(loop, replica.parts) as put_back:
            parts = _timed(replica, step, there)
            put_back()
            # The first time pays for what is made once.
            if sum(parts.values()) < (_FIRST if loop.batch is None else _QUICK):
                parts = _timed(replica, step, there)
                put_back()
            times |= parts
            return look(
                there,
                lambda: step.without_update(there, True),
                update.model,
                update.optimizer,
                apply=update.optimizer.step,
                loss_fn=loss,
                tokenizer=tokenizer,
                place=str(replica.shown_position),
                times=times,
            )


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for objects in circles. A look at thousands of layers makes so many objects that Python walks
    through all that a kernel holds, which took a third of its time. It lasts a few steps."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def _next(replica: Replica, times: dict[str, float]) -> Any:
    """The batch to come, without taking it."""
    loop = replica.loop
    cursor = loop.passes["train"].cursor
    if not cursor.walks_again:
        raise StateError(
            "the batch to come can only be looked at where the loader can be walked again; take a step "
            "first, or give a batch: inspect(batch)"
        )
    inside = loop.split == "train" and loop.done and loop.position.step != loop.position.total
    with aside(loop, replica.parts, data=True):
        if not inside:  # the next training batch is the first of an epoch
            cursor.begin(loop.epoch if loop.split == "train" and not loop.done else loop.epoch + 1)
        started = perf_counter()
        batch = cursor.fetch_one()
        times["data"] = perf_counter() - started
    if batch is END:
        raise DataError("the train loader has no batch to look at")
    return batch


def _timed(replica: Replica, step: TrainingStep, batch: Any) -> dict[str, float]:
    """The parts of one step, with nobody looking; what it changes is the caller's to put back."""
    update, marks = replica.loop.update, list[float]()

    def mark() -> float:
        if step.device.type == "cuda":
            torch.cuda.synchronize(step.device)
        return perf_counter()

    try:
        started = mark()
        step.without_update(batch, True, between=lambda: marks.append(mark()))
        backward = mark()
        update.optimizer.step()
        ended = mark()
    except Exception:  # the look itself will tell
        return {}
    return {"forward": marks[0] - started, "backward": backward - marks[0], "optimizer": ended - backward}
