"""What a run looks like while it trains, and after: terminal, plain lines, tables and figures.

In come events; out goes what a person sees. A renderer keeps the latest and may leave out what came before;
the training never waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .choose import default_renderer, resolve
from .figure import plot
from .plain import PlainRenderer
from .silent import SilentRenderer
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
