"""Cells of a notebook as steps: whether they may come, and what makes one of its recorded text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...event.values import Split

MakeCell = Callable[[Any, Split, str, Mapping[str, Any]], Any]
"""Makes the step of a learner: of which split, of which text, with which options."""

_make: MakeCell | None = None


def expect_cells(make: MakeCell | None) -> None:
    """Note that the magics are loaded, with what makes their cells; None when they were unloaded."""
    global _make  # a property of the process, like the extension itself
    _make = make


def cells_may_come() -> bool:
    """Whether the magics are loaded."""
    return _make is not None


def recorded_cell(learner: Callable[[], Any], name: str, text: str, options: Mapping[str, Any]) -> Any:
    """The step that a run's record tells by this name; None without the magics."""
    split: Split = "valid" if name == "valid_step" else "train"
    return None if _make is None else _make(learner(), split, text, options)
