"""Show a run, during training and afterwards: terminal, plain lines, tables and figures.

Input: events. Output: what the user sees. A renderer keeps the latest event and may drop older ones. The
training never waits for a renderer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .choose import default_renderer, resolve
from .figure import plot
from .plain import PlainRenderer, SilentRenderer
from .summary import Summary, SummaryRow, summary_rows

if TYPE_CHECKING:
    from .terminal import TerminalRenderer

__all__ = [
    "PlainRenderer",
    "SilentRenderer",
    "Summary",
    "SummaryRow",
    "TerminalRenderer",
    "default_renderer",
    "plot",
    "resolve",
    "summary_rows",
]


def __getattr__(name: str) -> Any:
    if name == "TerminalRenderer":  # needs rich, which a notebook does not
        from .terminal import TerminalRenderer

        return TerminalRenderer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
