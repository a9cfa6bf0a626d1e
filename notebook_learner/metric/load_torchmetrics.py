"""torchmetrics, for the metrics that need it: it loads SciPy and matplotlib, 1.5 s that nobody else waits."""

from __future__ import annotations

import importlib
from typing import Any


def torchmetrics(who: str) -> Any:
    """The package, or an error that says how to get it.

    Args:
        who: what needs it, in the plural.
    """
    try:
        return importlib.import_module("torchmetrics")
    except ImportError as error:
        raise ImportError(
            f"{who} need torchmetrics, which does not load here ({error}); install it: "
            "pip install 'torchmetrics>=1.4'"
        ) from error
