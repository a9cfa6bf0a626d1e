"""The command that measures a GPU runs from its beginning to its end, so that it works when there is one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_command_for_a_gpu_writes_a_row_for_each_way(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    command = [sys.executable, "-m", "tests.benchmarks", "gpu", "--dry", "--table", str(table)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = table.read_text()
    assert "no figures of a GPU" in text
    rows = re.findall(r"^\| (\w+) \| ([^|]+) \| ([\d.]+) \| ([\d.]+) \| 1 \|$", text, re.M)
    ways = {part: [way for each, way, _, _ in rows if each == part] for part, *_ in rows}
    assert ways == {
        "step": ["by hand", "learner", "learner, panel"],
        "graph": ["by hand", "learner", "learner, graph()"],
        "prefetch": ["by hand", "by hand, pinned", "learner", "learner, prefetch=True"],
        "keyframe": ["by hand", "learner"],
        "save": ["by hand", "learner"],
    }
    assert all(float(time) > 0 and float(ratio) > 0 for _, _, time, ratio in rows)
    assert {ratio for _, way, _, ratio in rows if way == "by hand"} == {"1.000"}
