"""The processes of one fleet: whether each lives, and how it ended."""

from __future__ import annotations

import atexit
import pickle
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from ..cluster import Attached
from ..errors import NotebookLearnerError, StateError
from .channel import Channel, Gone
from .engines import Engines, OnThisMachine, is_alive
from .process_settings import Files, versions
from .reduction import Severed
from .shipping import pack, unpack

_COME = 180.0
"""Seconds that a rank may take from its start to its first message."""
STOPPED = 5.0
"""Seconds that a process may be stopped (SIGSTOP) before it is killed: the other ranks wait for it."""


_AFAR = "died, or its machine cannot be reached any more,"


class Dead(Severed):
    """A rank's process has ended."""


class Member:
    """One rank's process."""

    def __init__(
        self, channel: Channel, rank: int, pid: int, host: str, device: torch.device, is_here: bool
    ) -> None:
        self.channel = channel
        self.rank, self.pid, self.host, self.device = rank, pid, host, device
        self.is_here = is_here
        """Whether its process is on this machine, so that this process can see it."""
        self.gone = False

    def is_alive(self) -> bool:
        """Whether the process lives, as far as this process knows."""
        return is_alive(self.pid) if self.is_here else not self.channel.is_over()

    def send(self, verb: str, *arguments: Any) -> None:
        """Send it a command."""
        self._send(pickle.dumps((verb, arguments), pickle.HIGHEST_PROTOCOL))

    def hand(self, part: Any) -> None:
        """Send it its part of a batch."""
        self._send(pack(("batch", (part,)), parts=True))

    def _send(self, message: bytes) -> None:
        try:
            self.channel.send_bytes(message)
        except Gone as error:
            self.gone = True
            raise Dead(f"rank {self.rank} is gone") from error

    def answer(self) -> Any:
        """Wait for its answer."""
        try:
            return unpack(self.channel.receive_bytes())
        except Gone as error:
            self.gone = True
            raise Dead(f"rank {self.rank} is gone") from error


class Crew:
    """The processes of ranks 1 and up, from their start to their end."""

    def __init__(self, devices: list[torch.device], threads: int, cluster: Attached | None) -> None:
        self.members: list[Member] = []
        self.generation = 0
        """How many process groups they have formed: each meets at a place of its own."""
        self.devices, self.cluster, self.threads = list(devices), cluster, threads
        self.files = Files()
        """The source files that they may have imported."""
        self.watch = ProcessWatch(self)
        self.engines = _engines(devices, cluster)
        try:
            self.engines.invite(devices, threads)
            self._welcome(devices)
        except BaseException:
            self.close()
            raise

    def dead(self) -> list[Member]:
        """The members whose processes have ended."""
        for member in self.members:
            member.gone = member.gone or not member.is_alive()
        return [member for member in self.members if member.gone]

    def is_whole(self) -> bool:
        """Whether another learner can use this crew."""
        return not self.dead() and self.engines.are_watched() and not self.files.changed()

    def close(self) -> None:
        """End all processes."""
        self.watch.end()
        for member in self.members:
            with suppress(NotebookLearnerError):
                member.send("end")
        for member in self.members:
            member.channel.close()
        self.engines.stop()

    def _welcome(self, devices: list[torch.device]) -> None:
        until = time.monotonic() + _COME
        while len(self.members) < len(devices):
            channel = self.engines.meeting.next(1.0)
            if channel is not None:
                with suppress(Gone):  # its engine says why, or the time runs out
                    self._add(channel, devices)
            elif failure := self.engines.failure():
                raise StateError(f"the other ranks could not be started: {failure}")
            elif time.monotonic() > until:
                raise StateError(
                    f"only {len(self.members)} of {len(devices)} other ranks have come within {_COME:.0f} s; "
                    "the machine may be short of memory"
                )
        self.members.sort(key=lambda member: member.rank)

    def _add(self, channel: Channel, devices: list[torch.device]) -> None:
        rank, pid, host, theirs = channel.receive()
        self._require_the_same(rank, host, theirs)
        self.members.append(Member(channel, rank, pid, host, devices[rank - 1], self.engines.are_here))

    @staticmethod
    def _require_the_same(rank: int, host: str, theirs: tuple[str, str]) -> None:
        own = versions()
        if theirs != own:
            raise StateError(
                f"rank {rank} on {host} runs Python {theirs[0]} with torch {theirs[1]}, and this process "
                f"Python {own[0]} with torch {own[1]}: install the same on all machines"
            )


def _engines(devices: list[torch.device], cluster: Attached | None) -> Engines:
    if cluster is None:
        return OnThisMachine(devices)
    from .attached_engines import AttachedEngines  # and ZeroMQ's authentication

    return AttachedEngines(cluster)


