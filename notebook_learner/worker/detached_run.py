"""The process of a detached run: it makes the learner again, goes on with the run, and then ends.

It trains in its main thread, as a kernel does. Requests to pause or to stop come through the run's socket.
After SIGTERM it stops at the next step boundary, saves exactly where it stands, and ends.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any, BinaryIO, get_args

from ..breakpoint import Breakpoints
from ..errors import CheckpointError, DetachError, LoggerError, Paused
from ..event import Rewound, Split
from ..learner.asking_elsewhere import answer_for
from ..learner.core import OfOneLearner
from ..learner.hand_over import take_steps_for
from ..learner.learner import Learner
from ..learner.wiring.assembly import assemble
from ..logger import FileMetricLogger
from ..ranks.detached_process import SIZE, THE_LEARNER, Surroundings, Ticket
from ..ranks.process_settings import surround
from ..ranks.shipping import Here, unpack
from ..remote.detached import LOG, noted_in
from ..step.optimizers import each_of
from ..step.schedule import report_steps
from ..store import files
from ..store.layout import RunLayout
from ..store.run_folder import RunPath

_AGAIN = 5.0
"""Seconds until a failed write is tried again."""
_OVER = (
    "the run is over here: its process writes down where it stands, and ends. learner.take_back(), or "
    ".resume() on the builder, goes on from there"
)


def main(there: int, here: int, taking: int) -> int:
    """Do what the process at the other end of these pipes wants; return the exit status."""
    faulthandler.enable()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # during training it is a pause, as everywhere
    voice = Voice(here)
    serving = Serving(voice)
    try:
        with os.fdopen(there, "rb") as orders:
            surroundings, ticket = _received(orders)
            serving.make(surroundings, ticket)
            voice.say("made")
            order = json.loads(orders.readline() or b"{}")
        if not order:  # the other process has ended
            return 1
        if "verify" in order:
            take_steps_for(serving._learner, order["verify"], order["steps"])
            voice.say("stepped")
            return 0
        if "ask" in order:
            answer_for(serving._learner, order["ask"], order["number"], order["stretch"])
            voice.say("stepped")
            return 0
        serving.begin(_taken(taking), **order)
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        print(text, file=sys.stderr, flush=True)
        voice.say("failed", text=text)
        return 1
    return serving.train()


class Voice:
    """Sends words to the process that started this one, as long as that listens."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def say(self, word: str, **more: Any) -> None:
        """Send a word, with its details."""
        data = json.dumps({"said": word, **more}).encode() + b"\n"
        with suppress(OSError):  # the kernel is gone, and the run must go on without it
            while data:
                data = data[os.write(self._descriptor, data) :]


