"""`python -m tests.benchmarks`: the Learner against a hand-written loop, in interleaved processes; with
`storing`, `blocking` or `logging`: what checkpoints and logs cost; with `panel`: what a live panel does; with
`frames`: what a frame of its page takes; with `metrics`: what the standard pair adds to computing it by
hand, what metrics of classes and of sequences take,
and what `evaluate` adds to a loop; with `peers`: other trainers at the same work; with `growth`: how costs
grow with the work, a table a curve; with `long-run`: memory of a long run, and opening its directory; with
`ranks`: several devices beside torch's DistributedDataParallel; with `startup`: imports; with `gpu`: all that
a GPU has to show, as a table; with `graphs`: small models on a GPU, with CUDA graphs and without; with
`data`: one that waits for its data, and with `--dry` the same for one round on the CPU, to see that it runs.
`--workload` (W1 ... W9, G1 to G4) takes the one that each belongs to.

The machine's speed drifts, so one round runs both, in turn, and what counts is the median over rounds
of the difference and of the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]

import blocking  # noqa: E402  # test folders are no packages
import data_bound  # noqa: E402
import debugging  # noqa: E402
import gpu  # noqa: E402
import graphs  # noqa: E402
import growth  # noqa: E402
import import_cost  # noqa: E402
import logging_cost  # noqa: E402
import long_run  # noqa: E402
import metrics  # noqa: E402
import panel_cost  # noqa: E402
import panel_frames  # noqa: E402
import peer_race  # noqa: E402
import ranks  # noqa: E402
import storing  # noqa: E402
from peer_work import KINDS  # noqa: E402
from workloads import WORKLOADS  # noqa: E402

WIDTHS = (10, 9, 12, 10, 11, 12)


def run(name: str, who: str, steps: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, str(HERE / "workloads.py"), name, who, str(steps)],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def compare(name: str, rounds: int, steps: int) -> dict[str, Any]:
    raws, learners = [], []
    for i in range(rounds):
        for who in ("raw", "learner") if i % 2 == 0 else ("learner", "raw"):
            (raws if who == "raw" else learners).append(run(name, who, steps))
    losses = {result["loss"] for result in raws + learners}
    assert len(losses) == 1, f"unequal work: the final losses are {losses}"
    pairs = list(zip(raws, learners, strict=True))
    return {
        "workload": name,
        "raw_cpu_us": statistics.median(raw["cpu_us"] for raw in raws),
        "learner_cpu_us": statistics.median(mine["cpu_us"] for mine in learners),
        "added_cpu_us": statistics.median(mine["cpu_us"] - raw["cpu_us"] for raw, mine in pairs),
        "cpu_ratio": statistics.median(mine["cpu_us"] / raw["cpu_us"] for raw, mine in pairs),
        "wall_ratio": statistics.median(mine["wall_us"] / raw["wall_us"] for raw, mine in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what",
        nargs="?",
        default="steps",
        choices=MEASUREMENTS,
        help="steps (the Learner against a loop), or what storing, or a panel, costs",
    )
    parser.add_argument(
        "--workload", choices=[*sorted(WORKLOADS), *KINDS, *ELSEWHERE], nargs="+", metavar="NAME"
    )
    parser.add_argument("--peers", nargs="+", default=[], metavar="NAME", help="with peers: only these")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--steps", type=int, help="training steps per epoch, of 4 (1000); with long-run: in all (1,000,000)"
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--plot", type=Path, help="with peers: draw them here, as a PNG")
    parser.add_argument("--directory", type=Path, help="with long-run: train here, or open what is there")
    parser.add_argument(
        "--dry", action="store_true", help="with data: one short round on the CPU; with gpu: on the stand-in"
    )
    parser.add_argument("--table", type=Path, default=Path("gpu_table.md"), help="with gpu: written here")
    parser.add_argument("--curves", nargs="+", default=[], choices=growth.CURVES, metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="with growth: small sizes, to see that it runs")
    options = parser.parse_args()
    _measure(options)


def _measure(options: argparse.Namespace) -> None:
    chosen = options.workload or []
    if options.what != "steps" or not any(name in (*KINDS, *ELSEWHERE) for name in chosen):
        return MEASUREMENTS[options.what](options)
    for what in dict.fromkeys(ELSEWHERE.get(name, "peers") for name in chosen):
        options.workload = [name for name in chosen if name in KINDS]
        MEASUREMENTS[what](options)


def _peers(options: argparse.Namespace) -> None:
    workloads = options.workload or [name for name in KINDS if name != "W2b"]
    peer_race.main(workloads, options.peers, options.rounds, options.steps, options.json, options.plot)


def _steps(options: argparse.Namespace) -> None:
    steps = options.steps or 1000
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, one thread; medians of "
        f"{options.rounds} interleaved rounds of 4 x {steps} steps"
    )
    heads = zip(
        ("workload", "raw us", "learner us", "added us", "cpu ratio", "wall ratio"), WIDTHS, strict=True
    )
    print("".join(f"{head:>{width}}" for head, width in heads))
    results = []
    for name in options.workload or WORKLOADS:
        row = compare(name, options.rounds, steps)
        results.append(row)
        figures = (row["raw_cpu_us"], row["learner_cpu_us"], row["added_cpu_us"])
        ratios = (row["cpu_ratio"], row["wall_ratio"])
        cells = [name, *(f"{figure:.1f}" for figure in figures), *(f"{ratio:.3f}" for ratio in ratios)]
        print("".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "steps": _steps,
    "storing": lambda options: storing.main(options.rounds),
    "blocking": lambda options: blocking.main(),
    "logging": lambda options: logging_cost.main(),
    "panel": lambda options: panel_cost.main(options.rounds),
    "frames": lambda options: panel_frames.main(options.rounds),
    "debugging": lambda options: debugging.main(options.rounds),
    "metrics": lambda options: metrics.main(options.rounds),
    "peers": _peers,
    "growth": lambda options: growth.main(options.curves, quick=options.quick),
    "long-run": lambda options: long_run.main(options.steps or 1_000_000, options.directory),
    "ranks": lambda options: ranks.main(options.rounds),
    "startup": lambda options: import_cost.main(options.rounds),
    "graphs": lambda options: graphs.main(options.rounds),
    "gpu": lambda options: gpu.main(options.table, options.dry),
    "data": lambda options: data_bound.main(options.rounds, dry=options.dry),
}
ELSEWHERE = {"W5": "panel", "W6": "storing", "W7": "startup", "G4": "data"}
ELSEWHERE |= dict.fromkeys(("W8", "W9"), "long-run")
ELSEWHERE |= dict.fromkeys(("G1", "G2", "G3"), "graphs")
"""Workloads that are no training beside others'; W1 to W4 are."""


if __name__ == "__main__":
    main()
