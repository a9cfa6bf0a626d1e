"""Where this process shows things: which front end, which cell. IPython is asked only where it is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Literal

FrontEnd = Literal["page", "lines", "none"]
CHOICE = "NOTEBOOK_LEARNER_FRONT_END"
"""Set to "page" or "lines", it overrules what is found out."""


def shell() -> Any:
    """IPython's shell in a kernel; None elsewhere."""
    ipython = sys.modules.get("IPython")
    found = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return found if getattr(found, "kernel", None) is not None else None


def front_end() -> FrontEnd:
    """Who is at the other end of this kernel: a page that shows widgets, or a program that only collects
    outputs (nbclient, nbconvert, papermill); none where this is no kernel.

    The pages of JupyterLab, Notebook 7, VS Code and Colab tell with every cell which one it is; the
    programs do not.
    """
    found = shell()
    if found is None:
        return "none"
    chosen = os.environ.get(CHOICE)
    if chosen in ("page", "lines"):
        return "page" if chosen == "page" else "lines"
    metadata = _parent(found).get("metadata") or {}
    told = any(key in metadata for key in ("cellId", "cell_id", "deletedCells", "colab"))
    return "page" if told or "google.colab" in sys.modules else "lines"


def cell() -> str:
    """What tells the cell that runs now from every other; nothing where none runs, as when a button of a
    page began this."""
    found = shell()
    header = {} if found is None else _parent(found).get("header") or {}
    return str(header.get("msg_id", "")) if header.get("msg_type") == "execute_request" else ""


def at_end_of_cell(work: Callable[[], None]) -> bool:
    """Do this once the cell that runs is over, before its reply; False where none runs, or nobody would."""
    events = getattr(shell(), "events", None)
    if events is None or not cell():
        return False

    def once(result: Any) -> None:
        events.unregister("post_run_cell", once)
        work()

    events.register("post_run_cell", once)
    return True


def publish(data: dict[str, Any], name: str, *, update: bool = False) -> None:
    """Show something below the cell that runs, or put it in place of what has that name."""
    from IPython.display import publish_display_data

    show: Any = publish_display_data  # without types
    show(data, {}, transient={"display_id": name}, update=update)


def _parent(found: Any) -> dict[str, Any]:
    kernel = found.kernel
    try:
        parent = kernel.get_parent("shell")
    except (AttributeError, TypeError, LookupError):  # ipykernel 5 has none; a thread of its own no parent
        parent = getattr(kernel, "_parent_header", None)
    return parent if isinstance(parent, dict) else {}
