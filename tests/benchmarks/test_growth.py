"""The curves of `python -m tests.benchmarks growth` run, at small sizes."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMES = subprocess.run(
    [sys.executable, "-c", "import growth; print(*growth.CURVES)"],
    cwd=HERE,
    check=True,
    capture_output=True,
    text=True,
).stdout.split()


def test_the_command_takes_a_curve_by_its_name():
    rows = rows_of([sys.executable, "-m", "tests.benchmarks", "growth", "--quick", "--curves", NAMES[0]])

    assert len(rows) > 1


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.rounds(1)
def test_a_curve_prints_a_row_of_figures_a_size(name):
    rows = rows_of([sys.executable, str(HERE / "growth.py"), name, "--quick"])

    assert len(rows) > 1


def rows_of(command):
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    heads, _, *rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {heads.count("|")}
    return rows
