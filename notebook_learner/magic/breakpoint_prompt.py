"""`breakpoint()` in a notebook without a debugger: a prompt opens below the cell, as without the kernel's
hook.

ipykernel loads debugpy, which replaces Python's hook by its own. That hook does nothing until a debugger is
connected (JupyterLab's, with its bug button pressed).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from IPython.core import debugger

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
