"""A process that opens runs and is watched, and what it may at most have done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SPARE = 24 << 20
"""Bytes of memory that have nothing to do with a file's size."""


class Watched:
    """A process that opens one run after the other, and the next one should it not live."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def look(self, directory: Path) -> dict[str, Any]:
        """What happened while everything of a run was read."""
        if self._process is None:
            path = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "hostile_look.py")],
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(f"{directory}\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            self.end()
            raise AssertionError("the process that opened it died, or was ended since it hung")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


WATCHED = Watched()


def assert_harmless(directory: Path, damaged: int, spare: int = SPARE) -> None:
    """Look at a run, which has at least so many damaged checkpoints."""
    found = WATCHED.look(directory)
    assert found["seen"] == []  # nothing elsewhere was opened, nothing was run or imported
    assert found["errors"] == []  # every refusal was one of ours
    assert found["grown"] < 2 * found["size"] + spare
    assert found["tensor"] < 2 * found["size"]
    assert found["damaged"] >= damaged
