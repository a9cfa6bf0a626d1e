"""`breakpoint()` in a notebook without a debugger: a prompt below the cell, as without the kernel's own hook.

ipykernel loads debugpy, and that puts a hook of its own in the place of Python's, which does nothing until a
debugger (JupyterLab's, with its bug button pressed) is connected.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from IPython.core import debugger

Hook = Callable[..., Any]


class Stopping:
    """Takes the hook's place and gives it back."""

    def __init__(self) -> None:
        self._before: Hook | None = None

    def add(self) -> None:
        """From here on `breakpoint()` stops with a debugger and without."""
        if str(sys.breakpointhook.__module__).startswith(("debugpy", "pydevd")):
            self._before = sys.breakpointhook
            sys.breakpointhook = self._stop

    def remove(self) -> None:
        """Leave it as it was, unless somebody has put another one there since."""
        if self._before is not None and sys.breakpointhook == self._stop:
            sys.breakpointhook = self._before
        self._before = None

    def _stop(self, *given: Any, **named: Any) -> Any:
        """`breakpoint()`."""
        if self._before is not None and _is_connected():
            return self._before(*given, **named)
        if os.environ.get("PYTHONBREAKPOINT"):  # somebody's choice, or "0" for none
            return sys.__breakpointhook__(*given, **named)
        set_trace: Any = debugger.set_trace
        return set_trace(sys._getframe(1))


def _is_connected() -> bool:
    debugpy = sys.modules.get("debugpy")
    return debugpy is not None and bool(debugpy.is_client_connected())
