"""Whatever is done to the files of a run: opening and restoring it ends in a right result or in an error of
ours, soon, with little memory, without reading elsewhere or running anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hostile_run import RECORDERS, run_in

HERE = Path(__file__).parent


def found_in(samples: Path, work: Path, first: int, end: int) -> list[dict[str, Any]]:
    """What went wrong in these mutations; one that ends the process is one of them, and the rest follow."""
    found: list[dict[str, Any]] = []
    for attempt in range(100):
        here = work / str(attempt)
        done = subprocess.run(
            [
                sys.executable,
                str(HERE / "hostile_worker.py"),
                str(samples),
                str(here),
                str(first),
                str(end - first),
            ],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found += [line for line in lines if "figures" not in line]
        if done.returncode == 0:
            assert lines and "figures" in lines[-1]
            return found
        at = int((here / "at").read_text())
        found.append(
            {"case": at, "what": f"ended the process ({done.returncode})", "trace": done.stderr[-2000:]}
        )
        first = at + 1
    return found


@pytest.mark.timeout(7200)
@pytest.mark.rounds(1)
@pytest.mark.parametrize("count", [100, 20_000])
def test_no_mutation_of_a_run_does_harm(count: int, tmp_path: Path) -> None:
    for name, make in RECORDERS.items():
        run_in(tmp_path / "samples" / name, make())
    assert found_in(tmp_path / "samples", tmp_path, 0, count) == []
