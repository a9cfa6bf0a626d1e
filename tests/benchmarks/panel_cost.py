"""What a live panel costs the training: a run in a real kernel with the panel open in a real browser, which
by turns of a second hears of the steps and hears of nothing, as a silent renderer; CPU time of the kernel's
process, which counts its other threads, too.

The speed of a shared core wanders by a tenth within seconds, so turns are short and many, each kind has one
in every three, in an order that is drawn, and several kernels are measured: what lies where in the memory of
one stays so for as long as it lives. A third kind of turn is silent as well. What it seems to cost is what
this measurement does not tell.

Needs what the browser tests need: jupyterlab, playwright, Chromium.
"""

from __future__ import annotations

import json
import os
import shutil
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
measured({seconds}, {metrics})
"""
WORKLOADS = {
    "0.2 ms": (0.0002, 1),
    "1 ms": (0.001, 1),
    "5 ms": (0.005, 1),
    "1 ms, thirty metrics": (0.001, 30),
}
"""Seconds of a step, about: the model is as wide as that takes on the machine at hand. And the number of
metrics, which silent turns measure, too."""


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

        def kernel(seconds: float, metrics: int) -> dict[str, list[float]]:
            path = lab.write([CELL.format(here=str(HERE), seconds=seconds, metrics=metrics)])
            context = chromium.new_context(viewport={"width": 1400, "height": 900})
            page = Notebook(lab, context, path, Path(home), [])
            page.wait_idle()
            page.run(0)
            panel = page.outputs(0).get_by_role("region", name="Learner")
            panel.wait_for(timeout=120_000)
            panel.scroll_into_view_if_needed()
            while "FIGURES" not in page.output_text(0):
                page.page.wait_for_timeout(2000)
            figures: dict[str, list[float]] = json.loads(page.output_text(0).rpartition("FIGURES")[2])
            page.close()
            lab.shut_down_kernels(path)
            return figures

        print(f"CPU time a step, silent; means over turns in {rounds} kernels, more than silent turns:")
        try:
            for name, workload in WORKLOADS.items():
                kernels = [kernel(*workload) for _ in range(rounds)]
                report(name, kernels)
        finally:
            lab.close()
            chromium.close()


def report(name: str, kernels: list[dict[str, list[float]]]) -> None:
    def all_of(what: str) -> Any:
        return np.concatenate([each[what] for each in kernels])

    panel, silent, control = (np.log(all_of(kind)) for kind in ("panel", "silent", "control"))
    own = 100 * (all_of("panel's own").mean() - all_of("silent's own").mean())
    messages = round(sum(k["messages"][0] for k in kernels))
    each = [np.log(k["panel"]) - (np.log(k["silent"]) + np.log(k["control"])) / 2 for k in kernels]
    print(
        f"{name:22}{1e6 * np.exp(silent.mean()):8.1f} us   panel {_percent(panel - (silent + control) / 2)}; "
        f"control {_percent(control - silent)}; of its own {own:.2f} %; "
        f"{len(panel)} turns, {messages} messages; "
        f"the panel by kernels {' '.join(f'{100 * one.mean():+.2f}' for one in each)} %",
        flush=True,
    )


def _percent(logs: Any) -> str:
    """The mean, and where it lies nineteen times out of twenty."""
    draws = np.random.default_rng(0).choice(100 * logs, (4000, len(logs))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return f"{100 * logs.mean():+.2f} % ({low:+.2f} to {high:+.2f})"
