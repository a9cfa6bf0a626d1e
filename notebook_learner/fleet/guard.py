"""What a notebook's process has asked of others ends with it, also where it cannot say so any more.

The guard is a program of its own, which waits for the end of a pipe and needs some 10 MB. It is run by its
path, so that nothing of this package is loaded for it, nor torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

_TRIES = 60
_BETWEEN = 10.0
"""Seconds between two of them: who manages a cluster may be away for a moment."""
_SAME = 5.0
_RUN = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
"""As a script its folder would be searched for modules first, and some there are called as Python's own."""


class Guard:
    """Of this process. It does nothing as long as this lives."""

    def __init__(self) -> None:
        # A session of its own: an interrupt, which goes to all of a terminal's processes, is none of its.
        self._program = subprocess.Popen(
            [sys.executable, "-c", _RUN, os.path.abspath(__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            text=True,
        )

    def ends(self, pid: int, since: float) -> None:
        """A process that is to end with this one."""
        self._note(f"end {pid} {since}")

    def runs(self, command: list[str]) -> None:
        """A command that is to be run once this process is gone, again and again until it succeeds."""
        self._note("\t".join(["run", *command]))

    def dismiss(self) -> None:
        """This process has done it all by itself."""
        self._note("nothing")
        self._hang_up()
        with suppress(subprocess.TimeoutExpired):
            self._program.wait(10.0)

    def leave(self) -> None:
        """It is to do it now, and by itself."""
        self._hang_up()
        self._program.returncode = 0  # nobody waits for it

    def _hang_up(self) -> None:
        assert self._program.stdin is not None
        with suppress(OSError):  # somebody has ended it
            self._program.stdin.close()

    def _note(self, line: str) -> None:
        assert self._program.stdin is not None
        with suppress(OSError):
            self._program.stdin.write(f"{line}\n")
            self._program.stdin.flush()


def main() -> None:
    """Listen until the other end is gone, and do what was noted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes to all, where a cluster wants its machine back
    noted = sys.stdin.read().splitlines()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if "nothing" in noted:
        return
    for line in noted:
        if line.startswith("end "):
            _, pid, since = line.split(" ")
            _end(int(pid), float(since))
    commands = [line.split("\t")[1:] for line in noted if line.startswith("run\t")]
    for _ in range(_TRIES):
        commands = [each for each in commands if subprocess.run(each, check=False).returncode]
        if not commands:
            return
        time.sleep(_BETWEEN)


def _end(pid: int, since: float) -> None:
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        if abs(process.create_time() - since) < _SAME:
            process.kill()


if __name__ == "__main__":
    main()
