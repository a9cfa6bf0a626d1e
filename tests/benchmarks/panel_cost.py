"""What a live panel costs the training: the same run in a real kernel with the panel open in a real browser,
and with the silent renderer, in turn; CPU time of the kernel's process, which counts its other threads, too.

The speed of a shared core wanders by a tenth within a second, so two runs of a second differ by that, and
what lies beside each other in one run by much less in sum. So the panel's runs are looked at twice: against
the silent ones, and within themselves, where the blocks of steps that begin with a message, one of four to
seven, are held against those before and after. What a panel does in these, to note a block, takes some
microseconds.

Needs what the browser tests need: jupyterlab, playwright, Chromium.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
BROWSER = HERE.parent / "browser"

CELL = """
import sys, time, torch
sys.path.insert(0, {here!r})
from panel_workload import measured
measured({seconds}, {rounds})
"""
WORKLOADS = {"0.2 ms": 0.0002, "1 ms": 0.001, "5 ms": 0.005}
"""Seconds of a step, about: the model is as wide as that takes on the machine at hand."""
RUNS = 4
"""Runs of either kind a round, in turn, because two runs of the same cell differ by some per cent."""


def main(rounds: int) -> None:
    sys.path.insert(0, str(BROWSER))
    # JupyterLab and the browser inherit this; the kernel then takes the core that is left, so that what the
    # browser draws does not slow the steps that are measured.
    os.sched_setaffinity(0, set(range(1, os.cpu_count() or 1)) or {0})
    from chromium import ARGUMENTS
    from lab import Lab
    from lab_page import Notebook
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        lab = Lab(Path(home))
        lab.wait_until_up()
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        print(f"CPU time a step, medians of {RUNS * rounds} pairs of runs: silent, with a panel in a browser")
        try:
            for name, seconds in WORKLOADS.items():
                cells = [CELL.format(here=str(HERE), seconds=seconds, rounds=RUNS * rounds)]
                path = lab.write(cells)
                context = chromium.new_context(viewport={"width": 1400, "height": 900})
                page = Notebook(lab, context, path, Path(home), [])
                page.wait_idle()
                page.run(0)
                panel = page.outputs(0).get_by_role("region", name="Learner", exact=True)
                panel.wait_for(timeout=120_000)
                panel.scroll_into_view_if_needed()
                while "FIGURES" not in page.output_text(0):
                    page.page.wait_for_timeout(2000)
                report(name, json.loads(page.output_text(0).rpartition("FIGURES")[2]))
                page.close()
        finally:
            lab.close()
            chromium.close()


def report(name: str, figures: dict[str, list[float]]) -> None:
    silent, shown = figures["silent"], figures["panel"]
    quietest = 100 * (np.quantile(shown, 0.1) / np.quantile(silent, 0.1) - 1)
    own = [statistics.median(figures[f"{who}'s own"]) for who in ("silent", "panel")]
    around = "no message that stands alone"
    if figures["more"]:
        around = f"{len(figures['more'])} messages {_percent(figures['more'], np.nanmean(figures['often']))}"
    begin = statistics.median(np.array(figures["panel's begin"]) - np.array(figures["silent's begin"]))
    print(
        f"{name:8}{1e6 * statistics.median(silent):10.1f} us{1e6 * statistics.median(shown):10.1f} us   "
        f"{_percent(np.array(shown) / np.array(silent) - 1)}; quickest tenth {quietest:+.2f} %; "
        f"around {around}; "
        f"of its own {100 * (own[1] - own[0]):.2f} %; the first half second takes {1e3 * begin:+.1f} ms",
        flush=True,
    )


def _percent(shares: Any, often: Any = 1.0) -> str:
    """The median, and where it lies nine times out of ten."""
    shares = 100 * often * np.array(shares)
    draws = np.random.default_rng(0).choice(shares, (2000, len(shares)))
    low, high = np.quantile(np.median(draws, axis=1), [0.05, 0.95])
    return f"{np.median(shares):+.2f} % ({low:+.2f} to {high:+.2f})"
