"""`python -m tests.benchmarks peers`: everybody trains the same thing, one process each, in turn.

    python -m tests.benchmarks peers --workload W1 W2 --rounds 5 --json peers.json --plot peers.png

Peers are not installed with the package: `pip install -r tests/benchmarks/peers/peers.txt`. Who is not there
is left out, and told. Within its process a trainer takes turns with the hand-written loop, 25 steps each, so
that both meet the same machine; what is told are medians over the rounds of the ratio, and of the difference,
between the two. CPU time counts all threads of a trainer. The process has a terminal, so that a display draws
what a person would see.
"""

from __future__ import annotations

import json
import os
import platform
import pty
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from peer_table import PEERS  # noqa: E402  # test folders are no packages
from peer_work import KINDS  # noqa: E402

Result = dict[str, Any]
HEADS = (
    "CPU us a step",
    "raw loop beside it",
    "added us",
    "ratio",
    "range",
    "wall ratio",
    "to first step, s CPU",
    "s",
    "ends as raw",
)


def main(
    workloads: list[str],
    peers: list[str],
    rounds: int,
    steps: int | None,
    out: Path | None,
    plot: Path | None,
) -> None:
    names = _installed(peers)
    found = json.loads(out.read_text()) if out is not None and out.exists() else {}

    def keep() -> None:
        if out is not None:
            out.write_text(json.dumps(found, indent=1))

    for workload in workloads:
        taking_part = [name for name in names if _takes_part(name, workload)]
        race(found.setdefault(workload, {}), workload, taking_part, rounds, steps, keep)
    for workload in workloads:
        show(workload, found[workload])
    if plot is not None:
        from peer_plot import draw

        draw({workload: rows_of(found[workload]) for workload in workloads}, plot)


def _installed(peers: list[str]) -> list[str]:
    """Those asked for, or all, that are installed."""
    unknown = set(peers) - set(PEERS)
    if unknown:
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    there = []
    for name in peers or PEERS:
        try:
            PEERS[name].versions()
            there.append(name)
        except metadata.PackageNotFoundError as missing:
            print(f"{name} is left out: {missing} is not installed")
    return there


def race(
    found: Result, workload: str, names: list[str], rounds: int, steps: int | None, keep: Callable[[], None]
) -> None:
    """One workload: everybody in every round, the order turned by one each time. What was found before is
    added to, run by run."""
    steps = steps or KINDS[workload].steps
    versions = {"torch": metadata.version("torch"), "python": platform.python_version()}
    about = found.setdefault("about", {"steps": [], "load": []} | versions)
    runs = found.setdefault("runs", {})
    failed = found.setdefault("failed", {})
    for number in range(rounds):
        turn = number % len(names) if names else 0
        for name in names[turn:] + names[:turn]:
            if name in failed:
                continue
            about["load"].append(round(os.getloadavg()[0], 1))
            try:
                runs.setdefault(name, []).append(run(name, workload, steps))
            except RuntimeError as error:
                failed[name] = str(error)
                print(f"{workload}: {name} is left out: {error}", flush=True)
            keep()
    about["steps"] = sorted({*about["steps"], steps})


def rows_of(found: Result) -> dict[str, Result]:
    """A summary for each that finished, the quickest first."""
    rows = {name: summary(runs) for name, runs in found["runs"].items() if runs}
    return dict(sorted(rows.items(), key=lambda row: row[1]["cpu_ratio"]))


def _takes_part(name: str, workload: str) -> bool:
    why = PEERS[name].cannot.get(workload)
    if why is not None:
        print(f"{workload}: {name} is left out: {why}")
    return why is None


def run(name: str, workload: str, steps: int) -> Result:
    """One training in a process with a terminal, which is read and thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "peer_process.py"), name, workload, str(steps), folder]
        ours, theirs = pty.openpty()
        said: list[bytes] = []
        reader = threading.Thread(target=_read, args=(ours, said), daemon=True)
        env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        env |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "COLUMNS": "120", "LINES": "40"}
        process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=folder, close_fds=True
        )
        os.close(theirs)
        reader.start()
        failed = process.wait()
        reader.join(timeout=10)
        os.close(ours)
        if failed:
            text = b"".join(said)[-3000:].decode(errors="replace")
            raise RuntimeError(f"it ended with {failed}, saying\n{text}")
        result: Result = json.loads((Path(folder) / "result.json").read_text())
        return result


def _read(terminal: int, said: list[bytes]) -> None:
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # how a terminal says that the other side is gone
            return
        if not block:
            return
        said.append(block)
        del said[:-64]  # the end is enough to tell of an error


def summary(runs: list[Result]) -> Result:
    """Medians over the rounds."""
    row: Result = {
        key: statistics.median(run[key] for run in runs)
        for key, value in runs[0].items()
        if type(value) is float
    }
    row["cpu_ratios"] = sorted(round(run["cpu_ratio"], 3) for run in runs)
    row["exact"] = all(run["exact"] for run in runs)
    row["versions"] = runs[0]["versions"]
    row["rounds"] = len(runs)
    return row


def show(workload: str, found: Result) -> None:
    """The table, as RESULTS.md has it."""
    about, load = found["about"], found["about"]["load"]
    steps = " or ".join(map(str, about["steps"]))
    print(
        f"\n{workload}: 4 epochs of {steps} steps, one thread; torch {about['torch']}, "
        f"Python {about['python']}; load {min(load)} to {max(load)}, median {statistics.median(load):.1f}\n"
    )
    print("| | " + " | ".join(HEADS) + " |")
    print("|---" * (len(HEADS) + 1) + "|")
    for name, row in rows_of(found).items():
        ends = "to the bit" if row["exact"] else f"loss {row['loss']:.4f}, raw {row['loss_by_hand']:.4f}"
        version = next(iter(row["versions"].values()), "")
        cells = [
            f"{name} {version}".strip(),
            f"{row['cpu_us']:.0f}",
            f"{row['raw_cpu_us']:.0f}",
            f"{row['added_cpu_us']:+.0f}",
            f"{row['cpu_ratio']:.3f}",
            " ".join(f"{ratio:.2f}" for ratio in row["cpu_ratios"]),
            f"{row['wall_ratio']:.3f}",
            f"{row['start_cpu_s']:.1f}",
            f"{row['start_wall_s']:.1f}",
            ends,
        ]
        print("| " + " | ".join(cells) + " |", flush=True)
