"""Engines that Slurm starts: on nodes of a job that is asked for here, and ends with its learner."""

from __future__ import annotations

import getpass
import os
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from itertools import islice
from typing import Any

import torch

from ..cluster import SlurmJob
from ..errors import StateError
from .engines import ENGINE, START, Waiting
from .hosts import LABEL, OnHosts, nearest
from .job import ENDED, Job, Told, outside, said_by
from .rendezvous import own_address_towards

_SAY = 300.0
"""Seconds after which somebody who waits is told again for what."""
_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"})
_QUICK = 2.0
"""Seconds that a job may wait without a word: on nodes that are free Slurm takes about one."""
_ABOUT_GPUS = ("--gres", "--gpus", "-G", "--tres-per")
_NODES = 5
"""So many are asked by which address they reach this machine: nobody needs to know of thousands."""
_SCRIPT = """#!/bin/sh
#SBATCH --output="{output_file}"
# Since its release 22.05 srun is told by another variable how many cores a task has.
[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
exec srun --export=ALL --mpi=none --kill-on-bad-exit=0 --label {program_and_args}
"""


class OnSlurm(OnHosts):
    """Engines of a job; some may be of this machine."""

    _where: SlurmJob
    may_be_kept = False  # others wait for the nodes

    def __init__(self, where: SlurmJob, waiting: Waiting) -> None:
        self._waiting = waiting
        self._job: Job | None = None
        self._cancelling: list[list[str]] = []
        self._came = False
        super().__init__(where)
        del self._waiting  # whoever holds the processes would hold the learner, too

    def known_of_the_lost(self) -> str:
        """What Slurm says of the job, where that is over, too."""
        told = self._job.end_of() if self._job is not None else Told("")
        return f" ({self._job} is {told})" if told.state in ENDED else ""

    def stop(self) -> None:
        """End all of them, and the job. Where Slurm does not answer the guard tries on."""
        if self._job is not None:
            self._job.rest()
        self._leaves_it_to_the_guard = any(said_by(each).returncode for each in self._cancelling)
        super().stop()
        if self._came and self._job is not None:
            with suppress(OSError):
                os.remove(self._job.output)  # nothing that anybody misses

    def _bring(self) -> None:
        where = self._where
        self._address = where.address or _own_address()
        self._start_controller()
        wanted = self._start_here(len(where.here) - 1)
        self._connect()
        self._submit()
        for node in range(where.nodes):
            wanted += [f"{node}.{task}" for task in range(len(where.each))]
        self._wait_in_the_queue(len(wanted))
        self._assign(wanted, _seat)
        self._came = True

    def _submit(self) -> None:
        where, launchers = self._where, import_module("ipyparallel.cluster.launcher")
        name = f"notebook_learner-{secrets.token_hex(6)}"
        # Also by its name: this process may be gone before it has heard of a number.
        self._will_cancel(f"--user={getpass.getuser()}", f"--name={name}")
        self._cluster.engine_launcher_class = type(
            "EngineSet", (launchers.SlurmEngineSetLauncher,), {"_run_command": _submitted}
        )
        with tempfile.TemporaryDirectory() as folder:  # sbatch takes a copy along
            engines = self._cluster.start_engines_sync(
                n=len(where.elsewhere),
                engine_cmd=[where.python or sys.executable, "-m", "ipyparallel.engine"],
                batch_template=_SCRIPT,
                batch_file_name=os.path.join(folder, "engines.sbatch"),
                submit_command=["sbatch", f"--job-name={name}", *_wishes(where)],
                job_id_regexp=r"(?m)^\d+",
                environment={LABEL: "slurm"},
                engine_args=list(ENGINE),
            )
        launcher = self._cluster.engines[engines]
        self._job = Job(launcher.job_id, launcher.output_file)
        self._will_cancel(self._job.number)

    def _will_cancel(self, *which: str) -> None:
        self._cancelling.append(["scancel", *which])
        assert self._guard is not None
        self._guard.runs(self._cancelling[-1])

    def _wait_in_the_queue(self, wanted: int) -> None:
        """As long as it takes; and once the job runs, as long as engines may take anywhere."""
        job = self._job
        assert job is not None
        began = said_at = time.monotonic()
        said: tuple[str, str] | None = None
        runs_since: float | None = None
        while len(self._client.ids) < wanted:
            self._require_that_it_is_wanted(job)
            told, now = job.look(), time.monotonic()
            if told.state in ENDED:
                raise StateError(self._why_over(job))
            if told.state in _RUNS:
                runs_since = runs_since or now
                if now > runs_since + START:
                    raise StateError(self._why_late(job, wanted))
            elif now > began + _QUICK and ((told.state, told.reason) != said or now > said_at + _SAY):
                self._waiting.tell(_waits(job, now - began))
                said, said_at = (told.state, told.reason), now
            time.sleep(0.1)
        if said is not None:
            self._waiting.tell(f"{job} has begun, and its engines have come")

    def _require_that_it_is_wanted(self, job: Job) -> None:
        try:
            self._waiting.look()
        except KeyboardInterrupt:
            self._waiting.tell(f"{job} is cancelled; the next verb that trains asks for a new one")
            raise

    def _why_over(self, job: Job) -> str:
        words = job.last_words()
        why = f"{job} was over ({job.told}) before its engines had come; {words}"
        return f"{why}\n{self._hint}" if "Registration timed out" in words else why

    def _why_late(self, job: Job, wanted: int) -> str:
        return (
            f"{len(self._client.ids)} of {wanted} engines have come within {START:.0f} s since {job} runs on "
            f"{job.told.nodes}. {self._hint}; {job.last_words()}"
        )

    @property
    def _hint(self) -> str:
        return (
            f"They were told to come to {self._address}: give cluster.slurm(..., address=) the address by "
            "which the nodes reach this machine, and let the firewall pass it"
        )


