"""Loads torchmetrics only for the metrics that need it: it loads SciPy and matplotlib, which takes 1.5 s."""

from __future__ import annotations

import importlib
from typing import Any


def torchmetrics(who: str) -> Any:
    """Return the package, or raise an error that says how to install it.

    Args:
        who: the metrics that need it, in the plural.
    """
    try:
        return importlib.import_module("torchmetrics")
    except ImportError as error:
        raise ImportError(
            f"{who} need torchmetrics, which does not load here ({error}); install it: "
            "pip install 'torchmetrics>=1.4'"
        ) from error
