"""The front end and the cell in which this process shows its output.

This module never loads IPython or marimo."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from . import marimo_page

FrontEnd = Literal["page", "lines", "none"]
CHOICE = "NOTEBOOK_LEARNER_FRONT_END"
"""Set to "page" or "lines", it replaces the detected front end."""

VOILA = "VOILA_REQUEST_URL"
"""Voila sets it for the kernels that it starts."""
_ID_OF_CLASSIC = re.compile("[0-9a-fA-F]{32}")
"""What classic Notebook gives each message. The programs send by jupyter_client, whose ids have dashes."""


def shell() -> Any:
    """Return IPython's shell in a kernel; None outside of one."""
    ipython = sys.modules.get("IPython")
    found = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return found if getattr(found, "kernel", None) is not None else None


def front_end() -> FrontEnd:
    """Return the kind of program that uses this kernel.

    It is a page that shows widgets, or a program that only collects outputs (nbclient, nbconvert,
    papermill). Outside a kernel there is no front end.

    JupyterLab, Notebook 7, VS Code and Colab send their own metadata with every cell; the programs do not.
    Classic Notebook sends none: its messages have ids of another form. Voila names itself to its kernels, and
    marimo's kernel serves a page of marimo.
    """
    found = shell()
    if found is None and not marimo_page.is_open():
        return "none"
    chosen = os.environ.get(CHOICE)
    if chosen in ("page", "lines"):
        return "page" if chosen == "page" else "lines"
    if found is None:
        return "page"
    parent = _parent(found)
    told = any(
        key in (parent.get("metadata") or {}) for key in ("cellId", "cell_id", "deletedCells", "colab")
    )
    classic = _ID_OF_CLASSIC.fullmatch(str((parent.get("header") or {}).get("msg_id", "")))
    return "page" if told or classic or VOILA in os.environ or "google.colab" in sys.modules else "lines"


def cell() -> str:
    """Return an id of the cell that runs now; "" if no cell runs, for example after a click on a button."""
    found = shell()
    if found is None:
        return marimo_page.cell()
    header = _parent(found).get("header") or {}
    return str(header.get("msg_id", "")) if header.get("msg_type") == "execute_request" else ""


def at_end_of_cell(work: Callable[[], None]) -> bool:
    """Call `work` at the end of the running cell, before its reply; False if that is impossible."""
    events = getattr(shell(), "events", None)
    if events is None or not cell():
        return False

    def once(result: Any) -> None:
        events.unregister("post_run_cell", once)
        work()

    events.register("post_run_cell", once)
    return True


def publish(data: dict[str, Any], name: str, *, update: bool = False) -> None:
    """Show something below the running cell, or replace the output of that name, which marimo cannot do."""
    if shell() is None:
        return None if update else marimo_page.show(data)
    from IPython.display import publish_display_data

    show: Any = publish_display_data  # without types
    show(data, {}, transient={"display_id": name}, update=update)


def say(text: str) -> None:
    """Print it below the running cell, or show it there if the page shows no prints."""
    if not marimo_page.say(text):
        print(text)


def keeps_outputs() -> bool:
    """Whether outputs stay, as a saved notebook has them. marimo saves the cells alone, and a console hands
    each picture to a viewer: there, somebody can be asked, and no page is open."""
    found = shell()
    if found is None:
        return False
    asks = (_parent(found).get("content") or {}).get("allow_stdin", False)
    return front_end() == "page" or not asks


def _parent(found: Any) -> dict[str, Any]:
    kernel = found.kernel
    try:
        parent = kernel.get_parent("shell")
    except (AttributeError, TypeError, LookupError):  # not in ipykernel 5, nor on a new thread
        parent = getattr(kernel, "_parent_header", None)
    return parent if isinstance(parent, dict) else {}


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
