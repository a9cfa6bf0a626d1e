"""The notebook's interrupt button while a training runs in the background, started by a cell or by the panel.

A kernel ignores SIGINT between two cells, and raises KeyboardInterrupt in a cell. A training in its own
thread would not see either of them. So our handler runs before the kernel's: it asks every background
training to pause at its next step. Then the kernel's handler runs as always.
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
"""The trainings in the background, by their identity."""


def begins(control: Control) -> None:
    """A training begins in the background."""
    _running[id(control)] = control


def is_over(control: Control) -> None:
    """A background training has ended. An interrupt that came too late for it must not pause the next one."""
    _running.pop(id(control), None)
    control.forget_interrupts()


def attend() -> None:
    """From now on this kernel handles the interrupt button, also between two cells. Outside a kernel this
    does nothing: in a terminal Ctrl-C ends the main thread's work and the process, which pauses the training
    as it ends."""
    shell = _kernels_shell()
    if shell is None or threading.current_thread() is not threading.main_thread():
        return
    kernel = shell.kernel
    # The handler that the kernel restores when the cell has ended.
    between = getattr(kernel, "saved_sigint_handler", None)
    if between is signal.SIG_IGN or (callable(between) and not isinstance(between, _JoinedCell)):
        kernel.saved_sigint_handler = _JoinedCell(between)
        shell.events.register("pre_execute", join_the_cell)


def join_the_cell(*event: Any) -> None:
    """Join a cell's handler: while a cell runs, the kernel has another one than between two cells."""
    if not _running or threading.current_thread() is not threading.main_thread():
        return
    handler = signal.getsignal(signal.SIGINT)
    # Only in a kernel, which sets its own handler for each cell: elsewhere our handler would stay for ever.
    if _kernels_shell() is not None and callable(handler) and not isinstance(handler, _JoinedCell):
        signal.signal(signal.SIGINT, _JoinedCell(handler))


def _kernels_shell() -> Any:
    """The shell of this kernel; None if this process is not a kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if getattr(shell, "kernel", None) is not None else None


class _JoinedCell:
    """A handler of SIGINT: the background trainings pause, and then the earlier handler runs."""

    def __init__(self, before: Callable[[int, FrameType | None], Any] | signal.Handlers | None) -> None:
        self._before = before
        self._process = os.getpid()

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() == self._process:  # not in a child, whose trainings belong to its parent
            for control in tuple(_running.values()):
                control.interrupt()
                if id(control) not in _running:  # it has just ended
                    control.forget_interrupts()
        if callable(self._before):
            self._before(signum, frame)
