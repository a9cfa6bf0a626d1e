"""The page of marimo: which cell of it runs, and how something is shown below that cell.

It has no IPython. In `marimo edit` each notebook has a process, in `marimo run` each visitor a thread of one.
This module never loads marimo.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from itertools import count
from typing import Any

from ..errors import marimo_here, marimo_runs_an_app, shown_in_marimo

_numbers = count(1)
_runs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
"""A number for each run of a cell, by the list of its outputs, which is a new one each time."""


def is_open() -> bool:
    """Whether a page of marimo uses this thread."""
    return marimo_here() is not None


def cell() -> str:
    """Return an id of the run of a cell; "" if no cell runs in this thread."""
    contexts = sys.modules.get("marimo._runtime.context.types")
    context = contexts.safe_get_context() if contexts is not None else None
    running = getattr(context, "execution_context", None)  # private parts: without them, nothing is shown
    outputs = getattr(running, "output", None)
    if running is None or outputs is None:
        return ""
    return f"{running.cell_id}-{_runs.setdefault(outputs, next(_numbers))}"


def show(data: Mapping[str, Any]) -> None:
    """Show something below the running cell."""
    if (marimo := marimo_here()) is not None:
        marimo.output.append(_Output(data))


def say(text: str) -> bool:
    """Say something below the running cell of `marimo run`, which shows no prints; False elsewhere."""
    if not (marimo_runs_an_app() and cell()):
        return False
    sys.modules["marimo"].output.append(shown_in_marimo(text))
    return True


class _Output:
    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return dict(self._data)
