"""A job of Slurm, as its commands tell of it."""

from __future__ import annotations

import re
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT", "LAUNCH_FAILED", "RECONFIG_FAIL", "FORGOTTEN"),
    }
)
"""States that a job does not leave. Slurm forgets a job some minutes after its end."""
_ANSWER = 30.0
"""Seconds that a command may take: who manages a large cluster has much to do."""
_SETTLE = 3.0
"""Seconds that a job is given to say how it has ended, once its processes are gone."""
_LONGEST = 15.0
"""Seconds between two looks at a job that has waited for long."""
_LINES = 8
_INPUT = ("SLURM_CONF", "SLURM_JWT")
"""Variables that Slurm's commands read; the others tell of the job that a process is in."""
_OWN = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "NOTEBOOK_LEARNER_SEES")
"""Variables that hold of the devices of one machine, or one job, and of no other."""


class Told(NamedTuple):
    """What squeue says of a job."""

    state: str
    reason: str = ""
    nodes: str = ""

    def __str__(self) -> str:
        return f"{self.state}, {self.reason}" if self.reason not in ("", "None") else self.state


class Job:
    """One that was asked for."""

    def __init__(self, number: str, output: str) -> None:
        self.number = number
        self.output = output
        """The file that it writes to, as far as nobody has chosen another one."""
        self.told = Told("")
        """Nothing, until Slurm has answered."""
        self._asking: subprocess.Popen[str] | None = None
        self._began = self._next = time.monotonic()

    def __str__(self) -> str:
        return f"job {self.number} of Slurm"

    def look(self) -> Told:
        """What Slurm has last said of it. It is asked again now and then, and not waited for."""
        now = time.monotonic()
        if self._asking is not None and self._asking.poll() is not None:
            self._hear(self._asking)
            self._asking = None
        elif self._asking is None and now >= self._next:
            self._asking = _begun(self._question)
            self._next = now + min(_LONGEST, 0.5 + (now - self._began) / 10)
        return self.told

    def end_of(self) -> Told:
        """How it has ended. Where Slurm has yet to find out: what it says for now."""
        until = time.monotonic() + _SETTLE
        while True:
            with suppress(subprocess.TimeoutExpired):
                asked = _begun(self._question)
                asked.wait(_ANSWER)
                self._hear(asked)
            if self.told.state in ENDED or time.monotonic() > until:
                return self.told
            time.sleep(0.2)

    def rest(self) -> None:
        """Nobody asks for it any more."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.kill()
            asking.communicate()

    def last_words(self) -> str:
        """Where its output is, and the end of it, where that can be read here."""
        told = said_by(["scontrol", "show", "job", self.number]).stdout
        if chosen := re.search(r"^\s*StdOut=(.+)$", told, re.MULTILINE):
            self.output = chosen[1]
        lines: deque[str] = deque(maxlen=_LINES)
        with suppress(OSError), open(self.output, errors="replace") as file:
            lines.extend(line.rstrip() for line in file)
        shown = "\n".join(["", *lines])
        return f"its output is in {self.output}" + (f", and ends with{shown}" if lines else "")

    @property
    def _question(self) -> list[str]:
        return ["squeue", "--noheader", "--states=all", "--format=%T|%r|%N", f"--jobs={self.number}"]

    def _hear(self, asked: subprocess.Popen[str]) -> None:
        said, complaint = asked.communicate()
        if asked.returncode == 0 and "|" in said:
            self.told = Told(*said.strip().rpartition("\n")[2].split("|"))
        elif asked.returncode == 0 or "Invalid job id" in complaint:
            self.told = Told("FORGOTTEN")


def said_by(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What a command of Slurm's says. It has a session of its own: an interrupt of the kernel, which goes to
    all that it has started, would leave open whether a job was asked for."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
            timeout=_ANSWER,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} gave no answer for {_ANSWER:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """For a new job: not what holds of the job that this process is in, nor of this machine's devices.

    >>> outside({"SLURM_JOB_ID": "3", "SLURM_NTASKS": "1", "SLURM_CONF": "/slurm.conf", "HOME": "/root"})
    {'SLURM_CONF': '/slurm.conf', 'HOME': '/root'}
    """
    inside = "SLURM_JOB_ID" in environment

    def is_kept(name: str) -> bool:
        of_the_job = inside and name.startswith(("SLURM_", "SRUN_")) and name not in _INPUT
        return name not in _OWN and not of_the_job

    return {name: value for name, value in environment.items() if is_kept(name)}


def _begun(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
