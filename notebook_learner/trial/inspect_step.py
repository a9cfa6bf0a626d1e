"""Looks at a step of this learner, and leaves the learner unchanged."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import OutOfMemoryError

from ..data.batch import move
from ..data.rank_share import Idle
from ..data.sampling import END
from ..errors import DataError, StateError
from ..inspection import Inspection, look
from ..run.failure import less_memory
from ..run.replica import Replica
from ..run.step_undo import aside
from ..run.unheard import unheard
from ..step.step import TrainingStep

_WHOLE = "a look takes its batch whole: give it a smaller one, inspect(batch)"
_QUICK, _FIRST = 0.05, 0.5
"""Seconds that a step may take to be timed a second time; the second number holds before the first step."""


def inspect_step(replica: Replica, batch: Any, tokenizer: Any, loss: Callable[..., Any] | None) -> Inspection:
    """Run the training step on a batch under observation.

    Args:
        replica: the replica, at a boundary.
        batch: a batch; None for the current one, "next" for the next one.
        tokenizer: turns tokens into texts to show.
        loss: gives the losses of single samples.

    Raises:
        StateError: a rank has no sample of that batch, or cannot know the next one.
    """
    loop, update = replica.loop, replica.loop.update
    step = loop.passes["train"].step
    assert isinstance(step, TrainingStep)
    replica.settle()
    with unheard(), replica.rng.lent(), loop.modes.kept(), _uncollected():
        loop.modes.enter("train")
        times: dict[str, float] = {}
        if (isinstance(batch, str) and batch == "next") or (batch is None and loop.batch is None):
            batch = _next(replica, times)
        if isinstance(loop.batch if batch is None else batch, Idle):
            raise StateError("this rank has no sample of that batch, which is smaller than there are ranks")
        there = move(loop.batch if batch is None else batch, step.device)
        with aside(loop, replica.parts) as put_back:
            parts = _timed(replica, step, there)
            put_back()
            # The first time also pays for what is made only once.
            if sum(parts.values()) < (_FIRST if loop.batch is None else _QUICK):
                parts = _timed(replica, step, there)
                put_back()
            times |= parts
            seen = look(
                there,
                lambda: step.without_update(there, True),
                update.model,
                update.optimizer,
                apply=None if update.drives else update.optimizer.step,
                drives=update.drives,
                loss_fn=loss,
                tokenizer=tokenizer,
                place=str(replica.shown_position),
                times=times,
            )
            if (seen.failed or "").startswith(OutOfMemoryError.__name__) and step.device.type != "cpu":
                told = less_memory(loop, there, "fit() needs less memory")
                seen = replace(seen, notes=(*seen.notes, told, _WHOLE))
            return seen


@contextmanager
def _uncollected() -> Iterator[None]:
    """Inside, Python does not search for reference cycles. A look at thousands of layers makes so many
    objects that the search walks through everything in the kernel, which took a third of the time. It lasts a
    few steps."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def _next(replica: Replica, times: dict[str, float]) -> Any:
    """Return the next batch, without taking it."""
    loop = replica.loop
    cursor = loop.passes["train"].cursor
    in_this_epoch = loop.split == "train" and loop.position.step != loop.position.total
    if not (cursor.walks_again or (in_this_epoch and cursor.goes_back)):
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
    """The time of each part of one step, without observation. The caller puts back what the step changes."""
    update, marks = replica.loop.update, list[float]()

    def mark() -> float:
        if step.device.type == "cuda":
            torch.cuda.synchronize(step.device)
        return perf_counter()

    try:
        started = mark()
        step.without_update(batch, True, between=lambda: marks.append(mark()))
        backward = mark()
        if update.drives:
            return {"step": backward - started}
        update.optimizer.step()
        ended = mark()
    except Exception:  # the observed run reports the error
        return {}
    return {"forward": marks[0] - started, "backward": backward - marks[0], "optimizer": ended - backward}
