"""What a text metric shows of an epoch: a text, a matrix, or a picture."""

from __future__ import annotations

import io
import sys
from typing import Any

from ..event import Matrix
from .base import AccumulatedText

Content = Matrix | str | bytes

_PNG = b"\x89PNG"


def content_of(metric: AccumulatedText) -> Content:
    """Return what the metric shows. An error in its `picture` or `text` is shown, and does not end the
    training.

    >>> class Said(AccumulatedText):
    ...     name = "Said"
    ...     def text(self):
    ...         return "hello"
    >>> content_of(Said())
    'hello'
    """
    try:
        picture = metric.picture()
        return metric.text() if picture is None else _as_content(picture)
    except Exception as error:
        return f"the picture of {metric.name} failed: {type(error).__name__}: {error}"


def _as_content(picture: Any) -> Content:
    if isinstance(picture, (Matrix, str)):
        return picture
    if isinstance(picture, (bytes, bytearray)) and picture[:4] == _PNG:
        return bytes(picture)
    if callable(getattr(picture, "savefig", None)):
        file = io.BytesIO()
        picture.savefig(file, format="png")
        if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
            pyplot.close(picture)  # or it keeps the figure of each epoch
        return file.getvalue()
    raise TypeError(f"picture() returned {type(picture).__name__}; return a figure, a PNG file, or None")
