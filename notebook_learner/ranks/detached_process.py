"""The detached process, from the side that starts it: what it gets, what it answers, and how it ends.

The process has a session of its own: it gets neither the signal that ends a kernel's process group nor the
one of a terminal that closes. Two pipes lead there and back. Once the process trains, it needs them no more.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ..breakpoint import Breakpoints
from ..errors import ConfigurationError, DetachError
from ..event import Record
from ..metric.base import own_copy
from ..remote.detached import MODULE, Detached, process_of
from ..run.settings import Registered, Settings
from ..step.optimizers import as_given
from ..step.schedule import scheduler_of
from .process_settings import ambient

THE_LEARNER = "the learner"
CANNOT = "this run cannot be handed over"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The settings of the new process before it gets any of the user's objects. They are plain values,
    because it cannot import the user's modules yet."""

    path: list[str]
    folder: str
    python_path: str | None
    """The user's PYTHONPATH. The new process starts with another value, so that it finds this package."""
    ambient: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ticket:
    """The objects that the learner is made from."""

    settings: Settings
    model: Any
    optimizer: Any
    scheduler: Any
    data: Mapping[Any, Any]
    """The data of each split, as the user gave it."""
    num_epochs: int
    conditions: list[tuple[str, Any, bool, bool]]
    """Its breakpoints: the name, the condition, whether it stops only once, whether it is on."""
    measured: Record | None
    """The measurements so far, if the directory's logs do not hold them."""
    before_steps: Any
    """What steps reach, as it was before they changed it."""


def surroundings() -> Surroundings:
    """The surroundings of this process."""
    return Surroundings(list(sys.path), os.getcwd(), os.environ.get("PYTHONPATH"), ambient())


def packed(learner: Any) -> bytes:
    """Pickle a learner's ticket, from which another process builds the learner again.

    It is one pickle: objects that the model, the steps and the loaders share are shared there too.

    Raises:
        ConfigurationError: a part of it cannot be pickled.
    """
    origin, replica = learner._supplies.origin, learner._replica
    update = replica.loop.update
    ticket = Ticket(
        replace(_settings(origin.settings), reshaped=replica.shape.log, reshapes=replica.shape.written),
        update.model,
        as_given(update.optimizer),
        scheduler_of(update.schedule),
        dict(learner._supplies.given()),
        learner.num_epochs,
        _conditions(learner.breakpoints),
        replica.history.snapshot() if origin.settings.loggers else None,
        replica.carried.before_steps(),
    )
    from .shipping import pack  # its requirements may be missing; a caller has checked that

    names = {id(learner): THE_LEARNER}
    try:
        return pack(ticket, names, stays=True)
    except Exception as refused:
        culprits = _culprits(ticket, lambda part: pack(part, names))
        raise ConfigurationError(culprits or [_told("it", refused)], CANNOT) from refused


def _settings(settings: Settings) -> Settings:
    """The settings without those that say how to begin, and without a display that belongs to this page."""
    shown = settings.renderer if settings.renderer == "silent" else "plain"
    return replace(
        settings.of_a_copy(),
        metrics=[Registered(own_copy(r.metric), r.split, r.plotted) for r in settings.registered()],
        samples=None,  # that process has no panel to show them
        metrics_given=True,
        renderer=shown,
        share=None,
        breakpoints=[],
        detached=True,
    )


def _conditions(breakpoints: Breakpoints) -> list[tuple[str, Any, bool, bool]]:
    return [(each.name, each.condition, each.once, each.on) for each in breakpoints]


def _culprits(ticket: Ticket, pack: Callable[[Any], object]) -> list[str]:
    """The parts of a ticket that cannot be pickled."""
    settings = ticket.settings
    parts: dict[str, Any] = {
        f"the model ({type(ticket.model).__name__})": ticket.model,
        "the schedule": ticket.scheduler,
        "the loss": settings.loss,
        "the training step": settings.train_step,
        "the validation step": settings.valid_step,
        **{f"the {split} data": loader for split, loader in ticket.data.items()},
        **{f"the metric {each.metric.name}": each.metric for each in settings.metrics},
        **{f"the logger {type(each).__name__}": each for each in settings.loggers},
        "the checkpointer": settings.checkpointer,
        **{f"the breakpoint {name}": condition for name, condition, *_ in ticket.conditions},
    }
    found = []
    for what, part in parts.items():
        try:
            pack(part)
        except Exception as refused:
            found.append(_told(what, refused))
    return found


