"""Looking at a step without taking it: whatever it changes is put back, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

# The one way to write back the value that a graph has seen, without telling it that something was written.
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ..state.state import ModelPart, Part, copy_all
from .loop import Loop

_LOOP_OWN = ("loop", "metrics train", "metrics valid")
"""What only the loop itself changes, between steps."""


@contextmanager
def aside(
    loop: Loop, parts: Mapping[str, Part], *, data: bool = False, but: Collection[str] = ()
) -> Iterator[Callable[[], None]]:
    """Everything that a step can change is as it was, afterwards, also where it fails; and whenever the
    function is called that this gives.

    Graphs that live on stay usable: their tensors get the old values without counting as changed. Gradients
    that people look at stay, too.

    Args:
        loop: at a boundary, its random stream entered.
        parts: of the state.
        data: whether batches are fetched meanwhile. Then the loader is opened anew afterwards.
        but: parts that nothing touches meanwhile, and that need no copy.
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
        for each in models.values():
            for tensor in each.tensors().values():
                versions.enter_context(_unsafe_preserve_version_counter(tensor))
        yield put_back
    finally:
        loop.quiet = was_quiet
        put_back()
        versions.close()


def _put_back(part: ModelPart, state: Any) -> None:
    # All of them: BatchNorm, for one, writes its statistics without counting them as changed.
    live = part.tensors()
    with torch.no_grad():
        copy_all([*live.values()], [state["tensors"][name] for name in live])
    for name, extra in state["extra"].items():
        part.model.get_submodule(name).set_extra_state(extra)
