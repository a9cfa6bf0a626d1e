"""Load the magics into a shell, and remove them again without a trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from IPython.core import debugger

from ..learner.wiring.cells import expect_cells
from .cell_step import cell_of_record
from .completion import Completion
from .magics import Offer, TrainingMagics

Hook = Callable[..., Any]


class Stopping:
    """Replaces the hook, and restores it."""

    def __init__(self) -> None:
        self._before: Hook | None = None

    def add(self) -> None:
        """Let `breakpoint()` stop with and without a debugger from here on."""
        if str(sys.breakpointhook.__module__).startswith(("debugpy", "pydevd")):
            self._before = sys.breakpointhook
            sys.breakpointhook = self._stop

    def remove(self) -> None:
        """Restore the earlier hook, unless other code has replaced ours since."""
        if self._before is not None and sys.breakpointhook == self._stop:
            sys.breakpointhook = self._before
        self._before = None

    def _stop(self, *given: Any, **named: Any) -> Any:
        """`breakpoint()`."""
        if self._before is not None and _is_connected():
            return self._before(*given, **named)
        if os.environ.get("PYTHONBREAKPOINT"):  # the user's choice, or "0" for no stop
            return sys.__breakpointhook__(*given, **named)
        set_trace: Any = debugger.set_trace
        return set_trace(sys._getframe(1))


def _is_connected() -> bool:
    debugpy = sys.modules.get("debugpy")
    return debugpy is not None and bool(debugpy.is_client_connected())


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
    expect_cells(partial(cell_of_record, shell))


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
    expect_cells(None)
