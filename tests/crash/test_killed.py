"""`kill -9`, at any moment and at any call to the file system, several times in one run: what was announced
as saved is there, and the run ends where it would have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(1800)
@pytest.mark.rounds(1)
@pytest.mark.parametrize("kills", [24, 300])
def test_whenever_a_training_is_killed_nothing_that_was_announced_is_lost(
    kills: int, quick_folder: Path
) -> None:
    paths = [str(HERE), str(HERE.parent / "learner"), *(p for p in sys.path if p)]
    ran = subprocess.run(
        [sys.executable, str(HERE / "kill_server.py"), str(quick_folder), str(kills), "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"},
        timeout=1700,
    )
    assert ran.returncode == 0, ran.stderr
    trials = [json.loads(line) for line in ran.stdout.splitlines()]

    assert [trial for trial in trials if trial["wrong"]] == []
    deaths = Counter(death for trial in trials for death in trial["deaths"])
    assert sum(deaths.values()) >= kills
    assert deaths["at some time"] >= kills // 4
    at_calls = {death.split()[1] for death in deaths if death != "at some time"}
    assert {"rename", "sync", "write_at", "append"} <= at_calls
    assert sum(trial["announced"] for trial in trials) > kills
    print(f"{sum(deaths.values())} kills, {sum(t['announced'] for t in trials)} announced", deaths)
