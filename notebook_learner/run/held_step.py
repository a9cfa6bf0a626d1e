"""Holds a training step before its update, after a breakpoint: with its gradients and graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..breakpoint import Condition
from ..data.batch import move
from ..data.sampling import END
from ..state.state import Part
from ..step.step import TrainingStep
from .loop import Loop
from .step_undo import aside


def hold(loop: Loop, parts: Mapping[str, Part], condition: Condition) -> str:
    """Take the next training step up to its update, and keep for the user: the batch, the output with its
    graph, the gradients. The state stays that of the boundary before the step.

    Returns:
        The condition's text about the step.
    """
    train, update = loop.passes["train"], loop.update
    step = train.step
    assert isinstance(step, TrainingStep)
    loop.modes.enter("train")
    with aside(loop, parts, data=True):
        if loop.done == 0:
            train.cursor.begin(loop.epoch)
        batch = train.cursor.fetch_one()
        if batch is END:
            return ""
        last = loop.done + 1 == train.cursor.total
        there = move(batch, step.device)

        def run() -> Any:
            return step.without_update(there, last)

        text = _explained(loop, parts, condition, there, run)
        try:
            output = run()
        except Exception as error:
            text, output = f"{text}; the step fails: {error!r}".lstrip("; "), None
        gradients = [p.grad for p in update.parameters]
    update.show(gradients)
    loop.batch, loop.output = batch, output
    return text


def _explained(
    loop: Loop, parts: Mapping[str, Part], condition: Condition, batch: Any, run: Callable[[], Any]
) -> str:
    with aside(loop, parts):
        try:
            return condition.explain(batch, run, loop.update.model)
        except Exception as error:  # the user's code runs there; its error must not break the stop
            return f"the cause could not be found: {error!r}"
