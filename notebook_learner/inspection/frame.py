"""The layers as a pandas DataFrame. Only this module loads pandas, at the first call."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from .layers import Layer

_STATISTICS = ("mean", "std", "min", "max", "zeros", "nan", "inf")
_COLUMNS = (
    *("kind", "parameters", "calls", "shape", *_STATISTICS),
    *("gradient_norm", "weight_norm", "update_ratio", "flags"),
)


def to_pandas(layers: Sequence[Layer]) -> Any:
    """Return a DataFrame with a row for each layer. `flags` is one text; unknown values are missing."""
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError(
            "inspection.to_pandas() needs pandas, which is not installed; `pip install pandas`, or take the "
            "rows of `inspection.layers`"
        ) from error
    names = pandas.Index([layer.name for layer in layers], name="layer", dtype=object)
    return pandas.DataFrame([_flat(layer) for layer in layers], index=names, columns=list(_COLUMNS))


def _flat(layer: Layer) -> dict[str, Any]:
    values = {name: getattr(layer.activation, name, None) for name in _STATISTICS}
    values |= {name: getattr(layer, name) for name in _COLUMNS if name not in values}
    return values | {"flags": ", ".join(layer.flags)}