def _told(what: str, refused: Exception) -> str:
    return (
        f"{what} cannot be sent to another process ({type(refused).__name__}: {refused}); leave out what "
        "only this one can have: open files, locks, generators, sockets"
    )


SIZE = struct.Struct("<QQ")
"""The header of what it is sent: the sizes in bytes of the surroundings and of the ticket."""
_PRINTED = 4000
"""How many characters of its output an error message shows."""
_READ = 1 << 18
"""How many bytes of its output are read for that."""
_MODULES = "Extension modules: "
"""How faulthandler begins its last line: up to 10 kB of names, which would hide the error before it."""
_ROOT = Path(__file__).parents[2]
"""Where this package is imported from."""
_OF_A_KERNEL = ("JPY_", "MPLBACKEND")
"""Variables that only a kernel needs: its parent process, and that figures appear below cells."""


class _Child(subprocess.Popen[bytes]):
    """A child that is meant to outlive this process and the object that refers to it here."""

    def __del__(self) -> None:
        """Suppress the warning that the process still runs."""


class Process:
    """One process that this process hands a run over to."""

    def __init__(self, surroundings: Surroundings, ticket: bytes, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted
        self._printed: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `_close`)
        """Its output before the run's directory has a file for it."""
        there, to = os.pipe()
        back, here = os.pipe()
        self._giving, taking = socket.socketpair()  # a pipe cannot carry a descriptor
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
        # In a thread: a pipe holds 64 KiB, and a write that waits on a full pipe would ignore an interrupt.
        threading.Thread(target=self._send, args=(pickle.dumps(surroundings), ticket), daemon=True).start()

    # Talking -----------------------------------------------------------------------------------------

    def hear(self, *wanted: str, seconds: float | None = None) -> str:
        """Wait until the process sends one of these words; return it, or "" if it took too long.

        Raises:
            DetachError: the process failed, or died.
            KeyboardInterrupt: the user interrupted the wait.
        """
        rest = seconds
        while rest is None or rest > 0:
            word = self._next_word(0.1)
            if word is None:
                rest = None if rest is None else rest - 0.1
            elif word["said"] == "failed":
                raise DetachError(
                    f"process {self.pid} could not go on with the run; here the learner stands where it "
                    f"stood, and can train on. The traceback there:\n{word['text']}"
                )
            elif word["said"] in wanted:
                return str(word["said"])
        return ""

    def tell(self, **what: Any) -> None:
        """Send the process a message."""
        with suppress(OSError):  # it is gone, and `hear` says so
            self._to.write(json.dumps(what).encode() + b"\n")
            self._to.flush()

    def give(self, descriptor: int) -> None:
        """Give the process a copy of an open descriptor of this process."""
        with suppress(OSError):  # it is gone, and `hear` says so
            socket.send_fds(self._giving, [b"."], [descriptor])

    def noted(self) -> Detached:
        """The process's note for the run's directory.

        Raises:
            DetachError: the process has died.
        """
        self._require_alive()
        return process_of(self.pid)

    def let_go(self) -> None:
        """Close the pipes: the process trains, and needs no more messages."""
        self._close()

    def kill(self) -> None:
        """Kill the process, and wait until it and the processes that it started have ended."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its loaders' workers, too
        self._child.wait()
        self._close()

    def how_it_ended(self) -> str:
        """How the process ended, in words, if it sent no error."""
        code = self._child.poll()
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return "died" if code is None else f"ended with exit code {code}"

    # Pieces ------------------------------------------------------------------------------------------

    def _send(self, surroundings: bytes, ticket: bytes) -> None:
        with suppress(OSError, ValueError):  # it is gone, or was killed
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
        poll = select.poll()  # `select` cannot take a descriptor above 1023
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
    """This process's environment as `os.environ` has it, without the variables that only a kernel needs."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_KERNEL)}
    backend = os.environ.get("MPLBACKEND", "")
    if backend and not backend.startswith("module://"):
        found["MPLBACKEND"] = backend
    rest = [surroundings.python_path] if surroundings.python_path else []
    found["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *rest])
    return found
