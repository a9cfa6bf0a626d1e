"""Runs a step without keeping it: everything that it changes is restored, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..breakpoint import Condition
from ..data.batch import move
from ..data.sampling import END
from ..state.state import ModelPart, Part
from ..step.step import TrainingStep
from .loop import Loop
from .unheard import unheard

_LOOP_OWN = ("loop", "metrics train", "metrics valid")
"""The parts that only the loop itself changes, between steps."""


@contextmanager
def aside(
    loop: Loop, parts: Mapping[str, Part], *, data: bool = False, but: Collection[str] = ()
) -> Iterator[Callable[[], None]]:
    """Restore everything that a step can change, also if the step fails. The restoring happens when the block
    ends, and whenever the function that it yields is called.

    Graphs that are kept stay usable: their tensors get the old values without counting as changed. Gradients
    that the user looks at stay, too.

    Args:
        loop: at a boundary, with its random stream entered.
        parts: the parts of the state.
        data: whether the block fetches batches. Then the loader is opened again afterwards.
        but: parts that the block does not change, and that need no copy.
    """
    update = loop.update
    chosen = {
        name: part
        for name, part in parts.items()
        if name not in (*_LOOP_OWN, *but) and (data or not name.startswith("data "))
    }
    models = {name: part for name, part in chosen.items() if isinstance(part, ModelPart)}
    before = {name: part.capture() for name, part in chosen.items()}
    modes = {module: module.training for part in models.values() for module in part.model.modules()}
    shown, hiding = [p.grad for p in update.parameters], update.hides
    schedule_rates, was_quiet, loop.quiet = list(update.rates), loop.quiet, True
    versions = ExitStack()

    def put_back() -> None:
        for name, part in chosen.items():
            if name in models:
                _put_back(models[name], before[name])
            else:
                part.restore(before[name])
        update.rates = [*schedule_rates]
        if update.count == 0 or hiding:
            update.show(shown)
        for module, training in modes.items():
            module.training = training

    try:
        versions.enter_context(chosen["carried"].moving())  # type: ignore[attr-defined]
        for each in models.values():
            for tensor in each.tensors().values():
                versions.enter_context(_unsafe_preserve_version_counter(tensor))
        yield put_back
    finally:
        loop.quiet = was_quiet
        put_back()
        versions.close()


def _put_back(part: ModelPart, state: Any) -> None:
    # All tensors: BatchNorm, for example, writes its statistics without counting them as changed.
    part.put(state["tensors"])
    for name, extra in state["extra"].items():
        part.model.get_submodule(name).set_extra_state(extra)


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
    with unheard(), aside(loop, parts, data=True):  # the step has run before
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
