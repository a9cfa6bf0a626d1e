"""`python tests/benchmarks/import_cost.py`: what importing the package adds to importing torch.

Each line is timed in fresh processes that have imported torch and NumPy already, in turn with the others.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

LINES = (
    "import notebook_learner",
    "from notebook_learner import LearnerBuilder",
    "from notebook_learner import *",
    "from notebook_learner import LearnerBuilder; from notebook_learner.metric import Accuracy, Loss",
)
SCRIPT = """
import torch, numpy
from time import perf_counter, process_time
wall, cpu = perf_counter(), process_time()
{line}
print(1e3 * (perf_counter() - wall), 1e3 * (process_time() - cpu))
"""


def timed(line: str) -> tuple[float, float]:
    """Milliseconds of wall time, and of the processor's."""
    # With bytecode, as pip installs it: a desk that writes none would measure Python's compiler.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    script = SCRIPT.format(line=line)
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True, env=env
    )
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu


def main(rounds: int) -> None:
    """Print a table."""
    for line in LINES:  # once for the files of bytecode, and for the page cache
        timed(line)
    measured = [[timed(line) for line in LINES] for _ in range(rounds)]
    print("| after `import torch, numpy` | median, ms | least, ms | CPU, median, ms |\n|---|---|---|---|")
    for line, pairs in zip(LINES, zip(*measured, strict=True), strict=True):
        walls, cpus = zip(*pairs, strict=True)
        figures = statistics.median(walls), min(walls), statistics.median(cpus)
        print(f"| `{line}` | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    main(parser.parse_args().rounds)