SPARE = 1
"""How many sound crews wait for the next learner."""
_spare: list[Crew] = []
_at_work: list[Crew] = []
"""The crews of living learners. Without this reference the garbage collector, which may collect a learner
together with its step, would close the connections before the processes are ended."""
_ending = False


def crew_for(devices: list[torch.device], threads: int, cluster: Attached | None) -> Crew:
    """Processes for these devices: those of a learner that is gone, or new ones.

    A user runs a cell that builds a learner again and again, and engines take seconds to start.
    """
    while _spare:
        crew = _spare.pop()
        if (crew.devices, crew.cluster, crew.threads) == (devices, cluster, threads) and crew.is_whole():
            _at_work.append(crew)
            return crew
        crew.close()
    # Register the exit hook here, and not when the first crew is released: that may be while the interpreter
    # ends, and a hook registered then is not called. This hook comes after the learners', so it runs first.
    atexit.unregister(_end)
    atexit.register(_end)
    crew = Crew(devices, threads, cluster)
    _at_work.append(crew)
    return crew


def release(crew: Crew, whole: bool) -> None:
    """Take a crew that its learner needs no more. A sound one may be kept for the next learner."""
    _at_work.remove(crew)
    if not whole or _ending or not crew.is_whole():
        crew.close()
        return
    _spare.append(crew)
    while len(_spare) > SPARE:
        _spare.pop(0).close()


def release_spare() -> None:
    """End the spare crew: another process uses its devices now."""
    while _spare:
        _spare.pop().close()


def _end() -> None:
    global _ending
    _ending = True
    release_spare()


class ProcessWatch:
    """Checks the processes twice a second while a run waits for them.

    If a process dies, its connections close, and the other ranks notice at once. A stopped process keeps its
    connections open, and a rank that waits for its part of a sum would wait for ever: so this thread kills it
    after a few seconds.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._end = threading.Event()
        self._reasons: dict[int, str] = {}

    def begin(self) -> None:
        """Start watching, at the beginning of a run."""
        self._end = threading.Event()
        threading.Thread(
            target=self._look, args=(self._end,), name="notebook_learner watch", daemon=True
        ).start()

    def end(self) -> None:
        """Stop watching, at the end of the run."""
        self._end.set()

    def give_up(self, member: Member, reason: str) -> None:
        """End a process, and keep the reason."""
        self._reasons[member.rank] = reason
        self._crew.engines.end(member.rank, member.pid)

    def reason(self, member: Member) -> str:
        """How a process ended, as far as this process knows."""
        if told := self._reasons.get(member.rank):
            return told
        return _how_it_ended(member.pid) if member.is_here else _AFAR

    def _look(self, end: threading.Event) -> None:
        import psutil

        since: dict[int, float] = {}
        while not end.wait(0.5):
            for member in self._crew.members:
                if not member.is_here:
                    self._look_afar(member)
                    continue
                with suppress(psutil.Error):
                    stopped = psutil.Process(member.pid).status() == psutil.STATUS_STOPPED
                    if not stopped:
                        since.pop(member.rank, None)
                    elif time.monotonic() - since.setdefault(member.rank, time.monotonic()) > STOPPED:
                        self.give_up(member, f"was stopped for {STOPPED:.0f} s, and killed then,")

    def _look_afar(self, member: Member) -> None:
        """Give up a member on another machine if its connection has ended. If the connection timed out, the
        process may only be stopped, but the sums wait for it."""
        if member.channel.is_over() and member.rank not in self._reasons:
            self.give_up(member, _AFAR)


def _how_it_ended(pid: int) -> str:
    """How a process ended, from its exit status, which only its parent process gets."""
    import psutil

    try:
        code = psutil.Process(pid).wait(2.0)
    except (psutil.Error, OSError):
        return "died"
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return "died" if code is None else f"ended with exit code {code}"


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer of a rank that failed at a command."""

    error: bytes | None
    """The exception, if it can be sent."""
    text: str
    """Its traceback on that rank."""
    severed: bool
    """Whether the failure is only a consequence of another rank that did not answer."""
    rows: Any = None
    """The measurements before the failure."""


class Lost(Severed):
    """A rank failed."""

    def __init__(self, member: Member, answer: Failed) -> None:
        super().__init__(f"rank {member.rank} failed:\n{answer.text}")
        self.member, self.answer = member, answer


def exception_of(member: Member, answer: Failed) -> BaseException:
    """The user's own exception, with a note that names the rank and holds its traceback."""
    told = f"raised on rank {member.rank} (host {member.host}, process {member.pid}), with this traceback:"
    error: BaseException | None = None
    if answer.error is not None:
        try:
            error = unpack(answer.error)
        except Exception:  # this process does not know its class
            error = None
    if error is None:
        error = StateError(f"rank {member.rank} failed")
    notes = [*getattr(error, "__notes__", ()), f"{told}\n{answer.text}"]
    setattr(error, "__notes__", notes)  # noqa: B010  (3.10 has no such attribute to check)
    return error
