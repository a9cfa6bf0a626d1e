"""A cluster for tests: Slurm itself, with two nodes that are this machine and have a name each."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from programs import find_program

DAEMONS = {name: find_program(name) for name in ("munged", "slurmctld", "slurmd")}

NODES = ("node-a", "node-b")
GPUS = ("/dev/null", "/dev/zero")
"""Of each node: Slurm hands out whatever file it is told of."""


_FIRST_PORT, _PORTS = 20_000, 12_000


def may_start_nodes() -> bool:
    """Whether this process may run what others ask of a node, and give it a name of its own."""
    return os.getuid() == 0 and subprocess.run(["unshare", "--uts", "true"]).returncode == 0


class Slurm:
    """Its daemons, in a folder of their own. While it is there the commands of Slurm mean it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name in ("munge", "state", *NODES):
            (folder / name).mkdir(parents=True, mode=0o700)
        (folder / "munge").chmod(0o711)  # the socket is for all
        self._before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(self._configure())
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def jobs(self) -> dict[str, tuple[str, str]]:
        """State and reason of every job that is not over."""
        told = said("squeue", "--noheader", "--format=%i|%T|%r").splitlines()
        return {number: (state, reason) for number, state, reason in (line.split("|") for line in told)}

    def occupy(self) -> str:
        """Somebody else has all nodes; gives the job."""
        number = said("sbatch", "--parsable", *_THEIRS).strip()
        self.until(lambda: self.jobs()[number][0] == "RUNNING")
        return number

    def cancel(self, *numbers: str) -> None:
        """Whatever is named, or all."""
        subprocess.run(["scancel", *(numbers or ("--user=root",))], check=True)

    def until(self, holds: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"{self.jobs()}\n{self._logs()}"
            time.sleep(0.1)

    def is_empty(self) -> bool:
        """Whether it has nothing to do."""
        return not self.jobs()

    def close(self) -> None:
        """End the daemons, and what they have started."""
        with suppress(subprocess.CalledProcessError, AssertionError):
            self.cancel()
            self.until(self.is_empty, 20.0)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(20.0)
        del os.environ["SLURM_CONF"]
        if self._before is not None:
            os.environ["SLURM_CONF"] = self._before

    def _start(self) -> None:
        munge, conf = self.folder / "munge", os.environ["SLURM_CONF"]
        (munge / "key").write_bytes(secrets.token_bytes(128))
        (munge / "key").chmod(0o400)
        files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
        self._daemon("munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *files)
        self.until_there(munge / "socket")
        self._daemon("slurmctld", "-D", "-f", conf)
        for node in NODES:
            self._daemon("slurmd", "-D", "-f", conf, "-N", node, host=node)
        self.until(
            lambda: said("sinfo", "--noheader", "--Node", "--format=%t", check=False).split() == ["idle"] * 2
        )

    def until_there(self, file: Path) -> None:
        """Wait for a file."""
        end = time.monotonic() + 20.0
        while not file.exists():
            assert time.monotonic() < end, self._logs()
            time.sleep(0.05)

    def _daemon(self, name: str, *arguments: str, host: str | None = None) -> None:
        # Without this process, which may be killed, none of them is of any use.
        command = ["setpriv", "--pdeathsig", "TERM", str(DAEMONS[name]), *arguments]
        if host is not None:
            command = ["unshare", "--uts", "sh", "-c", f'hostname {host}; exec "$@"', "sh", *command]
        with (self.folder / f"{host or name}.log").open("wb") as log:
            # A session of its own: whoever interrupts a test does not mean them.
            self._daemons.append(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
                )
            )

    def _configure(self) -> Path:
        ports = _free_ports(1 + len(NODES))
        here = socket.gethostname()
        lines = [
            "ClusterName=tests",
            f"SlurmctldHost={here}(127.0.0.1)",
            f"SlurmctldPort={ports[0]}",
            "SlurmUser=root",
            f"AuthInfo=socket={self.folder}/munge/socket",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/%n.pid",
            *("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SwitchType=switch/none"),
            *("SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU", "MpiDefault=none"),
            *("AccountingStorageType=accounting_storage/none", "JobAcctGatherType=jobacct_gather/none"),
            *("SlurmdParameters=config_overrides", "ReturnToService=2", "GresTypes=gpu"),
            # Nobody else is served: it may look at its queue at once, and need not be patient.
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0",
            *("KillWait=5", "MinJobAge=120"),
        ]
        for node, port in zip(NODES, ports[1:], strict=True):
            lines.append(
                f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.1 Port={port} CPUs=4 "
                f"Gres=gpu:{len(GPUS)}"
            )
        lines.append(f"PartitionName=main Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP")
        (self.folder / "gres.conf").write_text("".join(f"Name=gpu File={each}\n" for each in GPUS))
        (self.folder / "slurm.conf").write_text("\n".join([*lines, ""]))
        return self.folder / "slurm.conf"

    def _logs(self) -> str:
        return "\n".join(f"{each.name}:\n{each.read_text()[-2000:]}" for each in self.folder.glob("*.log"))


_THEIRS = ("--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=exec sleep 600")


def said(*command: str, check: bool = True) -> str:
    """What a command of Slurm's says."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=check).stdout


def _free_ports(count: int) -> list[int]:
    """Ports below those that the system gives out itself: one of these may be a client's, or another test's,
    by the time that the daemon begins."""
    found: list[socket.socket] = []
    while len(found) < count:
        with suppress(OSError):
            found.append(socket.create_server(("", _FIRST_PORT + secrets.randbelow(_PORTS))))
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports
