"""Whether a step may still come from a `%%train` or `%%valid` cell.

Without the magics, a model that does not say how it trains is a mistake, which `build` reports. With the
magics, the next cell may be the step.
"""

from __future__ import annotations

_loaded = False


def expect_cells(expected: bool = True) -> None:
    """Note that the magics are loaded, or were unloaded."""
    global _loaded  # a property of the process, like the extension itself
    _loaded = expected


def cells_may_come() -> bool:
    """Whether the magics are loaded."""
    return _loaded
