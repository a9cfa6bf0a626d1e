"""Choose the renderer of a learner."""

from __future__ import annotations

import os
import sys
from importlib import import_module

from ..errors import marimo_here, wrong_arguments
from ..event import Sink

_RENDERERS = {
    "panel": "notebook_learner.widget.notebook_renderer:NotebookRenderer",
    "terminal": ".terminal:TerminalRenderer",
    "plain": ".plain:PlainRenderer",
    "silent": ".plain:SilentRenderer",
}
"""The module of each renderer. It is loaded at its first use, because the panel's layer is above this one."""


def default_renderer() -> Sink:
    """Return a panel in a notebook, a live display in a terminal, or plain lines in a pipe and in CI."""
    if _in_kernel():
        return resolve("panel")
    return resolve("terminal" if _in_terminal() else "plain")


def resolve(renderer: str | Sink | None = "auto") -> Sink:
    """Return the renderer that the user asked for.

    Args:
        renderer: "auto" (or None), "panel", "terminal", "plain", "silent", or any object with a
            `handle(event)` method.

    Raises:
        ValueError: no renderer has that name; the message lists the names.
    """
    match renderer:
        case None | "auto":
            return default_renderer()
        case str() if renderer in _RENDERERS:
            module, _, name = _RENDERERS[renderer].partition(":")
            made: Sink = getattr(import_module(module, __package__), name)()
            return made
        case type() if hasattr(renderer, "handle"):
            raise ValueError(
                f"renderer {renderer.__name__} is a class; pass an instance: {renderer.__name__}()"
            )
        case str() | type():
            raise ValueError(_unknown(renderer))
    if not isinstance(renderer, Sink) or not callable(renderer.handle):
        raise ValueError(_unknown(renderer))
    if why := wrong_arguments(renderer.handle, "the event"):
        raise ValueError(
            f"renderer {type(renderer).__name__}, its handle: {why}; write def handle(self, event)"
        )
    return renderer


def _unknown(given: object) -> str:
    names = ", ".join(f'"{name}"' for name in ("auto", *_RENDERERS))
    return f"there is no renderer {given!r}; use one of {names}, or an object with a handle(event) method"


def _in_terminal() -> bool:
    stream = sys.stdout
    if stream is None or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # a stand-in without the method, or a closed file
        return False


def _in_kernel() -> bool:
    """Whether this is a kernel of IPython or marimo. It does not import either to find out."""
    if marimo_here() is not None:
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and getattr(shell, "kernel", None) is not None
