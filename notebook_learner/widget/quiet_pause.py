"""A pause ends its cell with a plain line. A page shows what every other error says on red."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from ..errors import Paused
from . import notebook


def show_pauses_quietly() -> None:
    """From now on, the kernel publishes the line of a `Paused` as an ordinary output. The cell still ends
    with an error, so that "Run All" stops there.

    IPython has one handler for such exceptions; that of another package stays, and so does then the red.
    """
    shell = notebook.shell()
    if shell is not None and getattr(shell, "custom_exceptions", None) == ():
        shell.set_custom_exc((Paused,), _show)


def _show(shell: Any, kind: type[Paused], paused: Paused, trace: TracebackType, tb_offset: Any = None) -> Any:
    lines = paused._render_traceback_()
    sys.stdout.flush()  # what the cell printed stands above
    notebook.publish({"text/plain": "\n".join(lines)}, f"notebook-learner-pause-{id(paused)}")
    shell._last_traceback = lines  # the reply to the cell names it
    return lines
