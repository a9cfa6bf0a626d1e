"""The comparison as a picture: what each trainer adds to a step of the raw loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def draw(found: dict[str, Any], path: Path) -> None:
    """One panel a workload, bars by ratio of CPU time to the raw loop's."""
    figure = Figure(figsize=(4.2 * len(found), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    places = figure.subplots(1, len(found), squeeze=False)[0]
    for axes, (workload, summaries) in zip(places, found.items(), strict=True):
        rows = list(reversed(summaries.items()))
        names = [name for name, _ in rows]
        ratios = [row["cpu_ratio"] for _, row in rows]
        colours = ["tab:orange" if name.startswith("notebook_learner") else "tab:gray" for name in names]
        bars = axes.barh(names, ratios, color=colours)
        axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=2, fontsize=8)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_xlim(0, max(ratios) * 1.15)
        axes.set_title(f"{workload}: CPU time a step over the raw loop's", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)
