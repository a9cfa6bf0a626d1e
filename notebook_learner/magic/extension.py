"""Loading the magics into a shell, and taking them out again without a trace."""

from __future__ import annotations

from typing import Any

from ..learner.wiring.cells import expect_cells
from .breakpoint_prompt import Stopping
from .completion import Completion
from .magics import TrainingMagics
from .reload_offer import Offer

_HOLDS = "_notebook_learner_extension"
"""The attribute of the shell that holds what was loaded: shells are many where notebooks are tested."""


class _Loaded:
    def __init__(self, shell: Any) -> None:
        self.magics = TrainingMagics(shell)
        self.offer = Offer(shell)
        self.completion = Completion(shell)
        self.stopping = Stopping()


def load(shell: Any) -> None:
    """Register the magics. Doing it twice is doing it once."""
    unload(shell)
    loaded = _Loaded(shell)
    shell.register_magics(loaded.magics)
    shell.events.register("post_run_cell", loaded.offer.after_cell)
    loaded.completion.add()
    loaded.stopping.add()
    setattr(shell, _HOLDS, loaded)
    expect_cells()


def unload(shell: Any) -> None:
    """Take out what `load` put in, but nothing that somebody has put in its place since."""
    loaded = getattr(shell, _HOLDS, None)
    if loaded is None:
        return
    delattr(shell, _HOLDS)
    for kind, names in loaded.magics.magics.items():
        registered = shell.magics_manager.magics[kind]
        for name in names:
            if getattr(registered.get(name), "__self__", None) is loaded.magics:
                del registered[name]
    shell.events.unregister("post_run_cell", loaded.offer.after_cell)
    loaded.completion.remove()
    loaded.stopping.remove()
    expect_cells(False)
