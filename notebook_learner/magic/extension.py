"""Load the magics into a shell, and remove them again without a trace."""

from __future__ import annotations

from typing import Any

from ..learner.wiring.cells import expect_cells
from .breakpoint_prompt import Stopping
from .completion import Completion
from .magics import TrainingMagics
from .reload_offer import Offer

_HOLDS = "_notebook_learner_extension"
"""The shell's attribute that holds what was loaded: tests of notebooks have many shells in a process."""


class _Loaded:
    def __init__(self, shell: Any) -> None:
        self.magics = TrainingMagics(shell)
        self.offer = Offer(shell)
        self.completion = Completion(shell)
        self.stopping = Stopping()


def load(shell: Any) -> None:
    """Register the magics. A second call changes nothing."""
    unload(shell)
    loaded = _Loaded(shell)
    shell.register_magics(loaded.magics)
    shell.events.register("post_run_cell", loaded.offer.after_cell)
    loaded.completion.add()
    loaded.stopping.add()
    setattr(shell, _HOLDS, loaded)
    expect_cells()


def unload(shell: Any) -> None:
    """Remove what `load` put in, but nothing that other code has put in its place since."""
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