class Serving:
    """The run in this process, from its ticket to its end."""

    def __init__(self, voice: Voice) -> None:
        self.learner: Learner | None = None
        self._voice = voice
        self._ticket: Any = None
        self._told_to_end = False
        self._training = False
        """Whether the main thread trains."""
        self._start: tuple[int, int, int] | None = None

    # Making it again ---------------------------------------------------------------------------------

    def make(self, surroundings: Surroundings, packed: bytes) -> None:
        """Make the learner, which does not touch the run's directory yet."""
        _come_into(surroundings)
        self._ticket = ticket = unpack(packed, {THE_LEARNER: Here(self)})
        assert isinstance(ticket, Ticket)
        report_steps(each_of(ticket.optimizer))
        learner = assemble(
            ticket.settings,
            ticket.model,
            ticket.optimizer,
            ticket.scheduler,
            ticket.data.get("train"),
            ticket.data.get("valid"),
        )
        self.learner = learner
        for split in get_args(Split):
            step = learner._supplies.step_of(split)
            if isinstance(step, OfOneLearner):
                learner._supplies.use_step(split, step.of(learner))
        learner._replica.carried.goes_on(ticket.before_steps)
        learner.breakpoints.become(_breakpoints(ticket))
        learner.num_epochs = ticket.num_epochs

    # Going on ----------------------------------------------------------------------------------------

    def begin(self, lock: int, label: str, identity: list[int], kernel: int) -> None:
        """Take the directory by the descriptor that it is locked with, and go to where the other process
        stood.

        Raises:
            DetachError: another run has begun in the directory meanwhile.
        """
        learner = self._learner
        directory = os.fspath(learner._supplies.origin.settings.directory)
        _require_the_same(directory, identity)
        learner._premises.adopt(lock)
        _print_into(RunLayout(directory).directory / LOG)
        self._measured_before(directory)
        found = learner._look_for_checkpoints()
        if not found or found[-1].label != label:
            raise DetachError(
                f"the newest checkpoint in {directory!r} is not the one that the run was handed over at: "
                "another process has gone on with it meanwhile"
            )
        learner.restore(label)
        learner.tools.note(f"detached: goes on in process {os.getpid()}, handed over by process {kernel}")
        self._start = learner._replica.loop.position.key
        signal.signal(signal.SIGTERM, self._to_end)

    def _measured_before(self, directory: str) -> None:
        """Fill in the history that only the user's own loggers have, and the directory does not."""
        learner, record = self._learner, self._ticket.measured
        if not record:
            return
        at = learner.position
        learner._replica.history.restore(record)
        for writer in learner._premises.writers:  # type: ignore[attr-defined]
            if isinstance(writer, FileMetricLogger):
                writer.handle(Rewound(at.epoch, at.split, at.step, record, 0, 0))

    def train(self) -> int:
        """Train until the run is over, or is ended from outside; return the exit status."""
        threading.Thread(target=self._tell_of_steps, name="notebook_learner detached", daemon=True).start()
        error = self._fit()
        if error is not None and self._learner._replica.loop.position.key == self._start:
            self._voice.say("failed", text="".join(traceback.format_exception(error)))
        else:
            self._voice.say("stepped")
        error = self._stand(error)
        return self._end(error)

    def _fit(self) -> BaseException | None:
        self._training = True
        try:
            if not self._told_to_end:
                self._learner.fit()
        except Paused:
            return None
        except BaseException as error:
            traceback.print_exc()
            return error
        finally:
            self._training = False
        return None

    def _stand(self, error: BaseException | None) -> BaseException | None:
        """Wait while the run is paused, or a disk refuses to write; a request can make it go on. Return its
        error.

        After the run is over it obeys no request, because no record would show the effect.
        """
        learner = self._learner
        while True:
            told_to_end = self._told_to_end
            if told_to_end:
                learner.stop()
            if not learner._driver.busy:
                status = learner.status
                error = error or _error_of(learner)
                if over := told_to_end or status in ("finished", "stopped"):
                    error = None
                elif status == "failed":
                    over = not isinstance(error, (LoggerError, CheckpointError))
                if over and learner._driver.ends(_OVER):
                    return error
                error = None if status == "running" else error
            time.sleep(0.1)

    # The end -----------------------------------------------------------------------------------------

    def _end(self, error: BaseException | None) -> int:
        learner, replica = self._learner, self._learner._replica
        self._save()
        with suppress(CheckpointError, LoggerError):  # it was reported
            replica.saving.close()
        told = "" if error is None else f"{type(error).__name__}: {error}"
        directory = os.fspath(learner._supplies.origin.settings.directory)
        noted = noted_in(directory)
        if noted is not None and noted.pid == os.getpid():
            noted.ends(directory, learner.status, told, learner.num_epochs)
        learner._premises.leave()  # others can take the directory before this process ends
        replica.let_go()
        return 0 if error is None else 1

    def _save(self) -> None:
        """Save the current step; the user may have changed something since the pause was saved."""
        replica = self._learner._replica
        saving, loop = replica.saving, replica.loop
        kept = saving.store is not None and saving.store.is_kept(loop.position)
        while not (kept and loop.finished):
            try:
                saving.take_auto(replica.capture())
                saving.wait()
                return
            except (CheckpointError, LoggerError):
                traceback.print_exc()
                if self._told_to_end:
                    return
                time.sleep(_AGAIN)

    # From outside ------------------------------------------------------------------------------------

    def _to_end(self, signum: int, frame: Any) -> None:
        """A second signal changes nothing, as a state may be on its way to the disk; SIGKILL ends it at
        once."""
        self._told_to_end = True
        if self._training:  # the signal runs in this thread, which may hold any lock
            self._learner._replica.loop.control.interrupt()

    def _tell_of_steps(self) -> None:
        """Report that the run trains, and that it has taken a step."""
        learner = self._learner
        until = time.monotonic() + 600.0
        told = False
        while time.monotonic() < until:
            status = learner.status
            if not told and status == "running":
                self._voice.say("trains")
                told = True
            if learner._replica.loop.position.key != self._start or status in ("finished", "stopped"):
                self._voice.say("stepped")
                return
            time.sleep(0.02)

    @property
    def _learner(self) -> Learner:
        assert self.learner is not None
        return self.learner


def _received(orders: BinaryIO) -> tuple[Surroundings, bytes]:
    first, second = SIZE.unpack(_exactly(orders, SIZE.size))
    return pickle.loads(_exactly(orders, first)), _exactly(orders, second)


def _taken(taking: int) -> int:
    """The descriptor that the other process sends."""
    with socket.socket(fileno=taking) as end:
        _, (descriptor,), _, _ = socket.recv_fds(end, 1, 1)
    os.set_inheritable(descriptor, False)
    return descriptor


def _exactly(orders: BinaryIO, size: int) -> bytes:
    data = orders.read(size)
    if len(data) < size:
        raise EOFError("the process that handed the run over has ended before it was done")
    return data


def _come_into(surroundings: Surroundings) -> None:
    """Find modules and files as the other process does, and compute as it does."""
    sys.path[:] = surroundings.path
    os.chdir(surroundings.folder)
    if surroundings.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = surroundings.python_path
    surround(surroundings.ambient)


def _breakpoints(ticket: Ticket) -> Breakpoints:
    found = Breakpoints()
    for name, condition, once, on in ticket.conditions:
        found.add(condition, once=once, name=name).on = on
    return found


def _require_the_same(directory: str, identity: list[int]) -> None:
    """Raise if another directory has taken the place of ours."""
    info = os.stat(directory)
    if [info.st_dev, info.st_ino] != identity:
        raise DetachError(f"{directory!r} is another directory by now: another run has begun there")


def _print_into(path: RunPath) -> None:
    """Print into this file from here on, after what was printed so far."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = files.open_to_append(path)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    os.write(log, f"{now}  process {os.getpid()} goes on with the run\n".encode())
    size = os.fstat(1).st_size
    with suppress(OSError):
        os.write(log, os.pread(1, size, 0))
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):  # else a file is written each 8 KiB
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _error_of(learner: Learner) -> BaseException | None:
    """The error of the last background run."""
    try:
        learner._driver.wait()()
    except BaseException as error:
        return error
    return None