def _submitted(launcher: Any, command: Sequence[str], **more: Any) -> str:
    """As ipyparallel's own, and what sbatch has to say is not lost.

    Raises:
        StateError: it refused, in its own words.
    """
    said = said_by(command, outside(more["env"]))
    if said.returncode:
        raise StateError(
            f"Slurm did not take the job: {said.stderr.strip()}. It was asked for by "
            f"{shlex.join(command[:-1])}"
        )
    return said.stdout


def _wishes(where: SlurmJob) -> list[str]:
    """For sbatch; what a person wishes comes last, which counts."""
    count = len(where.each)
    own = ["--parsable", "--no-requeue", "--export=ALL"]
    own += [f"--nodes={where.nodes}", f"--ntasks={where.nodes * count}", f"--ntasks-per-node={count}"]
    own += [] if any(each.startswith(_ABOUT_GPUS) for each in where.options) else _gpus(where.each)
    return [*own, *where.options]


def _gpus(devices: Sequence[str]) -> list[str]:
    """A node numbers those that it gives from 0 on: for its third alone all three are asked for."""
    numbers = [torch.device(each).index for each in devices if torch.device(each).type == "cuda"]
    count = max([len(numbers), *(number + 1 for number in numbers if number is not None)])
    return [f"--gpus-per-node={count}"] if count else []


def _waits(job: Job, seconds: float) -> str:
    minutes = int(seconds / 60)
    since = f", for {minutes} min now" if minutes else ""
    return f"{job} waits in the queue ({job.told}){since}; an interrupt or pause() cancels it"


def _own_address() -> str:
    """The address by which nodes reach this machine: that by which it reaches them."""
    told = said_by(["sinfo", "--noheader", "--Node", "--format=%o"])
    known = []
    for node in islice(dict.fromkeys(told.stdout.split()), _NODES):
        with suppress(OSError):
            own_address_towards(node)
            known.append(node)
    if not known:
        raise StateError(
            "it is not known by which address the nodes reach this machine: "
            f"{told.stderr.strip() or 'sinfo names no node'}; give cluster.slurm(..., address=)"
        )
    return nearest(known)


def _seat(label: str) -> str:
    """In the engine: which node of the job it is on, and which task of that node it is."""
    import os

    if not os.environ[label]:
        return ""  # on rank 0's machine, where these may tell of another job
    return f"{os.environ['SLURM_NODEID']}.{os.environ['SLURM_LOCALID']}"
