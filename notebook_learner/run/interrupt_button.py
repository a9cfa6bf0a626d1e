"""The notebook's interrupt button while a training runs in the background, started by a cell or by the panel.

A kernel ignores SIGINT between two cells, and raises KeyboardInterrupt in a cell: a training in a thread of
its own would hear of neither. So the kernel's handlers are joined by one that asks every training in the
background for a pause at its next step; then they do what they always do.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from .control import Control

_running: dict[int, Control] = {}
"""What runs in the background, by its identity."""


def begins(control: Control) -> None:
    """A training goes on in the background from here on."""
    _running[id(control)] = control


def is_over(control: Control) -> None:
    """It has come to its end; an interrupt that came too late for it shall not pause the next one."""
    _running.pop(id(control), None)
    control.forget_interrupts()


def attend() -> None:
    """From here on the interrupt button is heard in this kernel, also between two cells. Elsewhere nothing is
    done: in a terminal Ctrl-C ends what the main thread does, and the process, which pauses as it ends."""
    shell = _kernels_shell()
    if shell is None or threading.current_thread() is not threading.main_thread():
        return
    kernel = shell.kernel
    # What the kernel puts back when the cell is over.
    between = getattr(kernel, "saved_sigint_handler", None)
    if between is signal.SIG_IGN or (callable(between) and not isinstance(between, _JoinedCell)):
        kernel.saved_sigint_handler = _JoinedCell(between)
        shell.events.register("pre_execute", join_the_cell)


def join_the_cell(*event: Any) -> None:
    """While a cell runs the kernel has another handler than between two."""
    if not _running or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    # Only in a kernel, which sets its own handler anew for each cell: elsewhere ours would stay for ever.
    if _kernels_shell() is not None and callable(handler) and not isinstance(handler, _JoinedCell):
        signal.signal(signal.SIGINT, _JoinedCell(handler))


def _kernels_shell() -> Any:
    """The shell of the kernel that this process is; None where it is no kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if getattr(shell, "kernel", None) is not None else None


class _JoinedCell:
    """A handler of SIGINT: the trainings in the background pause, and then comes what came before."""

    def __init__(self, before: Callable[[int, FrameType | None], Any] | signal.Handlers | None) -> None:
        self._before = before
        self._process = os.getpid()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:  # and no child of it, whose trainings are its parent's
            for control in tuple(_running.values()):
                control.interrupt()
                if id(control) not in _running:  # it ended just now
                    control.forget_interrupts()
        if callable(self._before):
            self._before(signum, frame)
