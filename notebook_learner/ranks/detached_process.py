"""The process as the one that starts it sees it: what it is told, what it says, and how it ends.

It has a session of its own: neither the signal that ends a kernel's process group nor a terminal that closes
reaches it. Two pipes lead there and back, of which it needs neither once it trains.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import DetachError
from ..remote.detached import MODULE, Detached, process_of
from .ticket import Surroundings

SIZE = struct.Struct("<QQ")
"""In front of what it is sent: the bytes of the surroundings, and of the ticket."""
_PRINTED = 4000
"""Characters of what it printed that an error tells."""
_READ = 1 << 18
"""Bytes of what it printed that are read for them."""
_MODULES = "Extension modules: "
"""How faulthandler begins its last line: up to 10 kB of names, which would push out what went wrong."""
_ROOT = Path(__file__).parents[2]
"""Where this package is imported from."""
_OF_A_KERNEL = ("JPY_", "MPLBACKEND")
"""Variables that belong to a kernel: whose child it is, and that figures appear below cells."""


class _Child(subprocess.Popen[bytes]):
    """It is meant to outlive this process, and whoever held it here."""

    def __del__(self) -> None:
        """Without the warning that it still runs."""


class Process:
    """One process that a run is handed over to."""

    def __init__(self, surroundings: Surroundings, ticket: bytes, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted
        self._printed: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `_close`)
        """What it prints before the directory has a place for that."""
        there, to = os.pipe()
        back, here = os.pipe()
        self._giving, taking = socket.socketpair()  # a descriptor goes through no pipe
        self._to, self._from = os.fdopen(to, "wb"), back
        self._heard = b""
        try:
            self._child = _Child(
                [sys.executable, "-m", MODULE, str(there), str(here), str(taking.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                pass_fds=(there, here, taking.fileno()),
                env=_environment(surroundings),
                start_new_session=True,
            )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(there)
            os.close(here)
            taking.close()
        self.pid = self._child.pid
        # In a thread: a pipe holds 64 KiB, and while it is full nobody hears an interrupt.
        threading.Thread(target=self._send, args=(pickle.dumps(surroundings), ticket), daemon=True).start()

    # Talking -----------------------------------------------------------------------------------------

    def hear(self, *wanted: str, seconds: float | None = None) -> str:
        """Wait until it says one of these words: which, or nothing if it took too long.

        Raises:
            DetachError: it failed, or died.
            KeyboardInterrupt: somebody interrupted the wait.
        """
        rest = seconds
        while rest is None or rest > 0:
            word = self._next_word(0.1)
            if word is None:
                rest = None if rest is None else rest - 0.1
            elif word["said"] == "failed":
                raise DetachError(
                    f"process {self.pid} could not go on with the run; here the learner stands where it "
                    f"stood, and can train on. There it came about so:\n{word['text']}"
                )
            elif word["said"] in wanted:
                return str(word["said"])
        return ""

    def tell(self, **what: Any) -> None:
        """Say something to it."""
        with suppress(OSError):  # it is gone, and `hear` says so
            self._to.write(json.dumps(what).encode() + b"\n")
            self._to.flush()

    def give(self, descriptor: int) -> None:
        """Let it have an open descriptor of this process, too."""
        with suppress(OSError):  # it is gone, and `hear` says so
            socket.send_fds(self._giving, [b"."], [descriptor])

    def noted(self) -> Detached:
        """As others know it.

        Raises:
            DetachError: it has died.
        """
        self._require_alive()
        return process_of(self.pid)

    def let_go(self) -> None:
        """It trains: there is nothing more to say."""
        self._close()

    def kill(self) -> None:
        """It is not to go on. Waits for its end, and that of what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its loaders' workers, too
        self._child.wait()
        self._close()

    def how_it_ended(self) -> str:
        """In words, where it did not say so itself."""
        code = self._child.poll()
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return "died" if code is None else f"ended with exit code {code}"

    # Pieces ------------------------------------------------------------------------------------------

    def _send(self, surroundings: bytes, ticket: bytes) -> None:
        with suppress(OSError, ValueError):  # it is gone, or was told to go
            self._to.write(SIZE.pack(len(surroundings), len(ticket)))
            self._to.write(surroundings)
            self._to.write(ticket)
            self._to.flush()

    def _next_word(self, seconds: float) -> dict[str, Any] | None:
        if b"\n" not in self._heard:
            if self._interrupted():
                raise KeyboardInterrupt
            if self._comes(seconds):
                more = os.read(self._from, 1 << 16)
                self._heard += more
                if not more:
                    self._child.wait()
                    self._require_alive()
        line, end, rest = self._heard.partition(b"\n")
        if not end:
            return None
        self._heard = rest
        word: dict[str, Any] = json.loads(line)
        return word

    def _comes(self, seconds: float) -> bool:
        poll = select.poll()  # `select` knows no descriptor above 1023
        poll.register(self._from, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _require_alive(self) -> None:
        if self._child.poll() is not None:
            raise DetachError(
                f"process {self.pid}, to which the run was to be handed over, {self.how_it_ended()} before "
                "it trained; here the learner stands where it stood, and can train on. It printed:\n"
                f"{self._what_it_printed()}"
            )

    def _what_it_printed(self) -> str:
        with suppress(OSError, ValueError):
            size = self._printed.seek(0, os.SEEK_END)
            self._printed.seek(max(0, size - _READ))
            lines = self._printed.read().decode(errors="replace").splitlines()
            return "\n".join(line for line in lines if not line.startswith(_MODULES))[-_PRINTED:]
        return ""

    def _close(self) -> None:
        for close in (self._to.close, self._giving.close, self._printed.close, lambda: os.close(self._from)):
            with suppress(OSError):
                close()


def _environment(surroundings: Surroundings) -> dict[str, str]:
    """Of this process, as Python's own variables for C code see it, without what is a kernel's alone."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_KERNEL)}
    backend = os.environ.get("MPLBACKEND", "")
    if backend and not backend.startswith("module://"):
        found["MPLBACKEND"] = backend
    rest = [surroundings.python_path] if surroundings.python_path else []
    found["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *rest])
    return found
