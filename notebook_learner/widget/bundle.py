"""The built front end of the panel: one script, one style sheet.

The package build makes both from `notebook_learner/widget/js`. Every wheel and sdist contains them. They are
read when the first panel is shown.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"

_HOW = """\
the front end of the panel is not there: {path}
The package build makes it. In a checkout, either of these commands builds it:
  pip install -e .
  cd {source} && npm ci --ignore-scripts && npm run build"""


class BundleError(RuntimeError):
    """The built front end is missing. Training does not need it; only the panel does."""


@cache
def script() -> str:
    """Return the panel as a JavaScript module, for a widget's `_esm`.

    It is a string because a widget with a path watches that file, and the watching keeps the widget alive.

    Raises:
        BundleError: it was never built.
    """
    return _text("panel.js")


@cache
def style() -> str:
    """Return the panel's style sheet, for a widget's `_css`.

    Raises:
        BundleError: it was never built.
    """
    return _text("panel.css")


def _text(name: str) -> str:
    path = STATIC / name
    if not path.is_file():
        raise BundleError(_HOW.format(path=path, source=path.parent.with_name("js")))
    return path.read_text("utf-8")
