"""Kernels for tests of two processes in one directory: each is a process that does what it is told.

A server has imported everything and is forked for each of them, so that one costs no import of torch. They
run code of the tests, one piece at a time, as cells, in one namespace.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["two_kernels", "rerun_support", "torch._dynamo", "notebook_learner.learner.wiring.assembly", "msgspec"]
)
SOON = 120.0

PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from rerun_support import *
from notebook_learner import Artifacts, BusyError, StoreError
def told(call):
    '''The error of a call, in words; or that there was none.'''
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "done"
"""


class Kernel:
    """One process.

    Args:
        notebook: whose kernel it is, as a Jupyter server would tell it.
    """

    def __init__(self, notebook: str = "") -> None:
        self._here, there = _context.Pipe()
        self._process = _context.Process(target=_serve, args=(there, notebook), daemon=False)
        self._process.start()
        there.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def __call__(self, code: str, /, **values: Any) -> Any:
        """Run a cell; what it leaves in `_`."""
        self.begin(code, **values)
        return self.end()

    def begin(self, code: str, /, **values: Any) -> None:
        """Run a cell without waiting for it."""
        self._here.send((code, values))

    def end(self) -> Any:
        """What the cell that was begun left."""
        assert self._here.poll(SOON), "it hangs"
        done, value = self._here.recv()
        assert done, value
        return value

    def kill(self) -> None:
        """As a crash does."""
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()

    def close(self) -> None:
        """The kernel is shut down."""
        if self._process.is_alive():
            self._here.send(None)
            self._process.join(SOON)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _serve(there: Any, notebook: str) -> None:
    os.environ.pop("JPY_SESSION_NAME", None)
    if notebook:
        os.environ["JPY_SESSION_NAME"] = notebook
    names: dict[str, Any] = {}
    exec(PRELUDE, names)
    while (cell := there.recv()) is not None:
        code, values = cell
        names.update(values)
        names["_"] = None
        try:
            exec(code, names)
            there.send((True, names["_"]))
        except BaseException:
            there.send((False, traceback.format_exc()))
    names.clear()
